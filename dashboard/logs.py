"""Logs as JSON lines without identifiers: an exception is told by its type and frames, a request by its path."""

import logging
import logging.config
import sys
import traceback
from typing import Any

import structlog
from django.core.exceptions import ImproperlyConfigured
from django.urls import Resolver404, get_script_prefix, resolve
from structlog.typing import EventDict, WrappedLogger

FRAMES = 12
NOT_OURS = "(an address of no page)"


def exception_without_values(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """
    Replace exc_info by the exception's type and place.

    Messages of drivers and libraries quote the row, the parameter or the payload at hand, so they stay out of the logs.
    """
    given = event.pop("exc_info", None)
    error = sys.exc_info()[1] if given is True else given[1] if isinstance(given, tuple) else given
    if not isinstance(error, BaseException):
        return event
    event["exception"] = f"{type(error).__module__}.{type(error).__qualname__}"
    if sqlstate := getattr(error, "sqlstate", None):
        event["sqlstate"] = sqlstate
    frames = traceback.extract_tb(error.__traceback__)[-FRAMES:]
    event["frames"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
    if event.get("logger") == "celery.app.trace":
        # Celery writes the exception's text and the task's arguments into the line itself.
        event["event"] = "task raised"
    return event


def request_without_raw_text(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """
    Leave of a request its method and its path, and the path only where it is one of ours.

    What people type into an address by hand, in the query string or as a path, may be a raw identifier.
    """
    if isinstance(event.get("request"), str):
        verb, _, path = event["request"].partition("?")[0].partition(" ")
        event["request"] = f"{verb} {path if _is_ours(path) else NOT_OURS}"
    return event


def _is_ours(path: str) -> bool:
    try:
        resolve("/" + path.removeprefix(get_script_prefix()).lstrip("/"))
    except Resolver404:
        return False
    return True


_SHARED: list[Any] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    structlog.stdlib.PositionalArgumentsFormatter(),
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    request_without_raw_text,
    exception_without_values,
]


def configuration(*, level: str) -> dict[str, Any]:
    """For logging.config: one handler, to stderr, and the loggers that would say too much kept quiet."""
    if level not in {"DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"}:
        raise ImproperlyConfigured("FENCEWATCH_LOG_LEVEL is not one of DEBUG, INFO, WARNING, ERROR, CRITICAL.")
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "json": {
                "()": structlog.stdlib.ProcessorFormatter,
                "processors": [
                    structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                    structlog.processors.JSONRenderer(ensure_ascii=True),
                ],
                "foreign_pre_chain": _SHARED,
            }
        },
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json"}},
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": {
            # Statements with their parameters: never, whatever the level.
            "django.db.backends": {"level": "WARNING"},
            # "Not Found: /path" repeats what the request's own line says.
            "django.request": {"level": "ERROR"},
            # A refused Host header is an attacker's text.
            "django.security.DisallowedHost": {"level": "CRITICAL"},
            "httpx": {"level": "WARNING"},
            "botocore": {"level": "WARNING"},
        },
    }


def configure(settings: dict[str, Any]) -> None:
    """Set up logging and structlog alike, so that libraries' lines look like ours."""
    logging.config.dictConfig(settings)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_SHARED,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
