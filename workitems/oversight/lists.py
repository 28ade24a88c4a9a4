"""Lists of items: pages by keyset over merged lanes, and their capped count from the same filters."""

import contextlib
import datetime
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.db import DEFAULT_DB_ALIAS, OperationalError, connections, transaction
from psycopg.errors import QueryCanceled

from workitems.models import JobType
from workitems.oversight.cursors import Position, seal, unseal
from workitems.oversight.rows import Row, rows_of
from workitems.oversight.scope import CAP, OPEN, UNREGISTERED, Filters, Lane, Scope, lane_of
from workitems.protocol.statements import statements
from workitems.states import State

_SQL = Path(__file__).with_name("figures.sql")
COUNT_MILLISECONDS = 1_000  # a number that takes longer is left out: it never stands in the way of the list


@dataclass(frozen=True, kw_only=True)
class Page:
    """One page of a list. `next_cursor` goes on in the list's order, `previous_cursor` back; None where nothing is."""

    rows: tuple[Row, ...]
    at: datetime.datetime
    filters: Filters
    next_cursor: str | None
    previous_cursor: str | None
    count: int | None
    capped: bool
    note: str

    @property
    def count_text(self) -> str:
        """`1,234`, `10,000+`, or `not counted in time`."""
        if self.count is None:
            return "not counted in time"
        return f"{CAP:,}+" if self.capped else f"{self.count:,}"

    @property
    def stamp(self) -> str:
        """Differs when anything shown differs; see `stamp_of`."""
        shown = (self.rows, self.count, self.capped, self.next_cursor is None, self.previous_cursor is None)
        return stamp_of(self.at, *(_without_clock(row) for row in self.rows), *shown[1:])


def items(scope: Scope, filters: Filters, cursor: str | None = None, size: int = 50) -> Page:
    """One page of the items that `scope` may see and `filters` want.

    Raises: BadCursor for a cursor that was altered or belongs to other filters.
    """
    whose = scope.only(filters.tenant)
    position = None if cursor is None else unseal(cursor, of_list=filters.name)
    at = database_clock()
    lanes, params = _lanes(whose, filters, at=at)
    found = _keys(lanes, filters, params, position=position, take=size + 1)
    back = position is not None and position.back
    more, found = len(found) > size, found[:size]
    if back:
        found.reverse()
    total = _count(lanes, filters, params)
    on = more if not back else True
    before = (position is not None) if not back else more
    return Page(
        rows=rows_of([digest for _, digest in found], at=at),
        at=at,
        filters=filters,
        next_cursor=_cursor(found[-1], filters, back=False) if found and on else None,
        previous_cursor=_cursor(found[0], filters, back=True) if found and before else None,
        count=None if total is None else min(total, CAP),
        capped=total is not None and total > CAP,
        note=_note(filters),
    )


def database_clock() -> datetime.datetime:
    """The database's clock, read once for everything on a page."""
    return run("SELECT clock_timestamp()", {})[0][0]  # type: ignore[no-any-return]


def run(sql: str, params: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Read rows with a statement that the ORM would say badly."""
    with connections[DEFAULT_DB_ALIAS].cursor() as cursor:
        cursor.execute(sql, params)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows


def open_kinds() -> list[str]:
    """The job types that have open work, registered or not, by hopping along the two indexes that begin with them."""
    return [kind for (kind,) in run(statements(_SQL)["open_kinds"], {})]


@contextlib.contextmanager
def in_time(milliseconds: int) -> Iterator[None]:
    """Give the statements inside this long; when they take longer, undo and leave the block quietly."""
    try:
        with transaction.atomic(using=DEFAULT_DB_ALIAS):
            before = run(
                "SELECT current_setting('statement_timeout'), set_config('statement_timeout', %(limit)s, true)",
                {"limit": str(milliseconds)},
            )[0][0]
            yield
            run("SELECT set_config('statement_timeout', %(limit)s, true)", {"limit": before})
    except OperationalError as error:
        if not isinstance(error.__cause__, QueryCanceled):
            raise


def stamp_of(at: datetime.datetime, *shown: object, bucket_seconds: int = 15) -> str:
    """A short text for an unchanged poll to compare: a digest of what is shown, and of the clock in steps.

    It is taken from what was read, not from the newest event: heartbeats write no event and still change a page, and a
    tenant's newest event has no index. What it spares is rendering, sending and swapping; the reads are bounded anyway.
    """
    step = int(at.timestamp()) // bucket_seconds
    return hashlib.sha256(repr((step, shown)).encode()).hexdigest()[:20]


def _without_clock(row: Row) -> tuple[object, ...]:
    held = (row.condition, row.fence, row.attempts, row.progress, row.lease_owner, row.lease_expires_at)
    return (row.digest, row.state, row.since, row.effect_at, row.outcome_code, held)


def _lanes(
    scope: Scope, filters: Filters, *, at: datetime.datetime
) -> tuple[list[tuple[Lane, list[str]]], dict[str, Any]]:
    if scope.is_empty:
        return [], {}
    params = {**scope.params, "at": at, "window_start": filters.window_start(at)}
    lanes = [(lane_of(state, scope), filters.conditions(state)) for state in filters.wanted]
    if scope.sees_all and any(lane.state in OPEN for lane, _ in lanes):
        params["kinds"] = list(filters.job_types) or open_kinds()
    if filters.job_types or filters.targets:
        condition, names = _of_types(filters)
        params["types"] = names
        lanes = [(lane, [*conditions, condition]) for lane, conditions in lanes]
    return lanes, params


def _of_types(filters: Filters) -> tuple[str, list[str]]:
    """The job types that the filters name or whose target they name, as a condition on `i` and its list."""
    if not filters.targets:
        return "i.job_type = ANY (%(types)s::text[])", list(filters.job_types)
    registered = JobType.objects.filter(target__in=filters.targets).values_list("name", flat=True)
    if UNREGISTERED in filters.targets:
        others = JobType.objects.exclude(target__in=filters.targets).values_list("name", flat=True)
        wanted, names = "i.job_type <> ALL (%(types)s::text[])", list(others)
        if not filters.job_types:
            return wanted, names
        return "i.job_type = ANY (%(types)s::text[])", [name for name in filters.job_types if name not in names]
    names = [name for name in registered if not filters.job_types or name in filters.job_types]
    return "i.job_type = ANY (%(types)s::text[])", names


def _keys(
    lanes: Iterable[tuple[Lane, list[str]]],
    filters: Filters,
    params: dict[str, Any],
    *,
    position: Position | None,
    take: int,
) -> list[tuple[datetime.datetime, bytes]]:
    """Up to `take` keys from the position on, in the list's order, or against it when the position goes back."""
    descending = (filters.order == "newest") != (position is not None and position.back)
    arms = []
    for lane, conditions in lanes:
        beyond = (
            [f"({lane.since}, i.op_digest) {'<' if descending else '>'} (%(since)s, %(digest)s)"] if position else []
        )
        columns = f"{lane.since} AS since, i.op_digest"
        arms.append(f"({lane.head(columns=columns, conditions=[*conditions, *beyond], descending=descending)})")
    if not arms:
        return []
    way = "DESC" if descending else "ASC"
    merged = " UNION ALL ".join(arms)
    sql = f"SELECT since, op_digest FROM ({merged}) i ORDER BY since {way}, op_digest {way} LIMIT %(take)s"  # noqa: S608
    ends = {"since": position.since, "digest": position.digest} if position else {}
    return [(since, bytes(digest)) for since, digest in run(sql, {**params, **ends, "take": take})]


def _count(lanes: Iterable[tuple[Lane, list[str]]], filters: Filters, params: dict[str, Any]) -> int | None:
    """How many there are, up to one above the cap; None when that took too long."""
    arms = [f"({count_arm(lane, conditions)})" for lane, conditions in lanes]
    if not arms:
        return 0
    every = " UNION ALL ".join(arms)
    total: list[int] = []
    with in_time(COUNT_MILLISECONDS):
        counted = run(f"SELECT count(*) FROM (SELECT FROM ({every}) i LIMIT {CAP + 1}) i", params)  # noqa: S608
        total.append(counted[0][0])
    return total[0] if total else None


def count_arm(lane: Lane, conditions: Iterable[str]) -> str:
    """SQL for the rows of a lane in no order, as far as a capped count reads them."""
    where = " AND ".join((f"i.state = '{lane.state}'", lane.within, *conditions))
    rows = f"SELECT FROM work_item i WHERE {where} LIMIT {CAP + 1}"
    return f"SELECT 1 AS one FROM {lane.source} CROSS JOIN LATERAL ({rows}) item"  # noqa: S608


def _cursor(end: tuple[datetime.datetime, bytes], filters: Filters, *, back: bool) -> str:
    return seal(Position(since=end[0], digest=end[1], back=back), of_list=filters.name)


def _note(filters: Filters) -> str:
    if State.SUCCEEDED in filters.wanted:
        return f"Finished work of the last {filters.window_hours} h only; widen the window to look further back."
    if not filters.states and not filters.stalled and not filters.lying:
        return "Everything unfinished. Finished work is listed when its state is chosen."
    return ""
