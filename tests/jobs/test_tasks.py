"""Wake-ups: sent after the commit, carrying nothing, never in the way."""

import logging
from typing import Any

import pytest
from celery import Celery
from celery.beat import Scheduler
from celery.schedules import schedule
from django.db import transaction

from dashboard.celery import name_unsent_task
from tests.jobs.stage import defined, enqueue, let_leases_run_out, standing
from workitems import protocol
from workitems.jobs import Target, tasks


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch, settings_broker: None) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(
        tasks.wake, "apply_async", lambda *arguments, **options: calls.append({"arguments": arguments, **options})
    )
    return calls


@pytest.fixture
def settings_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    from django.conf import settings

    monkeypatch.setattr(settings, "CELERY_BROKER_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setattr(tasks.publish, "_rests_until", 0.0)
    monkeypatch.setattr(tasks.publish, "unsent", 0)


def test_a_wake_up_waits_for_the_commit_and_carries_nothing(database: Any, sent: list[dict[str, Any]]) -> None:
    with transaction.atomic(using="worker"):
        tasks.wake_on_commit()
        assert sent == []

    assert sent == [{"arguments": (), "retry": False}]


def test_a_rollback_wakes_nobody(database: Any, sent: list[dict[str, Any]]) -> None:
    with transaction.atomic(using="worker"):
        tasks.wake_on_commit()
        transaction.set_rollback(True, using="worker")

    assert sent == []


@pytest.mark.usefixtures("settings_broker")
def test_a_broker_that_is_away_is_counted_and_not_waited_for(database: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[object] = []

    def is_away(*arguments: Any, **options: Any) -> None:
        tried.append(options)
        raise ConnectionError

    monkeypatch.setattr(tasks.wake, "apply_async", is_away)

    for _ in range(3):
        with transaction.atomic(using="worker"):
            tasks.wake_on_commit()

    assert tasks.publish.unsent == 3
    assert len(tried) == 1, "after a failure the publisher rests"


@pytest.mark.usefixtures("settings_broker")
@pytest.mark.timeout(20)
def test_a_broker_that_refuses_connections_is_given_up_quickly(database: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks.wake.app.conf, "broker_url", "redis://127.0.0.1:1/0")

    tasks.wake_on_commit()

    assert tasks.publish.unsent == 1


@pytest.mark.timeout(20)
def test_a_beat_whose_broker_is_away_says_so_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    away = Celery("away", broker="redis://127.0.0.1:1/0", set_as_current=False)
    away.conf.task_publish_retry = False
    beat = Scheduler(app=away, lazy=True)
    beat_log = logging.getLogger("celery.beat")
    beat_log.addFilter(name_unsent_task)
    try:
        beat.apply_entry(beat.Entry(name="wake", task="fencewatch.wake", schedule=schedule(2.0), app=away))
    finally:
        beat_log.removeFilter(name_unsent_task)

    (record,) = caplog.records
    assert record.getMessage() == "due task not sent; the next beat tries again (OperationalError)"
    assert record.exc_info is None


def test_a_wake_up_works_on_every_registered_job_type(tenants: tuple[str, str]) -> None:
    for name in ("one.job", "two.job"):
        enqueue(tenants[0], name, job=defined(Target.A, name=name))

    tasks.wake()

    assert [standing(tenants[0], name)[0] for name in ("one.job", "two.job")] == ["succeeded"] * 2


def test_a_wake_up_of_a_worker_that_shuts_down_takes_nothing(
    tenants: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue(tenants[0], job=defined(Target.A))
    monkeypatch.setattr(tasks, "shutting_down", lambda: True)

    tasks.wake()

    assert standing(tenants[0])[0] == "queued"


def test_a_sweep_moves_on_what_ran_out(tenants: tuple[str, str], superuser: Any) -> None:
    job = defined(Target.D)
    enqueue(tenants[0], job=job)
    (claim,) = protocol.claim(job_type=job.name, worker="first")
    protocol.begin(claim)
    let_leases_run_out(superuser)

    tasks.sweep()
    tasks.sweep()

    assert standing(tenants[0])[0] == "unknown"


def test_a_database_that_is_away_ends_a_wake_up_without_a_traceback(
    tenants: tuple[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    defined(Target.A)

    def is_away(**_: Any) -> None:
        raise ConnectionError

    monkeypatch.setattr(protocol, "claim", is_away)
    monkeypatch.setattr(protocol, "sweep", is_away)

    tasks.wake()
    tasks.sweep()

    assert [record.getMessage() for record in caplog.records] == ["wake-up ended early", "sweep ended early"]


def test_messages_need_no_answer_and_are_acknowledged_before_the_work() -> None:
    for task in (tasks.wake, tasks.sweep):
        assert task.ignore_result is True
        assert task.acks_late is False
        assert task.expires
    assert tasks.wake.soft_time_limit < tasks.wake.time_limit
