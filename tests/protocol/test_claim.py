import threading
from typing import Any

import pytest
from django.db import connections, transaction

from tests.protocol.stage import HASH, add_job_type, claim_one, enqueue, let_leases_run_out, row
from workitems import protocol
from workitems.errors import OwnershipLost
from workitems.states import State

CONNECTIONS = 32
ITEMS = 5_000


def test_thirty_two_connections_claim_five_thousand_items_each_exactly_once(
    database: Any, tenants: tuple[str, str]
) -> None:
    add_job_type()
    protocol.enqueue_many(
        [
            protocol.NewItem(
                tenant_id=tenants[n % 2],
                operation_id=f"op-{n // 2}",
                payload_hash=HASH,
                payload_ref="r",
                job_type="test.job",
            )
            for n in range(ITEMS)
        ]
    )
    taken: list[protocol.Claim] = []
    errors: list[Exception] = []
    start = threading.Barrier(CONNECTIONS)

    def work(number: int) -> None:
        try:
            connections["worker"].ensure_connection()
            start.wait(timeout=60)
            while batch := protocol.claim(job_type="test.job", worker=f"host/{number}/x", limit=1 + number % 16):
                taken.extend(batch)
        except Exception as error:  # noqa: BLE001 a thread's failure must fail the test
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)

    assert errors == []
    assert len(taken) == ITEMS
    assert len({(c.tenant_id, c.operation_id) for c in taken}) == ITEMS
    assert {c.attempts for c in taken} == {1}
    with connections["worker"].cursor() as cursor:
        cursor.execute("SELECT lease_owner, count(*) FROM work_item WHERE state = 'claimed' GROUP BY lease_owner")
        owners = dict(cursor.fetchall())
    assert sum(owners.values()) == ITEMS
    for number in range(CONNECTIONS):
        assert owners.get(f"host/{number}/x", 0) == sum(c.worker == f"host/{number}/x" for c in taken)


def test_the_oldest_due_item_is_claimed_first_and_none_before_it_is_due(
    database: Any, superuser: Any, tenants: tuple[str, str]
) -> None:
    add_job_type()
    for name in ("later", "sooner", "not-due"):
        enqueue(tenants[0], name)
    superuser.execute(
        "UPDATE work_item SET available_at = clock_timestamp() - interval '1 hour' WHERE operation_id = 'sooner'"
    )
    superuser.execute(
        "UPDATE work_item SET available_at = clock_timestamp() + interval '1 hour' WHERE operation_id = 'not-due'"
    )
    assert [c.operation_id for c in protocol.claim(job_type="test.job", worker="w", limit=10)] == ["sooner", "later"]


def test_a_job_type_on_hold_is_not_claimed_nor_taken_over(
    database: Any, superuser: Any, tenants: tuple[str, str]
) -> None:
    add_job_type()
    enqueue(tenants[0], "running")
    claim = claim_one()
    enqueue(tenants[0], "waiting")
    let_leases_run_out(superuser)
    superuser.execute("UPDATE job_type SET held_until = clock_timestamp() + interval '1 hour'")
    assert protocol.claim(job_type="test.job", worker="other", limit=5) == []
    protocol.complete(claim, outcome_code="done")  # a hold stops claims, not the work under way
    superuser.execute("UPDATE job_type SET held_until = clock_timestamp() - interval '1 second'")
    assert [c.operation_id for c in protocol.claim(job_type="test.job", worker="other", limit=5)] == ["waiting"]


def test_the_fence_carries_the_servers_timeline_and_rises_with_every_claim(
    database: Any, superuser: Any, tenants: tuple[str, str]
) -> None:
    add_job_type()
    enqueue(tenants[0])
    (timeline,) = superuser.execute("SELECT fencewatch.timeline()").fetchone()
    first = claim_one()
    assert first.fence == (timeline << 32) + 1
    let_leases_run_out(superuser)
    assert claim_one("other").fence == first.fence + 1


def test_a_claim_inside_a_transaction_is_refused_because_it_could_be_rolled_back_after_the_effect(
    database: Any, tenants: tuple[str, str]
) -> None:
    with transaction.atomic(using="worker"), pytest.raises(RuntimeError, match="commit before"):
        protocol.claim(job_type="test.job", worker="w")


def test_a_lease_counts_from_the_write_and_not_from_the_start_of_the_transaction(
    database: Any, tenants: tuple[str, str]
) -> None:
    add_job_type(lease=60)
    enqueue(tenants[0])
    claim = claim_one()
    with transaction.atomic(using="worker"), connections["worker"].cursor() as cursor:
        cursor.execute("SELECT now()")
        protocol.heartbeat(claim, progress=1)
        cursor.execute(
            "SELECT lease_expires_at > now() + interval '60 seconds' FROM work_item WHERE operation_id = 'op-1'"
        )
        assert cursor.fetchone() == (True,)


def test_a_claim_works_where_the_database_defaults_to_repeatable_read(
    database: Any, superuser: Any, tenants: tuple[str, str]
) -> None:
    add_job_type()
    enqueue(tenants[0])
    superuser.execute("ALTER ROLE fencewatch_worker SET default_transaction_isolation = 'repeatable read'")
    try:
        connections["worker"].close()
        with connections["worker"].cursor() as cursor:
            cursor.execute("SHOW transaction_isolation")
            assert cursor.fetchone() == ("read committed",)
        assert claim_one().attempts == 1
    finally:
        superuser.execute("ALTER ROLE fencewatch_worker SET default_transaction_isolation = 'read committed'")


@pytest.mark.parametrize("begun", [False, True])
def test_a_takeover_must_reconcile_only_if_the_earlier_claim_had_begun(
    begun: bool, database: Any, superuser: Any, tenants: tuple[str, str]
) -> None:
    add_job_type()
    enqueue(tenants[0])
    first = claim_one()
    assert not first.must_reconcile
    if begun:
        protocol.begin(first)
    let_leases_run_out(superuser)
    second = claim_one("other")
    assert second.must_reconcile is begun
    assert (second.first_effect_at is not None) is begun


def test_a_claim_after_a_timeline_change_must_reconcile_even_at_the_first_attempt(
    database: Any, superuser: Any, tenants: tuple[str, str]
) -> None:
    add_job_type()
    enqueue(tenants[0])
    superuser.execute("UPDATE work_item SET enqueue_timeline = enqueue_timeline - 1")
    claim = claim_one()
    assert claim.attempts == 1
    assert claim.must_reconcile


def test_an_answer_clears_exactly_one_attempt_and_none_after_a_timeline_change(
    database: Any, superuser: Any, tenants: tuple[str, str]
) -> None:
    add_job_type()
    for name in ("cleared", "other-timeline"):
        enqueue(tenants[0], name)
        claim = claim_one()
        protocol.begin(claim)
    let_leases_run_out(superuser)
    superuser.execute("ALTER TABLE work_item DISABLE TRIGGER guard")
    superuser.execute("UPDATE work_item SET cleared_for_attempt = 2")
    superuser.execute("UPDATE work_item SET fence = 7 WHERE operation_id = 'other-timeline'")  # a fence of timeline 0
    superuser.execute("ALTER TABLE work_item ENABLE ALWAYS TRIGGER guard")
    must = {c.operation_id: c.must_reconcile for c in protocol.claim(job_type="test.job", worker="w", limit=5)}
    assert must == {"cleared": False, "other-timeline": True}
    let_leases_run_out(superuser)
    assert {c.must_reconcile for c in protocol.claim(job_type="test.job", worker="w", limit=5)} == {True}


def test_a_heartbeat_extends_only_when_progress_rises(database: Any, tenants: tuple[str, str]) -> None:
    add_job_type()
    enqueue(tenants[0])
    claim = claim_one()
    protocol.heartbeat(claim, progress=1)
    before = row(tenants[0])["lease_expires_at"]
    with pytest.raises(OwnershipLost):
        protocol.heartbeat(claim, progress=1)
    assert row(tenants[0])["lease_expires_at"] == before
    protocol.heartbeat(claim, progress=2)
    assert row(tenants[0])["lease_expires_at"] > before


def test_batch_mates_wait_until_their_turn_and_are_extended_without_progress(
    database: Any, superuser: Any, tenants: tuple[str, str]
) -> None:
    add_job_type()
    for name in ("a", "b", "c"):
        enqueue(tenants[0], name)
    batch = protocol.claim(job_type="test.job", worker="w", limit=3)
    assert all(row(tenants[0], c.operation_id)["waiting_in_worker"] for c in batch)
    protocol.begin(batch[0])
    assert not row(tenants[0], batch[0].operation_id)["waiting_in_worker"]
    assert protocol.extend_waiting(batch) == set(batch[1:])
    let_leases_run_out(superuser)
    (stolen,) = protocol.claim(job_type="test.job", worker="other", limit=1)
    kept = protocol.extend_waiting(batch[1:])
    assert {c.operation_id for c in kept} == {c.operation_id for c in batch[1:]} - {stolen.operation_id}


def test_mates_of_a_mixed_batch_all_wait_for_their_turn(
    database: Any, superuser: Any, tenants: tuple[str, str]
) -> None:
    add_job_type()
    enqueue(tenants[0], "lapsed")
    claim_one("gone")
    let_leases_run_out(superuser)
    enqueue(tenants[0], "due")
    batch = protocol.claim(job_type="test.job", worker="w", limit=2)
    assert [c.operation_id for c in batch] == ["lapsed", "due"]
    assert protocol.extend_waiting(batch) == set(batch)


def test_shutdowns_do_not_use_up_the_attempts_of_mates_whose_turn_never_came(
    database: Any, superuser: Any, tenants: tuple[str, str]
) -> None:
    add_job_type(max_attempts=3, ceiling=3)
    enqueue(tenants[0])
    for _ in range(4):
        (claim,) = protocol.claim(job_type="test.job", worker="w", limit=2)
        assert protocol.release(claim, waiting=True) is State.QUEUED
    for expected in (State.QUEUED, State.QUEUED, State.FAILED_TERMINAL):
        assert (
            protocol.release(claim_one(), waiting=True) is expected
        )  # its turn had come: saying otherwise counts for nothing
        superuser.execute("UPDATE work_item SET available_at = clock_timestamp()")


def test_a_key_window_counts_from_the_enqueue_where_nobody_stamped(
    database: Any, superuser: Any, tenants: tuple[str, str]
) -> None:
    add_job_type()
    enqueue(tenants[0], "stamped")
    protocol.begin(claim_one())
    enqueue(tenants[0], "untouched")
    enqueue(tenants[0], "failed-over")
    let_leases_run_out(superuser)
    superuser.execute("UPDATE work_item SET enqueue_timeline = enqueue_timeline - 1 WHERE operation_id = 'failed-over'")
    for claim in protocol.claim(job_type="test.job", worker="w", limit=3):
        stands = row(tenants[0], claim.operation_id)
        expected = {"stamped": stands["first_effect_at"], "untouched": None, "failed-over": stands["enqueued_at"]}
        assert claim.window_from == expected[claim.operation_id]


def test_a_waiting_mate_goes_back_at_once_and_keeps_its_number_of_tries(
    database: Any, tenants: tuple[str, str]
) -> None:
    add_job_type(max_attempts=1, ceiling=1)
    enqueue(tenants[0])
    (claim,) = protocol.claim(job_type="test.job", worker="w", limit=2)
    assert protocol.release(claim, waiting=True) is State.QUEUED
    assert claim_one().attempts == 2


def test_items_of_a_plain_external_target_are_claimed_one_at_a_time(database: Any, tenants: tuple[str, str]) -> None:
    add_job_type(target="D", max_attempts=1, ceiling=1)
    for name in ("a", "b", "c"):
        enqueue(tenants[0], name)
    (claim,) = protocol.claim(job_type="test.job", worker="w", limit=50)
    assert not row(tenants[0], claim.operation_id)["waiting_in_worker"]


def test_attempts_never_fall_and_a_release_makes_room_only_up_to_the_ceiling(
    database: Any, superuser: Any, tenants: tuple[str, str]
) -> None:
    add_job_type(max_attempts=1, ceiling=2)
    enqueue(tenants[0])
    assert protocol.release(claim_one()) is State.QUEUED
    assert row(tenants[0])["max_attempts"] == 2
    assert row(tenants[0])["available_at"] > row(tenants[0])["updated_at"]
    superuser.execute("UPDATE work_item SET available_at = clock_timestamp()")
    assert protocol.release(claim_one()) is State.FAILED_TERMINAL
    assert row(tenants[0])["outcome_code"] == "attempts_used_up"


def test_a_release_at_the_ceiling_parks_what_an_earlier_claim_may_have_done(
    database: Any, superuser: Any, tenants: tuple[str, str]
) -> None:
    add_job_type(max_attempts=2, ceiling=2)
    enqueue(tenants[0])
    protocol.begin(claim_one())
    let_leases_run_out(superuser)
    assert protocol.release(claim_one("other")) is State.UNKNOWN


def test_an_effect_is_stamped_and_the_first_stamp_is_remembered(
    database: Any, superuser: Any, tenants: tuple[str, str]
) -> None:
    add_job_type()
    enqueue(tenants[0])
    first = claim_one()
    protocol.begin(first)
    stamped = row(tenants[0])
    assert stamped["effect_fence"] == first.fence
    let_leases_run_out(superuser)
    second = claim_one("other")
    protocol.begin(second)
    again = row(tenants[0])
    assert again["effect_fence"] == second.fence
    assert again["effect_at"] > stamped["effect_at"]
    assert again["first_effect_at"] == stamped["effect_at"]


def test_begin_inside_a_transaction_is_refused_because_the_stamp_would_vanish_with_the_worker(
    database: Any, tenants: tuple[str, str]
) -> None:
    add_job_type()
    enqueue(tenants[0])
    claim = claim_one()
    with transaction.atomic(using="worker"), pytest.raises(RuntimeError, match="commit before"):
        protocol.begin(claim)


def test_a_lock_outside_a_transaction_is_refused_and_inside_one_it_keeps_others_off(
    database: Any, superuser: Any, tenants: tuple[str, str]
) -> None:
    add_job_type(target="A")
    enqueue(tenants[0])
    claim = claim_one()
    with pytest.raises(RuntimeError, match="outside a transaction"):
        protocol.hold(claim)
    let_leases_run_out(superuser)
    with transaction.atomic(using="worker"):
        protocol.hold(claim)
        taken: list[list[protocol.Claim]] = []
        rival = threading.Thread(
            target=lambda: (taken.append(protocol.claim(job_type="test.job", worker="rival")), connections.close_all())
        )
        rival.start()
        rival.join(timeout=30)
        assert taken == [[]]
        protocol.complete(claim, outcome_code="done")
    assert row(tenants[0])["state"] == "succeeded"
