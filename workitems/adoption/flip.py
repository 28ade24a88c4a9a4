"""The flip: one transaction that holds the table for a moment, from which on the database decides."""

import json
from typing import Any

from workitems.adoption import template
from workitems.adoption.inspection import quoted
from workitems.adoption.locks import LOCK_MILLISECONDS, Say, patiently
from workitems.adoption.rows import UNFILLED
from workitems.adoption.steps import UNNUMBERED, finish_rows
from workitems.guards import install
from workitems.said import said


class _NotYet(Exception):
    """A tenant came up while the table was being taken."""


def flip(*, using: str, say: Say, workers: tuple[str, ...], others: tuple[str, ...]) -> None:
    """
    Defaults, identity, constraints, guard, policies and rights, and of the old workers' rights what fencewatch_worker has.

    ``others``: roles that may read the table; row security names none of them, so their rights go too.
    """

    def step(cursor: Any) -> None:
        wanted = template.read(cursor)
        cursor.execute(f"UPDATE public.work_item SET state = state WHERE {UNFILLED}")
        cursor.execute(f"SELECT 1 FROM public.work_item WHERE {UNFILLED} LIMIT 1")
        if cursor.fetchone():
            raise _NotYet
        cursor.execute("SELECT nextval('fencewatch.adopting_item')")
        (next_item,) = cursor.fetchone()
        cursor.execute(
            "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint"
            " WHERE conrelid = 'public.work_item'::regclass AND contype = 'c'"
        )
        live = dict(cursor.fetchall())
        parts = [
            f"ALTER COLUMN {column.name} " + (f"SET DEFAULT {column.default}" if column.default else "DROP DEFAULT")
            for column in wanted.columns
            if not column.is_identity
        ]
        parts += [
            f"DROP CONSTRAINT {quoted(name)}"
            for name, definition in live.items()
            if name not in wanted.constraints and (name == UNNUMBERED or definition in wanted.constraints.values())
        ]
        parts += [
            f"ADD CONSTRAINT {name} {definition} NOT VALID"
            for name, definition in wanted.constraints.items()
            if name not in live
        ]
        cursor.execute("ALTER TABLE public.work_item ALTER COLUMN item_id SET NOT NULL")  # by the proof that is there
        cursor.execute(f"ALTER TABLE public.work_item {', '.join(parts)}")
        cursor.execute(
            f"ALTER TABLE public.work_item ALTER COLUMN item_id ADD GENERATED ALWAYS AS IDENTITY (START WITH {next_item})"
        )
        cursor.execute("DROP TRIGGER adopting ON public.work_item")
        cursor.execute("DROP SEQUENCE fencewatch.adopting_item")
        _rename_key(cursor)
        install.lay(cursor)
        cursor.execute(f"SET LOCAL lock_timeout = {LOCK_MILLISECONDS}")
        for role in (*workers, *others):
            whom = "PUBLIC" if role == "PUBLIC" else quoted(role)
            cursor.execute(f"REVOKE ALL ON public.work_item FROM {whom}")
        _raise_ceiling(cursor, using=using)
        with said(reason="adoption: the table's workers see the tenants that they saw", using=using):
            for worker in workers:
                cursor.execute("SELECT fencewatch.allow_worker(%s, NULL)", [worker])
        cursor.execute("UPDATE fencewatch.adoption SET flipped_at = clock_timestamp()")

    while True:
        try:
            patiently(step, using=using, say=say)
        except _NotYet:
            finish_rows(using=using, say=say)
        else:
            return


def _rename_key(cursor: Any) -> None:
    cursor.execute(
        "SELECT conname FROM pg_constraint WHERE conrelid = 'public.work_item'::regclass AND contype = 'p'"
        "   AND conname <> 'work_item_pkey'"
    )
    for (name,) in cursor.fetchall():
        cursor.execute(f"ALTER TABLE public.work_item RENAME CONSTRAINT {quoted(name)} TO work_item_pkey")


def _raise_ceiling(cursor: Any, *, using: str) -> None:
    """Producers that are there grant as many attempts as they did."""
    cursor.execute("SELECT most_attempts FROM fencewatch.adoption")
    (most,) = cursor.fetchone()
    cursor.execute("SELECT max_attempts FROM public.job_type WHERE name = 'legacy'")
    (now,) = cursor.fetchone()
    if most > now:
        with said(reason="adoption: what the table's producers grant", using=using):
            cursor.execute(
                "SELECT fencewatch.put_job_type(%s::jsonb)",
                [json.dumps({"name": "legacy", "max_attempts": most, "attempts_ceiling": most})],
            )
