"""
Taking the table for oneself for a moment, among workers that go on.

A request waits LOCK_MILLISECONDS at most, since whoever comes after it waits behind it; then it is made again later.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import OperationalError, connections, transaction
from psycopg.errors import LockNotAvailable

from workitems.adoption.inspection import CannotAdopt

LOCK_MILLISECONDS = 300
PATIENCE_SECONDS = 600.0
_ONE_AT_A_TIME = "hashtextextended('fencewatch.adopt', 0)"

type Say = Callable[[str], None]


@contextmanager
def one_at_a_time(*, using: str, say: Say) -> Iterator[None]:
    """One adoption of a database at a time: the session of a run that was killed may still end its last statement."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    told = False
    with connections[using].cursor() as cursor:
        while True:
            cursor.execute(f"SELECT pg_try_advisory_lock({_ONE_AT_A_TIME})")
            if cursor.fetchone()[0]:
                break
            if time.monotonic() > deadline:
                raise CannotAdopt("Another run of `manage.py adopt` is at work on this database: let it end.")
            if not told:
                say("waiting for another run of adopt, or for the last statement of one that was stopped")
                told = True
            time.sleep(0.5)
        try:
            yield
        finally:
            cursor.execute(f"SELECT pg_advisory_unlock({_ONE_AT_A_TIME})")


def patiently(step: Callable[[Any], None], *, using: str, say: Say) -> None:
    """
    Do a step that needs the table for itself, in a transaction; where others hold it, ask again until it is free for a moment.

    Raises CannotAdopt, with who holds it, when it never was.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    told = False
    while True:
        try:
            with transaction.atomic(using=using), connections[using].cursor() as cursor:
                cursor.execute(f"SET LOCAL lock_timeout = {LOCK_MILLISECONDS}")
                cursor.execute("LOCK TABLE public.work_item IN ACCESS EXCLUSIVE MODE")
                step(cursor)
                return
        except (OperationalError, LockNotAvailable) as error:
            if not isinstance(error, LockNotAvailable) and not isinstance(error.__cause__, LockNotAvailable):
                raise
        now = holders(using)
        if time.monotonic() > deadline:
            raise CannotAdopt(
                f"The table was never free for {LOCK_MILLISECONDS} ms within {PATIENCE_SECONDS:.0f} s: end the transactions"
                f" that hold it (now: {now}) and run `manage.py adopt` again, it goes on from here."
            )
        if not told:
            say(f"waiting for a moment without long transactions on the table (now: {now})")
            told = True
        time.sleep(0.5)


def holders(using: str) -> str:
    """Who holds the work table now, by pid and role."""
    with connections[using].cursor() as cursor:
        cursor.execute(
            "SELECT string_agg(DISTINCT 'pid ' || l.pid || ' of ' || coalesce(a.usename, '?'), ', ') FROM pg_locks l"
            " JOIN pg_stat_activity a ON a.pid = l.pid WHERE l.relation = 'public.work_item'::regclass AND l.granted"
            "  AND l.pid <> pg_backend_pid()"
        )
        (found,) = cursor.fetchone()
    return str(found or "nobody")
