"""Celery: `celery -A dashboard worker` and `celery -A dashboard beat`. Brings wake-ups to workers, nothing else."""

import logging
import os
import sys
from multiprocessing.sharedctypes import RawValue
from typing import Any

from celery import Celery, signals
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from dashboard import environment

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")

try:
    settings.WAKE_EVERY_SECONDS  # noqa: B018 reads the settings
except ImproperlyConfigured as error:
    # Only Celery's own command comes here before Django has read them: one sentence for whoever starts it, no stack.
    sys.exit(f"Fencewatch cannot start: {error}")

# One byte that forked children share with their parent: only the parent hears of a shutdown. No lock: a child that is
# killed would hold it for ever.
_shutting_down = RawValue("b", 0)

app = Celery("fencewatch")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.conf.update(
    imports=("workitems.jobs.tasks", "workitems.oversight.tasks"),
    # In memory: a schedule of seconds needs no file that remembers when it last ran.
    beat_scheduler="celery.beat:Scheduler",
    beat_schedule={
        "wake": {"task": "fencewatch.wake", "schedule": settings.WAKE_EVERY_SECONDS},
        "sweep": {"task": "fencewatch.sweep", "schedule": settings.SWEEP_EVERY_SECONDS},
        "seal": {"task": "fencewatch.seal", "schedule": settings.SEAL_EVERY_SECONDS},
    },
)


@signals.setup_logging.connect
def keep_django_logging(**_: Any) -> None:
    """Being connected keeps Celery from setting up loggers of its own, which would print tracebacks with messages."""
    for noisy in ("celery.worker.strategy", "celery.app.trace", "celery.beat"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    logging.getLogger("celery.beat").addFilter(name_unsent_task)


def name_unsent_task(record: logging.LogRecord) -> bool:
    """Tell in one line that beat could not send a task: a broker that is away is no matter for a stack every few seconds."""
    error = record.exc_info[1] if record.exc_info else None
    if error is not None and str(record.msg).startswith("Message Error"):
        record.msg = "due task not sent; the next beat tries again (%s)"
        record.args = (type(error.__context__ or error).__name__,)  # beat's own wrapper says nothing
        record.exc_info = None
    return True


@signals.celeryd_init.connect
def require_worker_settings(**_: Any) -> None:
    """Refuse a worker that could not reach its queue, its items or its sweep."""
    _require("CELERY_BROKER_URL", because="workers are woken through it")
    _require("WORKER_DATABASE_URL", because="workers claim under that role")
    _require("KEEPER_DATABASE_URL", because="sweeps run under that role")
    from dashboard.checks import require_bound_roles

    require_bound_roles("worker", "keeper")


@signals.beat_init.connect
def require_beat_settings(**_: Any) -> None:
    """Refuse a beat that has nobody to wake."""
    _require("CELERY_BROKER_URL", because="beat wakes workers through it")


def _require(name: str, *, because: str) -> None:
    try:
        environment.required(name, because=because)
    except ImproperlyConfigured as error:
        sys.exit(f"Fencewatch cannot start: {error}")


@signals.import_modules.connect(sender=app)
def load_job_types(**_: Any) -> None:
    """Import the job types; a wrong definition stops the start with its sentence."""
    from workitems.errors import BadJobType
    from workitems.jobs import registry, tasks

    tasks.shutting_down = lambda: bool(_shutting_down.value)
    try:
        registry.load(settings.JOB_MODULES)
    except BadJobType as error:
        sys.exit(f"Fencewatch cannot start: {error}")


@signals.worker_shutting_down.connect
def tell_children(**_: Any) -> None:
    """Let the running wake-ups end after the item in hand."""
    _shutting_down.value = 1
