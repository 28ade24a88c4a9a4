import datetime
from typing import Any

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from tests.oversight.stage import BOTH, EVERYBODY, NOBODY, NORTH, SOUTH, looking
from tests.protocol.stage import HASH, add_job_type, claim_one, enqueue, guard_off, let_leases_run_out, make, row
from workitems import protocol
from workitems.oversight.figures import Filters, Item, item, items
from workitems.oversight.item import EVENTS_SHOWN, Event, claims_of
from workitems.states import HONEST_CLAIM, State, Target


def open_item(digest: bytes, user_id: int = NORTH, **more: Any) -> Item:
    with looking(user_id) as person:
        found = item(person.scope, digest, **more)
    assert found is not None
    return found


def test_a_foreign_item_and_one_that_never_was_are_one_answer(people: tuple[str, str]) -> None:
    digests = [enqueue(tenant_id).op_digest for tenant_id in people]
    for user_id, visible in (
        (NORTH, [True, False]),
        (SOUTH, [False, True]),
        (BOTH, [True, True]),
        (EVERYBODY, [True, True]),
        (NOBODY, [False, False]),
    ):
        with looking(user_id) as person:
            assert [item(person.scope, digest) is not None for digest in digests] == visible
            assert item(person.scope, b"\x00" * 32) is None


def test_an_item_says_what_it_is_who_owns_it_and_what_may_be_claimed(people: tuple[str, str], superuser: Any) -> None:
    claim = make(State.UNKNOWN, people[0])
    found = open_item(claim.op_digest)
    assert (found.state, found.next_owner) == (State.UNKNOWN, "on-call, with payments")
    assert found.honest_claim == HONEST_CLAIM[Target.C]
    assert found.payload_hash == HASH.hex()
    assert (found.begun, found.condition, found.outcome_code) == (False, "", "timeout")
    assert "it has not begun to act" in found.reason
    (reference,) = superuser.execute(
        "SELECT fencewatch.keyed_digest(k.inner_pad, k.outer_pad, 'fencewatch/reference/1'::bytea"
        " || fencewatch.length_prefixed(w.tenant_id) || fencewatch.length_prefixed(w.payload_ref))"
        " FROM work_item w JOIN fencewatch.tenant_key k USING (tenant_id)"
    ).fetchone()
    assert found.reference_digest == reference.hex()
    assert found.reference_short.startswith("ref_")
    assert not any(raw in repr(found) for raw in (people[0], "op-1"))


def test_a_job_type_that_nobody_registered_claims_nothing(people: tuple[str, str]) -> None:
    found = open_item(enqueue(people[0], job_type="strange.job").op_digest)
    assert found.honest_claim.startswith("Nothing may be claimed")
    assert (found.condition, found.facts.target_name) == ("unregistered", "unknown target")


def test_the_history_tells_every_claim_with_its_fence_and_its_end(people: tuple[str, str], superuser: Any) -> None:
    enqueue(people[0])
    first = claim_one("host/1/aaaa")
    protocol.begin(first)
    let_leases_run_out(superuser)
    second = claim_one("host/2/bbbb")
    protocol.park(second, outcome_code="timeout")
    found = open_item(first.op_digest)
    later, earlier = found.claims
    assert (earlier.fence, earlier.worker, earlier.takeover, earlier.ended_by, earlier.attempt) == (
        first.fence,
        "host/1/aaaa",
        False,
        "takeover",
        1,
    )
    assert earlier.begun_at is not None
    assert (later.fence, later.worker, later.takeover, later.ended_by, later.outcome_code) == (
        second.fence,
        "host/2/bbbb",
        True,
        "park",
        "timeout",
    )
    assert (later.begun_at, later.is_over, found.claims_cut) == (None, True, False)
    assert [event.verb for event in found.events] == ["park", "takeover", "begin", "claim", "enqueue"]
    assert all(event.seconds_ago >= 0 for event in found.events)
    assert (found.begun, found.older_events) == (True, None)
    assert "may have acted since" in found.reason


def test_a_claim_that_runs_says_how_long_its_lease_and_its_silence_are(people: tuple[str, str], superuser: Any) -> None:
    enqueue(people[0])
    claim = claim_one()
    protocol.begin(claim)
    protocol.heartbeat(claim, progress=7)
    with guard_off(superuser):
        superuser.execute("UPDATE work_item SET progress_at = clock_timestamp() - interval '40 seconds'")
    found = open_item(claim.op_digest)
    assert found.lease_left_seconds is not None
    assert found.silent_seconds is not None
    assert 0 < found.lease_left_seconds <= 60
    assert 40 <= found.silent_seconds < 60
    assert (found.progress, found.lease_owner, found.lying, found.lapsed, found.held_by_foreign_worker) == (
        7,
        claim.worker,
        False,
        False,
        False,
    )
    assert found.key_window_left_seconds is not None
    assert 86_300 < found.key_window_left_seconds <= 86_400
    assert not found.claims[0].is_over


def test_an_item_held_by_a_worker_that_does_not_stamp_may_have_acted(people: tuple[str, str], superuser: Any) -> None:
    add_job_type("open.job", target="A", foreign_claims=True)
    digest = enqueue(people[0], job_type="open.job").op_digest
    (limit,) = open_item(digest).foreign_limits
    assert "may claim this job type" in limit
    superuser.execute(
        "UPDATE work_item SET state = 'claimed', fence = fence + 1, lease_owner = 'old-worker', attempts = attempts + 1,"
        " lease_expires_at = clock_timestamp() + interval '60 seconds'"
    )
    found = open_item(digest)
    assert (found.foreign_held, found.begun, found.effect_at, found.held_by_foreign_worker) == (True, True, None, True)
    superuser.execute("UPDATE job_type SET foreign_claims = false")
    (limit,) = open_item(digest).foreign_limits
    assert "a lost lease counts as acted" in limit


def test_no_claim_is_made_where_such_workers_may_repeat_a_plain_external_effect(people: tuple[str, str]) -> None:
    legacy = open_item(enqueue(people[0], job_type="legacy").op_digest)
    assert legacy.max_attempts > 1
    assert legacy.honest_claim.startswith("Nothing may be claimed: workers that know only the article's statements")
    add_job_type("plain.job", target="D", max_attempts=1, ceiling=1)
    plain = open_item(enqueue(people[0], "op-2", job_type="plain.job").op_digest)
    assert plain.honest_claim.startswith("At most one attempt")


@pytest.mark.parametrize("state", [State.UNKNOWN, State.QUEUED, State.CLAIMED])
def test_after_a_failover_no_item_is_said_not_to_have_acted(
    state: State, people: tuple[str, str], superuser: Any
) -> None:
    digest = make(state, people[0]).op_digest
    let_leases_run_out(superuser)
    with guard_off(superuser):
        superuser.execute("UPDATE work_item SET enqueue_timeline = enqueue_timeline - 1")
    found = open_item(digest)
    assert (found.effect_at, found.foreign_held, found.failed_over, found.begun) == (None, False, True, True)
    assert "not begun" not in found.reason
    with looking(NORTH) as person:
        (listed,) = items(person.scope, Filters(begun=True)).rows
        assert items(person.scope, Filters(begun=False)).rows == ()
    assert listed.begun


def test_a_type_a_item_cannot_have_acted_even_after_a_failover(people: tuple[str, str], superuser: Any) -> None:
    add_job_type("own.database", target="A")
    digest = make(State.UNKNOWN, people[0], job_type="own.database").op_digest
    with guard_off(superuser):
        superuser.execute("UPDATE work_item SET enqueue_timeline = enqueue_timeline - 1")
    found = open_item(digest)
    assert not found.begun
    assert "commits together with its completion" in found.reason


def test_a_long_history_is_read_in_pages(people: tuple[str, str], superuser: Any) -> None:
    digest = enqueue(people[0]).op_digest
    item_id = row(people[0])["item_id"]
    superuser.execute(
        "INSERT INTO work_event (item_id, tenant_digest, verb, state_before, state_after, fence, attempts)"
        " SELECT %s, %s, 'claim', 'queued', 'claimed', n, n FROM generate_series(1, 1000) n",
        [item_id, row(people[0])["tenant_digest"]],
    )
    found = open_item(digest)
    seen = [event.event_id for event in found.events]
    assert (len(seen), found.claims_cut, len(found.claims)) == (EVENTS_SHOWN, True, 500)
    while found.older_events is not None:
        found = open_item(digest, before_event=found.older_events)
        seen += [event.event_id for event in found.events]
    assert seen == sorted(set(seen), reverse=True)
    assert len(seen) == 1001


def test_an_item_takes_few_queries(people: tuple[str, str]) -> None:
    digest = make(State.UNKNOWN, people[0]).op_digest
    with CaptureQueriesContext(connections["default"]) as asked, looking(NORTH) as person:
        item(person.scope, digest)
    assert len(asked) <= 12, [query["sql"][:80] for query in asked.captured_queries]


def event(number: int, verb: str, fence: int, after: str) -> Event:
    at = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(seconds=number)
    return Event(
        event_id=number, at=at, seconds_ago=0.0, verb=verb, state_before=None, state_after=after, fence=fence, attempts=fence,
        worker="w", outcome_code=None, detail=None,
    )  # fmt: skip


@pytest.mark.parametrize("ending", ["complete", "fail", "release", "park", "quarantine", "sweep", "revoke"])
def test_a_claim_ends_with_whatever_leaves_claimed(ending: str) -> None:
    (claim,) = claims_of(
        [event(1, "enqueue", 0, "queued"), event(2, "claim", 1, "claimed"), event(5, ending, 1, "queued")]
    )
    assert (claim.ended_by, claim.seconds) == (ending, 3.0)


def test_a_history_that_begins_in_the_middle_makes_up_no_claim() -> None:
    assert claims_of([event(1, "begin", 3, "claimed"), event(2, "park", 3, "unknown")]) == ()


def test_the_stamp_moves_with_a_heartbeat(people: tuple[str, str]) -> None:
    enqueue(people[0])
    claim = claim_one()
    before = open_item(claim.op_digest).stamp
    protocol.heartbeat(claim, progress=1)
    assert open_item(claim.op_digest).stamp != before


def test_what_a_lost_claim_reports_late_is_shown_as_its_claim_and_ends_nothing(
    people: tuple[str, str], superuser: Any
) -> None:
    enqueue(people[0])
    lost = claim_one("first")
    let_leases_run_out(superuser)
    holds = claim_one("second")
    protocol.note_rejected(lost, tried="complete", outcome_code="paid")
    found = open_item(holds.op_digest)
    assert [(claim.worker, claim.is_over) for claim in found.claims] == [("second", False), ("first", True)]
    assert found.events[0].is_late
    assert (found.events[0].outcome_code, found.events[0].detail["known_claim"]) == ("paid", True)
    assert not found.events[1].is_late
