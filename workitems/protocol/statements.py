"""Named statements: loaded once from .sql files, run by name on a Django connection."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
from django.db import connections
from django.db.backends.utils import CursorWrapper
from psycopg.errors import Diagnostic

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_UNREPLICATED = "01000"  # "canceling wait for synchronous replication": committed here, perhaps nowhere else


@cache
def statements(path: Path) -> Mapping[str, str]:
    """The statements of one file by name: each begins at its `-- name:` line and ends before the next."""
    parts = _NAME.split(path.read_text(encoding="utf-8"))
    return {name: body.strip().rstrip(";") for name, body in zip(parts[1::2], parts[2::2], strict=True)}


PROTOCOL = Path(__file__).with_name("protocol.sql")


@contextmanager
def run(name: str, parameters: Mapping[str, Any], *, using: str) -> Iterator[CursorWrapper]:
    """Run a statement of protocol.sql; the cursor gives its rows."""
    with connections[using].cursor() as cursor:
        cursor.execute(statements(PROTOCOL)[name], parameters)
        yield cursor


class ReplicationWatch:
    """Whether a commit went unreplicated while this was watching."""

    def __init__(self) -> None:
        self.unreplicated = False

    def __call__(self, notice: Diagnostic) -> None:
        if notice.sqlstate == _UNREPLICATED and "synchronous replication" in (notice.message_primary or ""):
            self.unreplicated = True


@contextmanager
def watch_replication(using: str) -> Iterator[ReplicationWatch]:
    """Notice a cancelled wait for synchronous replication: the server then answers success with a warning only."""
    wrapper = connections[using]
    wrapper.ensure_connection()
    connection: psycopg.Connection[Any] = wrapper.connection
    watch = ReplicationWatch()
    connection.add_notice_handler(watch)
    try:
        yield watch
    finally:
        connection.remove_notice_handler(watch)
