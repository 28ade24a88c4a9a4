"""Type A: effect and completion are one commit under one fence."""

from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest
from django.db import connections

from tests.jobs.stage import defined, enqueue, let_leases_run_out, notes, row, standing
from workitems.errors import Terminal
from workitems.jobs import Target, Work
from workitems.jobs.payloads import PostgresPayloads
from workitems.jobs.worker import Ended, Ran, run_one


@pytest.fixture
def refunds(superuser: Any) -> Any:
    """A business table with a status guard of its own, and a count of what was written into it."""
    superuser.execute("CREATE TABLE refund (tenant_id text, operation_id text, amount int, by text)")
    superuser.execute("GRANT SELECT, INSERT ON refund TO fencewatch_worker")
    return lambda: superuser.execute("SELECT tenant_id, operation_id, amount, by FROM refund").fetchall()


def refund(work: Work) -> str:
    with connections[work.using].cursor() as cursor:
        cursor.execute(
            "INSERT INTO refund VALUES (%s, %s, %s, %s)",
            [work.tenant_id, work.operation_id, work.payload["amount"], work.claim.worker],
        )
    return "refunded"


def ended(ran: Ran | None) -> Ended:
    assert ran is not None
    return ran.ended


def test_the_effect_and_the_completion_commit_together(tenants: tuple[str, str], refunds: Any) -> None:
    job = defined(Target.A, refund)
    for tenant in tenants:
        enqueue(tenant, job=job)

    assert [ended(run_one(job, worker="w")) for _ in tenants] == [Ended.COMPLETED] * 2

    assert [standing(tenant) for tenant in tenants] == [("succeeded", "refunded")] * 2
    assert sorted(refunds()) == [(tenant, "op-1", 250, "w") for tenant in tenants]
    assert run_one(job) is None


def test_an_exception_undoes_the_effect_and_gives_the_item_back(tenants: tuple[str, str], refunds: Any) -> None:
    def breaks(work: Work) -> str:
        refund(work)
        raise RuntimeError

    job = defined(Target.A, breaks)
    enqueue(tenants[0], job=job)

    assert ended(run_one(job)) == Ended.RELEASED
    assert refunds() == []
    assert row(tenants[0])["state"] == "queued"
    assert row(tenants[0])["effect_fence"] is None


def test_a_database_error_gives_the_item_back(tenants: tuple[str, str], refunds: Any) -> None:
    def breaks(work: Work) -> str:
        with connections[work.using].cursor() as cursor:
            cursor.execute("SELECT 1 / 0")
        return "never"

    job = defined(Target.A, breaks)
    enqueue(tenants[0], job=job)

    assert ended(run_one(job)) == Ended.RELEASED


def test_a_lost_connection_undoes_the_effect_and_gives_the_item_back(
    tenants: tuple[str, str], refunds: Any, superuser: Any
) -> None:
    def is_cut_off(work: Work) -> str:
        refund(work)
        with connections[work.using].cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            superuser.execute("SELECT pg_terminate_backend(%s, 5000)", cursor.fetchone())
        return "refunded"

    job = defined(Target.A, is_cut_off)
    enqueue(tenants[0], job=job)

    assert ended(run_one(job)) == Ended.RELEASED
    assert refunds() == []
    assert row(tenants[0])["state"] == "queued"


def test_a_terminal_failure_undoes_the_effect(tenants: tuple[str, str], refunds: Any) -> None:
    def refuses(work: Work) -> str:
        refund(work)
        raise Terminal("already_paid_back")

    job = defined(Target.A, refuses)
    enqueue(tenants[0], job=job)

    assert ended(run_one(job)) == Ended.FAILED
    assert standing(tenants[0]) == ("failed_terminal", "already_paid_back")
    assert refunds() == []


@pytest.mark.parametrize("code", [None, "", "two words", "x" * 101, 7])
def test_a_bad_outcome_code_undoes_the_effect(tenants: tuple[str, str], refunds: Any, code: Any) -> None:
    def answers(work: Work) -> Any:
        refund(work)
        return code

    job = defined(Target.A, answers)
    enqueue(tenants[0], job=job)

    assert ended(run_one(job)) == Ended.RELEASED
    assert refunds() == []


@pytest.mark.parametrize("verb", [lambda work: work.begin(), lambda work: work.heartbeat(1)])
def test_a_handler_in_a_transaction_neither_begins_nor_heartbeats(
    tenants: tuple[str, str], refunds: Any, verb: Any
) -> None:
    def confused(work: Work) -> str:
        refund(work)
        verb(work)
        return "done"

    job = defined(Target.A, confused)
    enqueue(tenants[0], job=job)

    assert ended(run_one(job)) == Ended.RELEASED
    assert refunds() == []


class PausesBeforeItsTransaction:
    """A worker that loses time between its claim and its transaction; `meanwhile` runs then, once."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self._meanwhile = [meanwhile]
        self._store = PostgresPayloads()

    def put(self, *, tenant_id: str, payload_ref: str, body: bytes) -> bytes:
        return self._store.put(tenant_id=tenant_id, payload_ref=payload_ref, body=body)

    def exists(self, *, tenant_id: str, payload_ref: str) -> bool:
        return self._store.exists(tenant_id=tenant_id, payload_ref=payload_ref)

    def get(self, *, tenant_id: str, payload_ref: str) -> bytes | None:
        if self._meanwhile:
            self._meanwhile.pop()()
        return self._store.get(tenant_id=tenant_id, payload_ref=payload_ref)


def test_a_stale_worker_cannot_commit_its_write(tenants: tuple[str, str], refunds: Any, superuser: Any) -> None:
    job = defined(Target.A, refund)
    enqueue(tenants[0], job=job)

    def another_takes_over() -> None:
        let_leases_run_out(superuser)
        assert ended(run_one(job, worker="second")) == Ended.COMPLETED

    assert ended(run_one(job, worker="first", store=PausesBeforeItsTransaction(another_takes_over))) == Ended.LOST

    assert refunds() == [(tenants[0], "op-1", 250, "second")]
    assert standing(tenants[0]) == ("succeeded", "refunded")
    assert notes(superuser) == []


def test_nobody_takes_over_while_the_transaction_runs_even_past_the_lease(
    tenants: tuple[str, str], refunds: Any, superuser: Any
) -> None:
    found: list[Any] = []

    def another_tries() -> None:
        found.append(run_one(job, worker="second"))
        connections["worker"].close()

    def slow(work: Work) -> str:
        thread = Thread(target=another_tries)
        thread.start()
        thread.join()
        return refund(work)

    job = defined(Target.A, slow)
    enqueue(tenants[0], job=job)

    pause = PausesBeforeItsTransaction(lambda: let_leases_run_out(superuser))
    assert ended(run_one(job, worker="first", store=pause)) == Ended.COMPLETED

    assert found == [None]
    assert refunds() == [(tenants[0], "op-1", 250, "first")]
