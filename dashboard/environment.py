"""Typed readers of environment variables. A bad value raises one sentence that names the variable, never its content."""

import os
import re
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from psycopg import IsolationLevel, ProgrammingError
from psycopg.conninfo import conninfo_to_dict


def text(name: str, *, default: str = "") -> str:
    """The value without the space around it; the default where it is absent or empty."""
    return os.environ.get(name, "").strip() or default


def required(name: str, *, because: str) -> str:
    """A value that the start cannot do without."""
    value = text(name)
    if not value:
        raise ImproperlyConfigured(f"{name} is missing: {because}.")
    return value


def flag(name: str, *, default: bool = False) -> bool:
    """A switch: 1 or 0."""
    value = text(name, default="1" if default else "0").lower()
    if value not in {"0", "1", "true", "false", "yes", "no", "on", "off"}:
        raise ImproperlyConfigured(f"{name} is not a switch: give 1 or 0.")
    return value in {"1", "true", "yes", "on"}


def number(name: str, *, default: int, least: int, most: int) -> int:
    """A whole number within bounds that are part of it."""
    value = text(name, default=str(default))
    if not re.fullmatch(r"[0-9]{1,9}", value) or not least <= int(value) <= most:
        raise ImproperlyConfigured(f"{name} is not a whole number from {least} to {most}.")
    return int(value)


def words(name: str) -> list[str]:
    """What stands between commas."""
    return [word.strip() for word in text(name).split(",") if word.strip()]


def key(name: str) -> bytes | None:
    """32 bytes written as 64 hexadecimal characters, or None where the variable is absent."""
    value = text(name)
    if not value:
        return None
    if not re.fullmatch(r"[0-9a-fA-F]{64}", value):
        raise ImproperlyConfigured(f"{name} is not 64 hexadecimal characters: make one with `openssl rand -hex 32`.")
    return bytes.fromhex(value)


def address(name: str, *, schemes: tuple[str, ...]) -> str:
    """An address with one of the schemes, or nothing."""
    value = text(name)
    if value and not re.fullmatch(rf"({'|'.join(schemes)})://[^\s]+", value):
        raise ImproperlyConfigured(
            f"{name} is not an address that starts with {' or '.join(s + '://' for s in schemes)}."
        )
    return value


def path_prefix(name: str) -> str | None:
    """The path below which a proxy serves the pages, without a slash at its end."""
    value = text(name).rstrip("/")
    if not value:
        return None
    if not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", value):
        raise ImproperlyConfigured(f"{name} is not a path such as /fencewatch.")
    return value


def database(
    name: str, *, application: str, settings: dict[str, str] | None, pool: int = 0, **options: Any
) -> dict[str, Any]:
    """
    A Django database from a PostgreSQL URL; empty where the variable is absent.

    ``settings`` are PostgreSQL settings of each session; None asks for none and keeps nothing on the session, so that a
    pooler in transaction mode may stand between. ``pool`` is the most connections a process may hold (0: no pool). The
    URL's own parameters (sslmode, several hosts with target_session_attrs, ...) are passed on.
    """
    value = text(name)
    if not value:
        return {}
    if not re.match(r"postgres(ql)?://", value):
        raise ImproperlyConfigured(f"{name} is not a URL of the form postgresql://role:password@host:port/database.")
    try:
        parts = conninfo_to_dict(value)
    except ProgrammingError:
        # libpq's own message quotes the URL, and with it the password.
        raise ImproperlyConfigured(f"{name} cannot be read as a PostgreSQL URL.") from None
    absent = [part for part in ("user", "dbname") if not parts.get(part)]
    if absent:
        raise ImproperlyConfigured(f"{name} names no {' and no '.join(absent)}.")
    if not re.fullmatch(r"[0-9,]*", str(parts.get("port", ""))):
        raise ImproperlyConfigured(f"{name} names a port that is not a number.")
    named = {part: parts.pop(part, "") for part in ("dbname", "user", "password", "host", "port", "options")}
    session = str(named["options"] or "")
    if settings is not None:
        # The driver's isolation level reaches explicit transactions only; single statements follow the session's default.
        pinned = {"default_transaction_isolation": r"read\ committed", **settings}
        session = " ".join([session, *(f"-c {word}={setting}" for word, setting in pinned.items())]).strip()
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": named["dbname"],
        "USER": named["user"],
        "PASSWORD": named["password"],
        "HOST": named["host"],
        "PORT": str(named["port"] or ""),
        "TIME_ZONE": "UTC",
        "ATOMIC_REQUESTS": False,
        # A pool and Django's persistent connections exclude each other.
        "CONN_MAX_AGE": 0 if pool else 60,
        "CONN_HEALTH_CHECKS": not pool,
        "DISABLE_SERVER_SIDE_CURSORS": settings is None,
        "OPTIONS": {
            "application_name": f"fencewatch {application}",
            "connect_timeout": 5,
            **({"options": session} if session else {}),
            # Values bound by the server do not stand in pg_stat_activity, where each session of the role could read them.
            "server_side_binding": True,
            "isolation_level": IsolationLevel.READ_COMMITTED,
            **({"pool": {"min_size": 0, "max_size": pool, "timeout": 5}} if pool else {}),
            **parts,
            **options,
        },
    }
