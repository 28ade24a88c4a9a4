"""Real Celery workers, a real broker and a real database, under the faults that they are built for."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from django.conf import settings
from django.db import transaction

from dashboard import servers
from tests.jobs.servers import Provider, act_and_answer, provider
from tests.jobs.stage import enqueue, let_leases_run_out, row
from tests.processes import StartProcess, wait_until
from workitems.jobs import JobType, tasks
from workitems.jobs.agreement import sync
from workitems.jobs.registry import isolated

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def bank() -> Iterator[Provider]:
    with provider() as running:
        yield running


@pytest.fixture
def jobs(database: Any) -> dict[str, JobType]:
    with isolated():
        from tests.faults.jobs import pay, refund
    known = {job.name: job for job in (pay, refund)}
    sync(known)
    return known


@pytest.fixture
def refunds(superuser: Any) -> Any:
    superuser.execute("CREATE TABLE refund (tenant_id text, operation_id text)")
    superuser.execute("GRANT INSERT ON refund TO fencewatch_worker")
    return lambda: superuser.execute("SELECT tenant_id, operation_id FROM refund").fetchall()


@pytest.fixture
def celery(start_celery: StartProcess, bank: Provider, jobs: dict[str, JobType]) -> Path:
    """A worker with two children and a beat that wakes it each second; returns the worker's log."""
    variables = {
        "FENCEWATCH_JOB_MODULES": "tests.faults.jobs",
        "FENCEWATCH_WAKE_EVERY_SECONDS": "1",
        "FENCEWATCH_SWEEP_EVERY_SECONDS": "1",
        "PROVIDER_URL": bank.url,
    }
    start_celery("beat", **variables)
    _, log = start_celery("worker", "--concurrency", "2", **variables)
    return log


def states(superuser: Any) -> dict[str, int]:
    return dict(superuser.execute("SELECT state, count(*) FROM work_item GROUP BY state").fetchall())


def holder(superuser: Any) -> int:
    """The process that holds the only claim."""
    ((owner,),) = superuser.execute("SELECT lease_owner FROM work_item WHERE state = 'claimed'").fetchall()
    return int(owner.split("/")[1])


def test_a_broker_that_is_killed_while_work_comes_in_loses_nothing_and_repeats_nothing(
    tenants: tuple[str, str],
    jobs: dict[str, JobType],
    bank: Provider,
    refunds: Any,
    celery: Path,
    broker: servers.Valkey,
    superuser: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settings, "CELERY_BROKER_URL", broker.url)
    monkeypatch.setattr(tasks.wake.app.conf, "broker_url", broker.url)
    monkeypatch.setattr(tasks.publish, "_rests_until", 0.0)
    unsent = tasks.publish.unsent
    enqueue(tenants[0], "before", job=jobs["fault.pay"])
    wait_until(lambda: states(superuser) == {"succeeded": 1}, what=f"the first item completed (see {celery})")

    broker.process.send_signal(signal.SIGKILL)
    broker.process.wait(10)
    for number in range(20):
        for tenant in tenants:
            for job in jobs.values():
                with transaction.atomic(using="worker"):
                    enqueue(tenant, f"{job.name} {number}", job=job)
                    tasks.wake_on_commit()
    assert tasks.publish.unsent == unsent + 80

    again = servers.start_valkey(folder=celery.parent / "valkey-again", port=broker.port, password=broker.password)
    try:
        wait_until(lambda: states(superuser) == {"succeeded": 81}, what=f"every item completed (see {celery})")
    finally:
        again.stop()

    assert len(bank.effects) == 41
    assert bank.repeats == 0
    assert sorted(refunds()) == sorted((tenant, f"fault.refund {number}") for tenant in tenants for number in range(20))


def test_a_worker_that_sleeps_past_its_lease_changes_nothing_when_it_wakes(
    tenants: tuple[str, str], jobs: dict[str, JobType], bank: Provider, celery: Path, superuser: Any
) -> None:
    acted, may_answer = Event(), Event()

    def acts_and_answers_late(handler: Any, known: Provider, key: str, body: object) -> None:
        known.act(key, body)
        acted.set()
        may_answer.wait(120)
        act_and_answer(handler, Provider(), key, body)

    bank.answers = [acts_and_answers_late]
    enqueue(tenants[0], job=jobs["fault.pay"])
    wait_until(acted.is_set, what=f"the first worker called (see {celery})")
    sleeper = holder(superuser)
    os.kill(sleeper, signal.SIGSTOP)
    try:
        let_leases_run_out(superuser)
        wait_until(lambda: states(superuser) == {"succeeded": 1}, what=f"another worker took over (see {celery})")
        settled = row(tenants[0])
    finally:
        may_answer.set()
        os.kill(sleeper, signal.SIGCONT)
    wait_until(
        lambda: f"lost under fence {settled['fence'] - 1}" in celery.read_text(), what="the sleeper noticed its loss"
    )

    assert settled["outcome_code"] == "paid_says_look_up"
    assert settled["attempts"] == 2
    assert row(tenants[0]) == settled
    assert len(bank.effects) == 1
    assert bank.repeats == 0


def test_a_worker_that_is_killed_after_the_effect_is_followed_by_a_look_up_and_no_repeat(
    tenants: tuple[str, str], jobs: dict[str, JobType], bank: Provider, celery: Path, superuser: Any
) -> None:
    acted = Event()
    died = Event()

    def acts_and_never_answers(handler: Any, known: Provider, key: str, body: object) -> None:
        known.act(key, body)
        acted.set()
        died.wait(120)
        handler.close_connection = True

    bank.answers = [acts_and_never_answers]
    enqueue(tenants[0], job=jobs["fault.pay"])
    wait_until(acted.is_set, what=f"the worker called (see {celery})")
    os.kill(holder(superuser), signal.SIGKILL)
    died.set()
    let_leases_run_out(superuser)

    wait_until(lambda: states(superuser) == {"succeeded": 1}, what=f"another worker took over (see {celery})")

    assert row(tenants[0])["outcome_code"] == "paid_says_look_up"
    assert len(bank.effects) == 1
    assert bank.repeats == 0
    log = celery.read_text()
    assert tenants[0] not in log
    assert "op-1" not in log


def test_a_wrong_definition_stops_the_start_of_a_worker(start_celery: StartProcess) -> None:
    process, log = start_celery("worker", "--pool", "solo", FENCEWATCH_JOB_MODULES="tests.faults.no_such_jobs")

    wait_until(lambda: process.poll() is not None, what=f"the worker gave up (see {log})")

    assert process.returncode != 0
    assert "names tests.faults.no_such_jobs, which cannot be imported" in log.read_text()


def test_a_warm_shutdown_finishes_the_item_in_hand(
    tenants: tuple[str, str], jobs: dict[str, JobType], bank: Provider, start_celery: StartProcess, superuser: Any
) -> None:
    called, may_answer = Event(), Event()

    def answers_late(handler: Any, known: Provider, key: str, body: object) -> None:
        called.set()
        may_answer.wait(120)
        act_and_answer(handler, known, key, body)

    bank.answers = [answers_late]
    variables = {
        "FENCEWATCH_JOB_MODULES": "tests.faults.jobs",
        "FENCEWATCH_WAKE_EVERY_SECONDS": "1",
        "PROVIDER_URL": bank.url,
    }
    for number in range(3):
        enqueue(tenants[0], f"op-{number}", job=jobs["fault.pay"])
    start_celery("beat", **variables)
    process, log = start_celery("worker", "--concurrency", "1", **variables)
    wait_until(called.is_set, what=f"the worker called (see {log})")

    process.send_signal(signal.SIGTERM)
    wait_until(lambda: "Warm shutdown" in log.read_text(), what="the worker heard of the shutdown")
    may_answer.set()
    wait_until(lambda: process.poll() is not None, what=f"the worker ended (see {log})")

    assert states(superuser) == {"succeeded": 1, "queued": 2}
    assert len(bank.effects) == 1
