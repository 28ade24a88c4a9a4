"""
Adoption: a work table of the article's shape that is there already becomes Fencewatch's, in place, while its workers go on.

Columns are added without rewriting; a trigger puts right what each write leaves; batches carry the rows over; indexes are
built beside the writers; then one short transaction lays guard, policies and rights, and the constraints are proved.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.core.management import call_command
from django.db import connections

from workitems.adoption import rows as carrying
from workitems.adoption import steps
from workitems.adoption.flip import flip
from workitems.adoption.inspection import CannotAdopt, inspect, inspect_rows, quoted, taken_names
from workitems.adoption.locks import Say, one_at_a_time
from workitems.guards import install

__all__ = ["CannotAdopt", "Report", "adopt", "report", "script"]


@dataclass(frozen=True, kw_only=True)
class Report:
    """What an adoption did: rows carried over, and how many of them were put right in which way."""

    started_at: datetime
    flipped_at: datetime | None
    finished_at: datetime | None
    workers: tuple[str, ...]
    rows: int
    normalised: dict[str, int]


def script(*, workers: Iterable[str]) -> str:
    """What a DBA runs after the script of `manage.py roles`, best in one transaction with it. Raises CannotAdopt."""
    roles = ", ".join(_worker(worker) for worker in workers)
    if not roles:
        raise CannotAdopt("Name each role that the table's workers and producers sign in as: --worker NAME.")
    return f"""\
SET lock_timeout = '1s';
DO $adopt$
BEGIN
    IF EXISTS (SELECT FROM pg_class WHERE oid = 'public.work_item'::regclass AND relforcerowsecurity) THEN
        RAISE NOTICE 'public.work_item is adopted already: nothing is changed';
        RETURN;
    END IF;
    ALTER TABLE public.work_item OWNER TO fencewatch_owner;
    -- what the workers had as owners or through PUBLIC, so that they go on
    GRANT USAGE ON SCHEMA public TO {roles};
    GRANT SELECT, INSERT, UPDATE, DELETE ON public.work_item TO {roles};
    EXECUTE 'GRANT TEMPORARY ON DATABASE ' || quote_ident(current_database()) || $to$ TO {roles} $to$;
    -- what they will have once the table is adopted
    GRANT fencewatch_worker TO {roles} WITH INHERIT TRUE, SET FALSE;
END
$adopt$;
RESET lock_timeout;
"""


def _worker(role: str) -> str:
    if not role or "\x00" in role or "$" in role or role.startswith("fencewatch_"):
        raise CannotAdopt(
            "A worker is named by the role that it signs in as, one that was there before Fencewatch; no $ in it."
        )
    return quoted(role)


def report(*, using: str = "owner") -> Report | None:
    """What the adoption of this database's work table did up to now; None where the table is not an adopted one."""
    with connections[using].cursor() as cursor:
        cursor.execute(
            "SELECT EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE n.nspname = 'fencewatch' AND c.relname = 'adoption')"
        )
        if not cursor.fetchone()[0]:
            return None
        cursor.execute(
            "SELECT started_at, flipped_at, finished_at, workers::text[], rows, normalised FROM fencewatch.adoption"
        )
        found = cursor.fetchone()
    if found is None:
        return None
    started_at, flipped_at, finished_at, workers, rows, normalised = found
    return Report(
        started_at=started_at,
        flipped_at=flipped_at,
        finished_at=finished_at,
        workers=tuple(workers),
        rows=rows,
        normalised=carrying.counted(normalised),
    )


def adopt(*, workers: Iterable[str], using: str = "owner", say: Say = print) -> Report:
    """
    Adopt public.work_item, or go on where an earlier run was stopped; a second run changes nothing.

    ``workers``: the roles that its workers and producers sign in as, which become members of fencewatch_worker. ``say`` gets
    a line now and then. Raises CannotAdopt with the reasons, before anything is changed or with everything kept that is done.
    """
    named = tuple(dict.fromkeys(workers))
    with one_at_a_time(using=using, say=say):
        so_far = report(using=using)
        if so_far is None or so_far.flipped_at is None:
            _carry_over(named or (so_far.workers if so_far else ()), using=using, say=say)
        if so_far is None or so_far.finished_at is None:
            steps.validate(using=using, say=say)
            with connections[using].cursor() as cursor:
                cursor.execute("UPDATE fencewatch.adoption SET finished_at = clock_timestamp()")
    found = report(using=using)
    assert found is not None
    return found


def _carry_over(workers: tuple[str, ...], *, using: str, say: Say) -> None:
    if not workers:
        raise CannotAdopt("Name each role that the table's workers and producers sign in as: --worker NAME.")
    with connections[using].cursor() as cursor:
        if _is_ours(cursor):
            raise CannotAdopt("public.work_item is Fencewatch's already: there is nothing to adopt.")
        table = inspect(cursor, workers=workers)
        if taken := taken_names(cursor):
            raise CannotAdopt(
                f"These names of Fencewatch's tables are taken in schema public: {', '.join(taken)}. Rename those tables,"
                " or move the work table to a database of its own."
            )
        say(f"about {table.rows:,} rows to carry over; reading each once before anything is changed")
        most = inspect_rows(cursor)
    if table.extra_columns:
        say(f"columns that are kept and that nothing of Fencewatch's reads: {', '.join(table.extra_columns)}")
    if table.others:
        say(f"roles that will read no row any more, since row security names none of them: {', '.join(table.others)}")
    _migrate(using)
    with connections[using].cursor() as cursor:
        cursor.execute(
            "INSERT INTO fencewatch.adoption (workers, most_attempts) VALUES (%s::name[], %s)"
            " ON CONFLICT (only_row) DO UPDATE SET workers = excluded.workers, most_attempts = excluded.most_attempts",
            [list(workers), most],
        )
    steps.add_columns(using=using, say=say)
    carrying.add_tenants(using=using)
    carrying.backfill(using=using, say=say)
    steps.add_indexes(using=using, say=say)
    steps.finish_rows(using=using, say=say)
    flip(using=using, say=say, workers=workers, others=table.others)
    say("guard, policies and rights are laid: from now on the database decides")


def _is_ours(cursor: Any) -> bool:
    cursor.execute("SELECT to_regclass('public.work_item') IS NOT NULL")
    return bool(cursor.fetchone()[0]) and not install.is_being_adopted(cursor)


def _migrate(using: str) -> None:
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT set_config(%s, 'on', false)", [install.ADOPTING])
        try:
            call_command("migrate", database=using, interactive=False, verbosity=0)
        finally:
            cursor.execute("SELECT set_config(%s, '', false)", [install.ADOPTING])
