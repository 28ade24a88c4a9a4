"""Batch-mates: claimed together, worked one after the other, extended while they wait, given back on shutdown."""

from typing import Any

import pytest

from tests.jobs.stage import defined, enqueue, let_leases_run_out, row, standing
from workitems.jobs import JobType, Target, Work
from workitems.jobs.worker import Ended, run_batch, work_until_idle

OPERATIONS = ("op-1", "op-2", "op-3")


def fill(tenant: str, job: JobType) -> None:
    for operation in OPERATIONS:
        enqueue(tenant, operation, job=job)


def ends(ran: Any) -> list[Ended]:
    return [one.ended for one in ran]


def test_a_batch_is_worked_one_after_the_other(tenants: tuple[str, str]) -> None:
    seen: list[tuple[str, list[bool]]] = []

    def handler(work: Work) -> str:
        seen.append((work.operation_id, [row(tenants[0], operation)["waiting_in_worker"] for operation in OPERATIONS]))
        with work.effect():
            return "acted"

    job = defined(Target.C, handler, batch=5)
    fill(tenants[0], job)

    assert ends(run_batch(job)) == [Ended.COMPLETED] * 3
    assert seen == [
        ("op-1", [False, True, True]),
        ("op-2", [False, False, True]),
        ("op-3", [False, False, False]),
    ]


@pytest.mark.parametrize("target", [Target.A, Target.B, Target.C])
def test_a_handlers_own_marks_begin_at_one_in_a_batch_too(tenants: tuple[str, str], target: Target) -> None:
    def handler(work: Work) -> str:
        if target != Target.A:
            assert work.heartbeat(1) is True
            assert work.heartbeat(1) is False
            work.begin()
        return "acted"

    job = defined(target, handler, batch=3)
    fill(tenants[0], job)

    assert ends(run_batch(job)) == [Ended.COMPLETED] * 3


def test_who_waits_is_extended_as_the_work_moves_on(tenants: tuple[str, str], superuser: Any) -> None:
    leases: list[Any] = []

    def handler(work: Work) -> str:
        if work.operation_id == "op-1":
            superuser.execute(
                "UPDATE work_item SET lease_expires_at = clock_timestamp() + interval '2 seconds' WHERE waiting_in_worker"
            )
            assert work._moved_on is not None
            work._moved_on.__self__._extended_at -= 25  # type: ignore[attr-defined]
            assert work.heartbeat(1)
            leases.extend(
                superuser.execute(
                    "SELECT lease_expires_at > clock_timestamp() + interval '50 seconds' FROM work_item WHERE waiting_in_worker"
                ).fetchall()
            )
        return "acted"

    job = defined(Target.C, handler, batch=3)
    fill(tenants[0], job)

    assert ends(run_batch(job)) == [Ended.COMPLETED] * 3
    assert leases == [(True,), (True,)]


def test_a_mate_that_was_taken_over_in_the_meantime_is_left_alone(tenants: tuple[str, str], superuser: Any) -> None:
    acted: list[str] = []

    def handler(work: Work) -> str:
        acted.append(f"{work.operation_id} by {work.claim.worker}")
        if work.claim.worker == "first" and work.operation_id == "op-1":
            superuser.execute(
                "UPDATE work_item SET lease_expires_at = clock_timestamp() - interval '1 second' WHERE operation_id = 'op-2'"
            )
            assert ends(run_batch(job, limit=1, worker="second")) == [Ended.COMPLETED]
        with work.effect():
            return "acted"

    job = defined(Target.C, handler, batch=3)
    fill(tenants[0], job)

    assert ends(run_batch(job, worker="first")) == [Ended.COMPLETED, Ended.LOST, Ended.COMPLETED]
    assert acted == ["op-1 by first", "op-2 by second", "op-3 by first"]


def test_a_mate_whose_lease_ran_out_on_this_hosts_clock_is_left_alone(tenants: tuple[str, str], superuser: Any) -> None:
    def handler(work: Work) -> str:
        assert work._moved_on is not None
        waiting = work._moved_on.__self__  # type: ignore[attr-defined]
        waiting._deadlines = dict.fromkeys(waiting._deadlines, 0.0)
        return "acted"

    job = defined(Target.C, handler, batch=3)
    fill(tenants[0], job)

    assert ends(run_batch(job)) == [Ended.COMPLETED, Ended.LOST, Ended.LOST]
    let_leases_run_out(superuser)
    assert ends(run_batch(job, limit=1)) == [Ended.COMPLETED]


def test_a_shutdown_gives_back_who_waits_without_spending_an_attempt(tenants: tuple[str, str]) -> None:
    asked: list[str] = []

    def handler(work: Work) -> str:
        asked.append(work.operation_id)
        return "acted"

    job = defined(Target.C, handler, batch=3, max_attempts=1, attempts_ceiling=1)
    fill(tenants[0], job)

    assert ends(run_batch(job, stop=lambda: bool(asked))) == [Ended.COMPLETED, Ended.RELEASED, Ended.RELEASED]

    assert asked == ["op-1"]
    for operation in ("op-2", "op-3"):
        found = row(tenants[0], operation)
        assert found["state"] == "queued"
        assert found["attempts"] < found["max_attempts"]
    assert work_until_idle([job], seconds=30) == {Ended.COMPLETED: 2}


def test_one_bad_mate_does_not_harm_the_others(tenants: tuple[str, str]) -> None:
    def handler(work: Work) -> str:
        if work.operation_id == "op-2":
            raise ValueError
        return "done"

    job = defined(Target.A, handler, batch=3)
    fill(tenants[0], job)

    assert ends(run_batch(job)) == [Ended.COMPLETED, Ended.RELEASED, Ended.COMPLETED]
    assert [standing(tenants[0], operation)[0] for operation in OPERATIONS] == ["succeeded", "queued", "succeeded"]
