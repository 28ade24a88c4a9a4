"""Type D: the intent is recorded, there is one call, and whatever is in doubt waits for a person."""

from typing import Any

import pytest

from tests.jobs.stage import defined, enqueue, let_leases_run_out, row, standing
from workitems import protocol
from workitems.errors import Terminal
from workitems.jobs import Target, Work
from workitems.jobs.targets.plain_external import single_attempt
from workitems.jobs.worker import Ended, Ran, run_batch, run_one


class Gateway:
    def __init__(self) -> None:
        self.sent: list[str] = []
        self.trouble: Exception | None = None

    def send(self, number: str) -> None:
        self.sent.append(number)
        if self.trouble is not None:
            raise self.trouble


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


def ended(ran: Ran | None) -> Ended:
    assert ran is not None
    return ran.ended


def text(gateway: Gateway) -> Any:
    def handler(work: Work) -> str:
        single_attempt(work, lambda: gateway.send(work.tenant_id))
        return "sent"

    return handler


def test_one_call_is_made_after_the_stamp(tenants: tuple[str, str], gateway: Gateway, superuser: Any) -> None:
    seen: list[Any] = []

    def handler(work: Work) -> str:
        def call() -> None:
            seen.extend(superuser.execute("SELECT effect_fence = fence FROM work_item").fetchall())
            gateway.send("number")

        single_attempt(work, call)
        return "sent"

    job = defined(Target.D, handler)
    enqueue(tenants[0], job=job)

    assert ended(run_one(job)) == Ended.COMPLETED
    assert seen == [(True,)], "another session sees the stamp before the call goes out"
    assert gateway.sent == ["number"]
    assert standing(tenants[0]) == ("succeeded", "sent")


def test_an_exception_after_the_stamp_parks_the_item(tenants: tuple[str, str], gateway: Gateway) -> None:
    gateway.trouble = TimeoutError()
    job = defined(Target.D, text(gateway))
    enqueue(tenants[0], job=job)

    assert ended(run_one(job)) == Ended.PARKED
    assert standing(tenants[0]) == ("unknown", "ambiguous:TimeoutError")
    assert run_one(job) is None
    assert len(gateway.sent) == 1


def test_a_terminal_answer_fails_the_item(tenants: tuple[str, str], gateway: Gateway) -> None:
    gateway.trouble = Terminal("number_unknown")
    job = defined(Target.D, text(gateway))
    enqueue(tenants[0], job=job)

    assert ended(run_one(job)) == Ended.FAILED
    assert standing(tenants[0]) == ("failed_terminal", "number_unknown")


def test_a_worker_that_dies_after_the_stamp_leaves_the_item_to_a_person(
    tenants: tuple[str, str], gateway: Gateway, superuser: Any
) -> None:
    def dies(work: Work) -> str:
        with work.effect():
            gateway.send("number")
            raise KeyboardInterrupt

    job = defined(Target.D, dies)
    enqueue(tenants[0], job=job)
    with pytest.raises(KeyboardInterrupt):
        run_one(job)
    let_leases_run_out(superuser)

    assert run_one(job) is None
    assert protocol.sweep().unknown == 1
    assert run_one(job) is None
    assert standing(tenants[0])[0] == "unknown"
    assert len(gateway.sent) == 1


def test_a_second_call_in_one_claim_is_refused_and_parks_the_item(tenants: tuple[str, str], gateway: Gateway) -> None:
    def calls_twice(work: Work) -> str:
        for _ in range(2):
            single_attempt(work, lambda: gateway.send("number"))
        return "sent"

    job = defined(Target.D, calls_twice)
    enqueue(tenants[0], job=job)

    assert ended(run_one(job)) == Ended.PARKED
    assert len(gateway.sent) == 1


def test_an_outcome_without_a_stamp_is_not_believed(tenants: tuple[str, str], gateway: Gateway) -> None:
    def forgets_the_stamp(work: Work) -> str:
        gateway.send("number")
        return "sent"

    job = defined(Target.D, forgets_the_stamp)
    enqueue(tenants[0], job=job)

    assert ended(run_one(job)) == Ended.PARKED
    assert standing(tenants[0]) == ("unknown", "returned_without_begin")


def test_an_exception_before_the_stamp_never_reaches_the_target(tenants: tuple[str, str], gateway: Gateway) -> None:
    def fails(work: Work) -> str:
        raise ConnectionError

    job = defined(Target.D, fails)
    enqueue(tenants[0], job=job)

    assert ended(run_one(job)) == Ended.RELEASED
    found = row(tenants[0])
    assert found["state"] in ("queued", "failed_terminal")
    assert found["effect_fence"] is None


def test_it_is_claimed_one_at_a_time(tenants: tuple[str, str], gateway: Gateway) -> None:
    job = defined(Target.D, text(gateway))
    for tenant in tenants:
        enqueue(tenant, job=job)

    assert len(run_batch(job, limit=10)) == 1
    assert sorted(row(tenant)["state"] for tenant in tenants) == ["queued", "succeeded"]
