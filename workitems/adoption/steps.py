"""
The steps of an adoption but the rows and the flip. Each may be stopped at any moment and done again: what is done already is
seen in the catalog.
"""

import time
from typing import Any

from django.db import connections, transaction

from workitems.adoption import template
from workitems.adoption.inspection import CannotAdopt, quoted
from workitems.adoption.locks import PATIENCE_SECONDS, Say, holders, patiently
from workitems.adoption.rows import UNFILLED, add_tenants, backfill
from workitems.guards import sql

LEFT = "adopting_left"
UNNUMBERED = "adopting_item_id"


def add_columns(*, using: str, say: Say) -> None:
    """Every column that the article's table has not, without rewriting it, and the trigger that fills them from now on."""

    def step(cursor: Any) -> None:
        wanted = template.read(cursor).columns
        cursor.execute("SELECT attname FROM pg_attribute WHERE attrelid = 'public.work_item'::regclass AND attnum > 0")
        live = {name for (name,) in cursor.fetchall()}
        parts = []
        for column in wanted:
            if column.name in live:
                continue
            if column.is_identity:
                default = ""  # numbered by the trigger, an identity at the flip
            elif column.default is None or column.is_constant:
                default = f" DEFAULT {column.default}" if column.default else ""
                default += " NOT NULL" if column.not_null else ""
            else:
                # One value for every row that is there, kept in the catalog; the trigger puts the true one.
                default = " DEFAULT CURRENT_TIMESTAMP NOT NULL"
            parts.append(f"ADD COLUMN {column.name} {column.type}{default}")
        if parts:
            cursor.execute(f"ALTER TABLE public.work_item {', '.join(parts)}")
        cursor.connection.execute(sql("guards/identity.sql").encode())
        cursor.connection.execute(sql("adoption/adopting.sql").encode())

    with connections[using].cursor() as cursor:
        cursor.execute("SELECT to_regprocedure('fencewatch.adopting()') IS NOT NULL")
        if cursor.fetchone()[0]:
            return
    patiently(step, using=using, say=say)
    say("columns added; from now on every write fills them")


def _create_index(name: str, definition: str, *, using: str) -> bool:
    with connections[using].cursor() as cursor:
        cursor.execute(
            "SELECT x.indisvalid FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid WHERE i.relname = %s"
            " AND i.relnamespace = 'public'::regnamespace",
            [name],
        )
        found = cursor.fetchone()
        if found is not None and found[0]:
            return False
        if found is not None:  # left by a run that was stopped
            cursor.execute(f"DROP INDEX CONCURRENTLY public.{name}")
        cursor.execute(definition.replace("INDEX ", "INDEX CONCURRENTLY ", 1))
    return True


def add_indexes(*, using: str, say: Say) -> None:
    """Every index, without keeping a writer waiting; the one of what is left to carry over among them."""
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        wanted = template.read(cursor)
    _create_index(LEFT, f"CREATE INDEX {LEFT} ON public.work_item (tenant_id) WHERE {UNFILLED}", using=using)
    for name, definition in wanted.indexes.items():
        if _create_index(name, definition, using=using):
            say(f"index {name} made")
    with connections[using].cursor() as cursor:
        cursor.execute(f"ALTER TABLE public.work_item SET ({', '.join(wanted.settings)})")


def finish_rows(*, using: str, say: Say) -> None:
    """
    What was locked, or new, while the rows were carried over; then the proof that each has its number.

    Raises CannotAdopt when somebody holds a row all the time.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    told = False
    while True:
        add_tenants(using=using)
        backfill(using=using, say=say)
        with connections[using].cursor() as cursor:
            cursor.execute(f"SELECT 1 FROM public.work_item WHERE {UNFILLED} LIMIT 1")
            if cursor.fetchone() is None:
                break
        if time.monotonic() > deadline:
            raise CannotAdopt(
                f"Some rows were held by others for {PATIENCE_SECONDS:.0f} s: end the transactions that hold them (now:"
                f" {holders(using)}) and run `manage.py adopt` again, it goes on from here."
            )
        if not told:
            say(f"waiting for rows that others hold (now: {holders(using)})")
            told = True
        time.sleep(0.2)
    with connections[using].cursor() as cursor:
        cursor.execute(
            "SELECT convalidated FROM pg_constraint WHERE conname = %s AND conrelid = 'public.work_item'::regclass",
            [UNNUMBERED],
        )
        found = cursor.fetchone()
    if found is None:
        patiently(
            lambda cursor: cursor.execute(
                f"ALTER TABLE public.work_item ADD CONSTRAINT {UNNUMBERED} CHECK (item_id IS NOT NULL) NOT VALID"
            ),
            using=using,
            say=say,
        )
    if found is None or not found[0]:
        with connections[using].cursor() as cursor:
            cursor.execute(f"ALTER TABLE public.work_item VALIDATE CONSTRAINT {UNNUMBERED}")


def validate(*, using: str, say: Say) -> None:
    """Hold every row against the constraints, beside the workers; then the adoption's own index goes."""
    with connections[using].cursor() as cursor:
        cursor.execute(
            "SELECT conname FROM pg_constraint WHERE conrelid = 'public.work_item'::regclass AND NOT convalidated ORDER BY 1"
        )
        for (name,) in cursor.fetchall():
            cursor.execute(f"ALTER TABLE public.work_item VALIDATE CONSTRAINT {quoted(name)}")
        cursor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS public.{LEFT}")
        cursor.execute("ANALYZE public.work_item")
    say("every row is as the constraints say")
