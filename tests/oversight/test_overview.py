from typing import Any

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from tests.oversight.stage import BOTH, EVERYBODY, NOBODY, NORTH, fill, looking
from tests.protocol.stage import JOB_TYPE, add_job_type, claim_one, enqueue, guard_off, let_leases_run_out, make
from workitems import protocol
from workitems.models import WorkItem
from workitems.oversight import figures
from workitems.oversight.figures import Filters, Overview, items, overview
from workitems.states import State


def look(user_id: int = NORTH) -> Overview:
    with looking(user_id) as person:
        return overview(person.scope)


def counts(seen: Overview) -> dict[str, int]:
    return {tile.key: tile.count for tile in seen.tiles}


def back_date(superuser: Any, **columns: str) -> None:
    """Move times of claimed and parked rows into the past: `claimed_at="2 hours"`."""
    moves = ", ".join(f"{column} = clock_timestamp() - interval '{by}'" for column, by in columns.items())
    with guard_off(superuser):
        superuser.execute(f"UPDATE work_item SET {moves} WHERE state <> 'queued'")


def test_an_empty_table_is_calm(people: tuple[str, str]) -> None:
    for user_id in (NORTH, EVERYBODY, NOBODY):
        seen = look(user_id)
        assert seen.is_calm
        assert set(counts(seen).values()) == {0}
        assert (seen.takeover_rate.share, seen.quarantine_rate.share) == (None, None)
        assert not any(tile.over_threshold for tile in seen.tiles)


def test_each_tile_counts_its_own_and_says_how_old_the_oldest_is(superuser: Any, people: tuple[str, str]) -> None:
    for state in (State.UNKNOWN, State.QUARANTINED, State.FAILED_TERMINAL, State.SUCCEEDED):
        make(state, people[0], f"{state}")
    back_date(superuser, updated_at="20 minutes")
    make(State.CLAIMED, people[0], "held")
    make(State.UNKNOWN, people[1])
    enqueue(people[0], "due")
    enqueue(people[0], "strange", job_type="strange.job")
    expected = {
        "unknown": 1,
        "quarantined": 1,
        "failed_terminal": 1,
        "claimed": 1,
        "queued": 2,
        "unregistered": 1,
        "stalled": 0,
        "lying": 0,
    }
    seen = look()
    assert counts(seen) == expected
    assert counts(look(EVERYBODY)) == counts(look(BOTH)) == expected | {"unknown": 2}
    unknown = seen.tile("unknown")
    assert unknown.oldest_seconds is not None
    assert 1_200 <= unknown.oldest_seconds < 1_230
    assert (unknown.over_threshold, unknown.begun) == (True, 0)
    assert (seen.tile("quarantined").over_threshold, seen.tile("unregistered").over_threshold) == (False, True)


def test_a_lapsed_lease_and_a_silent_claim_are_stalled_and_a_waiting_one_is_not(
    superuser: Any, people: tuple[str, str]
) -> None:
    for operation_id in ("lapsed", "lying", "working"):
        enqueue(people[0], operation_id)
    claims = {claim.operation_id: claim for claim in protocol.claim(job_type=JOB_TYPE, worker="host/1/aaaa", limit=3)}
    protocol.begin(claims["lapsed"])
    with guard_off(superuser):
        superuser.execute(
            "UPDATE work_item SET progress_at = clock_timestamp() - interval '130 seconds', waiting_in_worker = true"
        )
        superuser.execute(
            "UPDATE work_item SET lease_expires_at = clock_timestamp() - interval '90 seconds', waiting_in_worker = false"
            " WHERE operation_id = 'lapsed'"
        )
        superuser.execute("UPDATE work_item SET waiting_in_worker = false WHERE operation_id = 'lying'")
    for user_id in (NORTH, EVERYBODY):
        seen = look(user_id)
        assert (counts(seen)["stalled"], counts(seen)["lying"], counts(seen)["claimed"]) == (2, 1, 3)
        stalled, lying = seen.tile("stalled"), seen.tile("lying")
        assert stalled.oldest_seconds is not None
        assert lying.oldest_seconds is not None
        assert 90 <= stalled.oldest_seconds < 120
        assert 10 <= lying.oldest_seconds < 40
        assert (stalled.begun, lying.begun) == (1, 0)
        assert [(row.condition, row.begun) for row in seen.first] == [("stalled", True), ("lying", False)]
        with looking(user_id) as person:
            assert items(person.scope, Filters(stalled=True)).count == 2
            assert items(person.scope, Filters(lying=True)).count == 1
            assert WorkItem.objects.lapsed().count() == WorkItem.objects.lying().count() == 1
    assert "nothing moved for" in seen.first[1].reason
    assert "The lease ran out" in seen.first[0].reason


def test_what_may_have_acted_irreversibly_comes_first_and_oldest_first(superuser: Any, people: tuple[str, str]) -> None:
    add_job_type("mild.job", target="B", side_effect="idempotent")

    def park(operation_id: str, *, job_type: str = JOB_TYPE, begins: bool) -> None:
        enqueue(people[0], operation_id, job_type=job_type)
        claim = claim_one(job_type=job_type)
        if begins:
            protocol.begin(claim)
        protocol.park(claim, outcome_code="timeout")

    park("never begun", begins=False)
    make(State.QUARANTINED, people[0], "quarantined")
    park("mild", job_type="mild.job", begins=True)
    park("acted first", begins=True)
    park("acted later", begins=True)
    enqueue(people[0], "stalled")
    claim_one()
    let_leases_run_out(superuser)
    digests = {
        bytes(row[1]): row[0] for row in superuser.execute("SELECT operation_id, op_digest FROM work_item").fetchall()
    }
    order = ["acted first", "acted later", "mild", "quarantined", "never begun", "stalled"]
    for user_id in (NORTH, EVERYBODY):
        assert [digests[row.digest] for row in look(user_id).first] == order


def test_rates_tell_takeovers_and_quarantines_of_the_last_hour_with_their_numbers(
    superuser: Any, people: tuple[str, str]
) -> None:
    for number in range(4):
        enqueue(people[0], f"op-{number}")
    protocol.claim(job_type=JOB_TYPE, worker="host/1/aaaa", limit=3)
    let_leases_run_out(superuser)
    again = protocol.claim(job_type=JOB_TYPE, worker="host/2/bbbb", limit=4)
    make(State.QUARANTINED, people[1])
    for claim in [claim for claim in again if claim.tenant_id == people[0]][:1]:
        protocol.complete(claim, outcome_code="done")
    (claims, takeovers) = superuser.execute(
        "SELECT count(*) FILTER (WHERE verb IN ('claim', 'takeover')), count(*) FILTER (WHERE verb = 'takeover')"
        " FROM work_event"
    ).fetchone()
    seen = look(EVERYBODY)
    assert (seen.takeover_rate.part, seen.takeover_rate.whole) == (takeovers, claims)
    assert takeovers == 3
    assert seen.takeover_rate.over_threshold
    assert (seen.quarantine_rate.part, seen.quarantine_rate.whole, seen.quarantine_rate.share) == (1, 2, 0.5)
    assert look(NORTH).quarantine_rate.share == 0.0
    with guard_off(superuser):
        superuser.execute("ALTER TABLE work_event DISABLE TRIGGER USER")
        superuser.execute("UPDATE work_event SET at = at - interval '61 minutes'")
    assert look(EVERYBODY).takeover_rate.whole == 0


def test_rates_that_take_too_long_are_left_out_and_the_page_stays(
    people: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make(State.UNKNOWN, people[0])
    real = figures.run
    endless = "SELECT count(*), 0, 0, 0 FROM generate_series(1, 1000000000000)"
    monkeypatch.setattr(figures, "run", lambda sql, params: real(endless if "work_event" in sql else sql, params))
    monkeypatch.setattr(figures, "COUNT_MILLISECONDS", 50)
    seen = look()
    assert (seen.takeover_rate.whole, seen.takeover_rate.share, counts(seen)["unknown"]) == (None, None, 1)


def test_stuck_work_is_told_apart_by_job_type_and_target(people: tuple[str, str]) -> None:
    add_job_type("other.job", target="A")
    for number in range(2):
        make(State.UNKNOWN, people[0], f"op-{number}", job_type="other.job")
    make(State.QUARANTINED, people[0], "op-9")
    make(State.FAILED_TERMINAL, people[1], "op-9")
    found = [
        (one.facts.name, one.facts.target, one.unknown, one.quarantined, one.failed_terminal, one.total)
        for one in look(EVERYBODY).by_job_type
    ]
    assert found == [("other.job", "A", 2, 0, 0, 2), (JOB_TYPE, "C", 0, 1, 1, 1)]


def test_tiles_stop_counting_at_the_cap_and_keep_the_oldest(
    superuser: Any, people: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(superuser, rows=4_000)
    exact = look(BOTH)
    monkeypatch.setattr(figures, "CAP", 20)
    for user_id in (BOTH, EVERYBODY):
        seen = look(user_id)
        for key in ("unknown", "quarantined", "failed_terminal", "claimed"):
            tile = seen.tile(key)
            assert (tile.count, tile.capped, tile.count_text) == (20, True, "20+")
            assert tile.oldest_at == exact.tile(key).oldest_at
        assert seen.tile("stalled").capped


def test_the_overview_takes_few_queries_however_much_waits(superuser: Any, people: tuple[str, str]) -> None:
    for rows, most in ((0, 24), (4_000, 24)):
        if rows:
            fill(superuser, rows=rows, types=(JOB_TYPE, "strange.job"))
        with CaptureQueriesContext(connections["default"]) as asked, looking(EVERYBODY) as person:
            overview(person.scope)
        assert len(asked) <= most, [query["sql"][:80] for query in asked.captured_queries]


def test_the_stamp_moves_with_what_is_shown(people: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    at = look().at
    monkeypatch.setattr(figures, "database_clock", lambda: at)
    before = look().stamp
    assert look().stamp == before
    make(State.UNKNOWN, people[1])
    assert look().stamp == before
    make(State.UNKNOWN, people[0])
    assert look().stamp != before
