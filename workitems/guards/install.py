"""Installing the SQL files: what can be replaced (functions, triggers, policies, rights) is laid anew as one transaction."""

import hashlib
from typing import Any

from django.core.management.base import CommandError
from django.db import connections, transaction

from workitems.guards import sql

# In this order; each leaves what it says, whatever an earlier version left. Tables are made by the migrations.
FILES = (
    "guards/clear.sql",
    "guards/identity.sql",
    "guards/guard.sql",
    "protocol/functions.sql",
    "guards/audit.sql",
    "operations/administration.sql",
    "operations/failovers.sql",
    "operations/rotation.sql",
    "operations/search.sql",
    "operations/actions.sql",
    "guards/triggers.sql",
    "guards/policies.sql",
)


def fingerprint() -> str:
    """What tells one version of the files from another."""
    return hashlib.sha256("\0".join(sql(name) for name in FILES).encode()).hexdigest()


def is_current(*, using: str = "owner") -> bool:
    """Whether the database was laid by this very text; not one that no migration has seen."""
    with connections[using].cursor() as cursor:
        return _is_migrated(cursor) and _laid(cursor) == fingerprint()


def _is_migrated(cursor: Any) -> bool:
    cursor.execute(
        "SELECT EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = 'fencewatch' AND c.relname = 'installed')"
    )
    return bool(cursor.fetchone()[0])


def _laid(cursor: Any) -> str | None:
    cursor.execute("SELECT fingerprint FROM fencewatch.installed")
    found = cursor.fetchone()
    return found and str(found[0])


def install(*, using: str = "owner", again: bool = False) -> bool:
    """Lay functions, triggers, policies and rights anew, unless the database has this very text; whether it did so.

    ``again`` lays them in any case. Takes the work table for itself for a moment; gives up, having changed nothing, when it
    cannot have it in 3 seconds.
    """
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        if not again and _laid(cursor) == fingerprint():
            return False
        lay(cursor)
    return True


def lay(cursor: Any) -> None:
    """Run every file on a cursor of the owner, within the caller's transaction."""
    cursor.execute("SET LOCAL lock_timeout = '3s'")
    cursor.execute("SET LOCAL check_function_bodies = off")  # functions of one file call those of another
    for name in FILES:
        _run(cursor, sql(name))
    cursor.execute(
        "INSERT INTO fencewatch.installed (fingerprint) VALUES (%s)"
        " ON CONFLICT (only_row) DO UPDATE SET fingerprint = excluded.fingerprint, at = clock_timestamp()",
        [fingerprint()],
    )


def _run(cursor: Any, text: str) -> None:
    # Django's cursor takes % for a placeholder only when it gets parameters; psycopg's own runs several statements at once.
    cursor.connection.execute(text.encode())


# Said by adopt on its own connection, for the migrations that it runs.
ADOPTING = "fencewatch.adopting"
UNADOPTED = (
    "public.work_item exists and is not Fencewatch's: `manage.py adopt` takes it over in place, rows and all, while its"
    " workers go on. `manage.py help adopt` says how."
)


def make_work_item(apps: Any, schema_editor: Any) -> None:
    """
    Migration 0001: make the work table; one that is there already is left to adopt.

    Raises CommandError where nobody adopts.
    """
    with schema_editor.connection.cursor() as cursor:
        cursor.execute(
            "SELECT coalesce(current_setting(%s, true), '') = 'on', EXISTS (SELECT FROM pg_class c"
            " WHERE c.relname = 'work_item' AND c.relnamespace = 'public'::regnamespace)",
            [ADOPTING],
        )
        adopting, exists = cursor.fetchone()
        if exists and not adopting:
            raise CommandError(UNADOPTED)
        if not exists:
            _run(cursor, sql("guards/work_item.sql"))


def is_being_adopted(cursor: Any) -> bool:
    """Whether the work table has not got its last column yet, or not its guard: adopt goes on with it."""
    cursor.execute(
        "SELECT EXISTS (SELECT FROM pg_class c WHERE c.relname = 'work_item' AND c.relnamespace = 'public'::regnamespace"
        " AND NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'item_id'"
        "                  AND a.attidentity = 'a'))"
    )
    return bool(cursor.fetchone()[0])


def after_migrate(*, using: str, **ignored: Any) -> None:
    """Receiver of post_migrate: the database has what this version of the files says."""
    if using != "owner":
        return
    with connections[using].cursor() as cursor:
        if not _is_migrated(cursor) or is_being_adopted(cursor):
            return
    install(using=using)
