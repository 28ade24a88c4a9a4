"""What outlives a claim and a row: late outcomes, rejected writes, tombstones."""

import uuid
from typing import Any

import psycopg
import pytest
from django.db import connections

from tests.protocol.stage import HASH, add_job_type, claim_one, enqueue, guard_off, let_leases_run_out, make, row
from workitems import protocol
from workitems.errors import OwnershipLost
from workitems.protocol import Answer, Claim
from workitems.states import State


@pytest.fixture
def lost(tenants: tuple[str, str], superuser: Any) -> Claim:
    """A claim whose lease ran out and that somebody else took over."""
    add_job_type()
    enqueue(tenants[0])
    mine = claim_one("mine")
    let_leases_run_out(superuser)
    claim_one("theirs")
    return mine


def kept(superuser: Any) -> list[tuple[Any, ...]]:
    found = superuser.execute(
        "SELECT verb, state_after, fence, worker, outcome_code, detail ->> 'tried', detail -> 'known_claim' FROM work_event"
        " WHERE verb IN ('rejected', 'late_outcome') ORDER BY event_id"
    )
    return list(found.fetchall())


def test_a_late_outcome_is_kept_and_changes_nothing(lost: Claim, superuser: Any) -> None:
    before = row(lost.tenant_id)
    with pytest.raises(OwnershipLost):
        protocol.complete(lost, outcome_code="paid")
    assert protocol.note_rejected(lost, tried="complete", outcome_code="paid")
    assert row(lost.tenant_id) == before
    assert kept(superuser) == [("late_outcome", "claimed", lost.fence, "mine", "paid", "complete", True)]


def test_it_is_kept_once(lost: Claim, superuser: Any) -> None:
    assert protocol.note_rejected(lost, tried="begin")
    assert not protocol.note_rejected(lost, tried="begin")
    assert protocol.note_rejected(lost, tried="heartbeat")
    assert [entry[0] for entry in kept(superuser)] == ["rejected", "rejected"]


def test_a_claim_that_history_does_not_know_is_said_to_be_unknown(lost: Claim, superuser: Any) -> None:
    with connections["worker"].cursor() as cursor:
        cursor.execute(
            "SELECT fencewatch.note_rejected(%s, 'op-1', %s, 'nobody', 'complete', 'paid')", [lost.tenant_id, 1 << 40]
        )
    assert kept(superuser) == [("late_outcome", "claimed", 1 << 40, "nobody", "paid", "complete", False)]


def test_a_flood_is_cut_off_for_one_item_and_not_for_its_neighbour(lost: Claim, superuser: Any) -> None:
    with connections["worker"].cursor() as cursor:
        for number in range(30):
            cursor.execute(
                "SELECT fencewatch.note_rejected(%s, 'op-1', %s, 'nobody', 'begin')", [lost.tenant_id, number]
            )
    assert len(kept(superuser)) == 20
    other = make(State.SUCCEEDED, lost.tenant_id, "op-2")
    assert protocol.note_rejected(other, tried="complete", outcome_code="done")


def test_the_claim_that_holds_the_item_is_not_late(tenants: tuple[str, str], superuser: Any) -> None:
    add_job_type()
    enqueue(tenants[0])
    assert not protocol.note_rejected(claim_one(), tried="complete", outcome_code="done")
    assert kept(superuser) == []


@pytest.mark.parametrize(("tried", "code"), [("redrive", None), ("complete", "not a code"), ("complete", "")])
def test_evidence_that_says_nothing_is_refused(lost: Claim, tried: str, code: str | None) -> None:
    with pytest.raises(Exception, match="names the verb that it tried"):
        protocol.note_rejected(lost, tried=tried, outcome_code=code)


# ----------------------------------------------------------------------------------------------------------------
# Tombstones
# ----------------------------------------------------------------------------------------------------------------
def age(superuser: Any, *, days: int = 40) -> None:
    with guard_off(superuser):
        superuser.execute("UPDATE work_item SET updated_at = updated_at - make_interval(days => %s)", [days])


def hour_goes_by(superuser: Any) -> None:
    superuser.execute("UPDATE tombstone SET written_at = written_at - interval '61 minutes'")


def retire(keep_days: int = 30) -> tuple[int, int]:
    with connections["keeper"].cursor() as cursor:
        cursor.execute("SELECT buried, removed FROM fencewatch.retire(%s, 1000)", [keep_days])
        buried, removed = cursor.fetchone()
    return buried, removed


@pytest.fixture
def retired(tenants: tuple[str, str], superuser: Any) -> Claim:
    add_job_type()
    claim = make(State.SUCCEEDED, tenants[0])
    make(State.UNKNOWN, tenants[0], "op-2")
    age(superuser)
    assert retire() == (1, 0)
    hour_goes_by(superuser)
    assert retire() == (0, 1)
    return claim


def test_what_retention_removed_is_still_a_replay_or_a_conflict(retired: Claim, superuser: Any) -> None:
    assert superuser.execute("SELECT operation_id FROM work_item").fetchall() == [("op-2",)]
    again = enqueue(retired.tenant_id)
    assert (again.outcome, again.state, again.outcome_code, again.op_digest) == (
        Answer.REPLAY, State.SUCCEEDED, "done", retired.op_digest,
    )  # fmt: skip
    assert enqueue(retired.tenant_id, payload_hash=b"\1" * 32).outcome == Answer.CONFLICT
    with connections["worker"].cursor() as cursor:
        cursor.execute(
            "SELECT outcome, state FROM fencewatch.enqueue(%s, 'op-1', %s, 'ref')", [retired.tenant_id, HASH]
        )
        assert cursor.fetchone() == ("replay", "succeeded")
    assert protocol.claim(job_type="test.job", worker="w") == []
    assert superuser.execute("SELECT count(*) FROM work_item WHERE operation_id = 'op-1'").fetchone() == (0,)


def test_the_articles_own_insert_gets_no_row_back(retired: Claim, foreign: Any) -> None:
    made = foreign.execute(
        "INSERT INTO work_item (tenant_id, operation_id, payload_hash, payload_ref) VALUES (%s, 'op-1', %s, 'r')"
        " ON CONFLICT (tenant_id, operation_id) DO NOTHING RETURNING operation_id",
        [retired.tenant_id, HASH],
    ).fetchall()
    assert made == []


def test_another_tenants_operation_of_that_name_is_its_own(retired: Claim, tenants: tuple[str, str]) -> None:
    assert enqueue(tenants[1]).outcome == Answer.ENQUEUED


def test_a_tombstone_answers_after_the_tenants_key_was_rotated(retired: Claim) -> None:
    from workitems.operations.rotation import rotate_tenant_key

    rotate_tenant_key(tenant_id=retired.tenant_id)
    assert enqueue(retired.tenant_id).outcome == Answer.REPLAY


def test_the_row_stays_until_no_enqueue_can_have_missed_its_tombstone(tenants: tuple[str, str], superuser: Any) -> None:
    add_job_type()
    make(State.SUCCEEDED, tenants[0])
    age(superuser)
    assert [retire(), retire()] == [(1, 0), (0, 0)]  # an hour has not gone by
    assert enqueue(tenants[0]).outcome == Answer.REPLAY
    with guard_off(superuser):
        superuser.execute("UPDATE work_item SET outcome_code = 'other'")  # as a later verb might
    hour_goes_by(superuser)
    assert retire() == (1, 0)  # the tombstone is written anew, and its hour begins again


@pytest.mark.parametrize("state", [state for state in State if state not in (State.SUCCEEDED, State.FAILED_TERMINAL)])
def test_only_what_ended_goes(tenants: tuple[str, str], superuser: Any, state: State) -> None:
    add_job_type()
    make(state, tenants[0])
    age(superuser)
    assert retire() == (0, 0)


def test_nobody_removes_a_row_past_its_tombstone(tenants: tuple[str, str], superuser: Any) -> None:
    add_job_type()
    make(State.SUCCEEDED, tenants[0])
    for role in (None, "fencewatch_keeping"):
        if role:
            superuser.execute(f"SET ROLE {role}")
        with pytest.raises(psycopg.Error, match="never removed"):
            superuser.execute("DELETE FROM work_item")
    superuser.execute("RESET ROLE")


@pytest.mark.parametrize("statement", ["DELETE FROM tombstone", "TRUNCATE tombstone"])
def test_tombstones_stay(retired: Claim, superuser: Any, statement: str) -> None:
    with pytest.raises(psycopg.Error, match="never removed"):
        superuser.execute(statement)


@pytest.mark.parametrize(("days", "rows"), [(0, 10), (30, 0)])
def test_retention_has_a_floor(database: Any, days: int, rows: int) -> None:
    with connections["keeper"].cursor() as cursor, pytest.raises(Exception, match="kept for a day at least"):
        cursor.execute("SELECT fencewatch.retire(%s, %s)", [days, rows])


def test_many_keys_at_once_hold_new_ones_old_ones_and_retired_ones(retired: Claim) -> None:
    new = f"op-{uuid.uuid4()}"
    items = [
        protocol.NewItem(
            tenant_id=retired.tenant_id, operation_id=name, payload_hash=HASH, payload_ref="ref", job_type="test.job"
        )
        for name in ("op-1", new, "op-2", new)
    ]
    assert [answer.outcome for answer in protocol.enqueue_many(items)] == [
        Answer.REPLAY, Answer.ENQUEUED, Answer.REPLAY, Answer.REPLAY,
    ]  # fmt: skip
