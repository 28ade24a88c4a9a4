"""Type C: the provider drops repeats of a key; what it never answered is looked up by that key."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import httpx
import pytest

from tests.jobs.servers import Provider, act_and_hang_up, answer, hang_up, provider
from tests.jobs.stage import KEY, defined, enqueue, let_leases_run_out, notes, row, standing
from tests.protocol.stage import guard_off
from workitems.jobs import Answer, JobType, Target, Work, did_not_happen, happened
from workitems.jobs.targets.idempotent_api import http, idempotent_call, look_up
from workitems.jobs.worker import Ended, Ran, run_one


@pytest.fixture
def bank() -> Iterator[Provider]:
    with provider() as running:
        yield running


@pytest.fixture
def client(bank: Provider) -> Iterator[httpx.Client]:
    with http(base_url=bank.url, timeout=5.0) as opened:
        yield opened


@pytest.fixture
def job(client: httpx.Client, database: Any) -> JobType:
    def pay(work: Work) -> str:
        idempotent_call(work, client=client, url="/payments", json={"amount": work.payload["amount"]})
        return "paid"

    def ask(work: Work) -> Answer:
        found = look_up(client=client, url=f"/payments/{work.identity_key}")
        return did_not_happen(status=404) if found is None else happened("paid", status=found.status_code)

    return defined(Target.C, pay, reconcile=ask)


def ended(ran: Ran | None) -> Ended:
    assert ran is not None
    return ran.ended


def test_the_key_is_the_tenants_own(tenants: tuple[str, str], bank: Provider, job: JobType) -> None:
    for tenant in tenants:
        enqueue(tenant, job=job)

    assert [ended(run_one(job)) for _ in tenants] == [Ended.COMPLETED] * 2

    assert len(bank.effects) == 2
    assert all(len(key) == 64 and "op-1" not in key for key in bank.effects)


def test_an_answer_that_never_came_is_looked_up(
    tenants: tuple[str, str], bank: Provider, job: JobType, superuser: Any
) -> None:
    bank.answers = [act_and_hang_up]
    enqueue(tenants[0], job=job)

    assert ended(run_one(job)) == Ended.COMPLETED

    assert len(bank.effects) == 1
    assert [method for method, _ in bank.requests] == ["POST", "GET"]
    assert notes(superuser) == [("reconcile", "happened", {"status": 200})]


def test_a_call_that_never_arrived_is_made_again_under_a_new_fence_and_the_same_key(
    tenants: tuple[str, str], bank: Provider, job: JobType, superuser: Any
) -> None:
    bank.answers = [hang_up]
    enqueue(tenants[0], job=job)

    assert ended(run_one(job)) == Ended.LEFT
    let_leases_run_out(superuser)
    assert ended(run_one(job)) == Ended.COMPLETED

    assert [method for method, _ in bank.requests] == ["POST", "GET", "GET", "POST"]
    assert len({key for _, key in bank.requests}) == 1
    assert row(tenants[0])["attempts"] == 2


def test_a_takeover_after_the_effect_looks_it_up_and_does_not_call_again(
    tenants: tuple[str, str], bank: Provider, job: JobType, superuser: Any
) -> None:
    enqueue(tenants[0], job=job)
    pay = job.handler

    def pays_and_dies(work: Work) -> str:
        pay(work)
        raise KeyboardInterrupt

    object.__setattr__(job, "handler", pays_and_dies)
    with pytest.raises(KeyboardInterrupt):
        run_one(job, worker="first")
    object.__setattr__(job, "handler", pay)
    let_leases_run_out(superuser)

    assert ended(run_one(job, worker="second")) == Ended.COMPLETED

    assert [method for method, _ in bank.requests] == ["POST", "GET"]
    assert standing(tenants[0]) == ("succeeded", "paid")


@pytest.mark.parametrize("status", [400, 422])
def test_a_final_refusal_fails_the_item(tenants: tuple[str, str], bank: Provider, job: JobType, status: int) -> None:
    bank.answers = [answer(status)]
    enqueue(tenants[0], job=job)

    assert ended(run_one(job)) == Ended.FAILED
    assert standing(tenants[0]) == ("failed_terminal", f"refused_{status}")
    assert len(bank.requests) == 1


@pytest.mark.parametrize("status", [401, 403, 404, 408, 409, 429, 500, 502, 503, 302])
def test_any_other_answer_is_a_doubt_and_sent_once(
    tenants: tuple[str, str], bank: Provider, job: JobType, status: int
) -> None:
    bank.answers = [answer(status), answer(503)]
    enqueue(tenants[0], job=job)

    assert ended(run_one(job)) == Ended.PARKED
    assert standing(tenants[0]) == ("unknown", f"ambiguous:http_{status}")
    assert [method for method, _ in bank.requests] == ["POST", "GET"]


def test_a_slow_provider_is_a_doubt(
    tenants: tuple[str, str], bank: Provider, job: JobType, client: httpx.Client
) -> None:
    from threading import Event

    answered = Event()

    def waits(handler: Any, known: Provider, key: str, body: object) -> None:
        known.act(key, body)
        answered.wait(10)
        handler.close_connection = True

    bank.answers = [waits, answer(500)]
    client.timeout = httpx.Timeout(0.2)
    enqueue(tenants[0], job=job)

    assert ended(run_one(job)) == Ended.PARKED
    answered.set()
    assert standing(tenants[0]) == ("unknown", "ambiguous:ReadTimeout")
    assert [method for method, _ in bank.requests] == ["POST", "GET"]


def test_a_provider_that_may_have_forgotten_the_key_proves_nothing(
    tenants: tuple[str, str], bank: Provider, job: JobType, superuser: Any
) -> None:
    bank.answers = [hang_up]
    enqueue(tenants[0], job=job)
    run_one(job)
    with guard_off(superuser):
        superuser.execute(
            "UPDATE work_item SET first_effect_at = first_effect_at - %s", [KEY.window - timedelta(seconds=30)]
        )
    let_leases_run_out(superuser)

    assert ended(run_one(job)) == Ended.PARKED

    assert standing(tenants[0]) == ("unknown", "cannot_tell")
    assert notes(superuser)[-1][2]["key_window"] == "over"
    assert [method for method, _ in bank.requests] == ["POST", "GET", "GET"]
