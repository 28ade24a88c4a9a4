"""Tasks: wake-ups for workers. They carry nothing and prove nothing; the work table is the record.

A wake-up that is lost costs one beat, one that comes twice finds nothing due. So: acknowledged early, never retried, no
result, and a publisher that cannot reach the broker goes on without it.
"""

import logging
import time
from collections.abc import Callable
from threading import Lock

from celery import shared_task
from django.conf import settings
from django.db import connections, transaction

from workitems import protocol
from workitems.jobs import registry
from workitems.jobs.worker import never, work_until_idle

log = logging.getLogger(__name__)

BROKER_REST_SECONDS = 5.0  # after a failed publish nobody tries again for so long: enqueuing must not wait for a broker
SWEEP_ROWS = 1_000
SWEEP_ROUNDS = 20

# Set by the process that runs the worker: whether it was asked to shut down.
shutting_down: Callable[[], bool] = never


class Publisher:
    """Sends wake-ups as well as it can, and counts those that it could not send."""

    def __init__(self) -> None:
        self.unsent = 0
        self._rests_until = 0.0
        self._lock = Lock()

    def __call__(self) -> None:
        with self._lock:
            resting = time.monotonic() < self._rests_until or not settings.CELERY_BROKER_URL
            self.unsent += resting
        if resting:
            return
        try:
            wake.apply_async(retry=False)
        except Exception as error:  # noqa: BLE001 - whatever a broker's driver raises, the commit stands
            with self._lock:
                self.unsent += 1
                self._rests_until = time.monotonic() + BROKER_REST_SECONDS
            log.warning("wake-up not sent; the next beat finds the work (%s)", type(error).__name__)


publish = Publisher()


def wake_on_commit(*, using: str = "worker") -> None:
    """Wake a worker once the transaction on `using` has committed; at once if none is open.

    Never raises and never waits long: with the broker away, the periodic wake-up finds the work.
    """
    transaction.on_commit(publish, using=using, robust=True)


@shared_task(
    name="fencewatch.wake",
    acks_late=False,
    ignore_result=True,
    max_retries=0,
    expires=settings.WAKE_EXPIRES_SECONDS,
    soft_time_limit=settings.WAKE_SOFT_LIMIT_SECONDS,
    time_limit=settings.WAKE_SOFT_LIMIT_SECONDS + 30,
)
def wake() -> None:
    """Work until nothing is due, the time budget is spent or a shutdown was asked for."""
    started = time.monotonic()
    connections["worker"].close_if_unusable_or_obsolete()

    def stop() -> bool:
        # Near the soft limit batch-mates are given back, before the limit strikes in the middle of one.
        return shutting_down() or time.monotonic() - started > settings.WAKE_SOFT_LIMIT_SECONDS - 5

    try:
        counted = work_until_idle(registry.job_types().values(), seconds=settings.WAKE_BUDGET_SECONDS, stop=stop)
    except Exception as error:
        # Most often the database is away. Not raised: Celery would print the message, which may quote a row.
        log.error("wake-up ended early", exc_info=error)
        return
    if counted:
        log.info("woke: %s", ", ".join(f"{count} {ended}" for ended, count in sorted(counted.items())))


@shared_task(
    name="fencewatch.sweep", acks_late=False, ignore_result=True, max_retries=0, expires=settings.WAKE_EXPIRES_SECONDS
)
def sweep() -> None:
    """Move on what ran out of attempts and lease. Two at once do no harm."""
    connections["keeper"].close_if_unusable_or_obsolete()
    try:
        for _ in range(SWEEP_ROUNDS):
            swept = protocol.sweep(limit=SWEEP_ROWS, using="keeper")
            moved = swept.queued + swept.failed_terminal + swept.unknown
            if moved:
                log.info("swept: %d queued, %d failed, %d unknown", swept.queued, swept.failed_terminal, swept.unknown)
            if moved < SWEEP_ROWS or shutting_down():
                return
    except Exception as error:
        log.error("sweep ended early", exc_info=error)
