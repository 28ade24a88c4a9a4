"""The overview: what needs somebody now, in numbers that agree with each other because they come from one snapshot.

`items`, `item` and what they speak in are offered here too, so that pages have one room to ask.
"""

import datetime
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workitems.models import JobType
from workitems.oversight.cursors import BadCursor
from workitems.oversight.item import ClaimEpisode, Event, Item, item
from workitems.oversight.lists import (
    COUNT_MILLISECONDS,
    Page,
    count_arm,
    database_clock,
    in_time,
    items,
    open_kinds,
    run,
    stamp_of,
)
from workitems.oversight.rows import JobFacts, Row, facts_of, rows_of, spell
from workitems.oversight.scope import BEGUN, CAP, UNREGISTERED, WINDOWS, BadFilter, Filters, Scope, lane_of
from workitems.protocol.statements import statements
from workitems.states import State

__all__ = [
    "CAP",
    "FIRST",
    "UNREGISTERED",
    "WINDOWS",
    "BadCursor",
    "BadFilter",
    "Breakdown",
    "ClaimEpisode",
    "Event",
    "Filters",
    "Item",
    "JobFacts",
    "Overview",
    "Page",
    "Rate",
    "Row",
    "Scope",
    "Tile",
    "item",
    "items",
    "job_types",
    "overview",
    "spell",
    "stamp",
]

FIRST = 8  # how many items the overview names
RATE_WINDOW = datetime.timedelta(hours=1)

# From which age of the oldest on a tile asks for attention, in seconds; None: its number alone says nothing is wrong.
THRESHOLDS: Mapping[str, float | None] = {
    "stalled": 60,
    "lying": 60,
    "unknown": 15 * 60,
    "quarantined": 60 * 60,
    "failed_terminal": 24 * 60 * 60,
    "unregistered": 0,
    "queued": 5 * 60,
    "claimed": None,
}
TAKEOVER_THRESHOLD = 0.05  # of claims
QUARANTINE_THRESHOLD = 0.01  # of endings

_SQL = Path(__file__).with_name("figures.sql")


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One number with the age of its oldest. `begun`: how many of them may have acted."""

    key: str
    count: int
    capped: bool
    oldest_at: datetime.datetime | None
    oldest_seconds: float | None
    begun: int | None
    threshold_seconds: float | None

    @property
    def over_threshold(self) -> bool:
        """Whether the oldest is older than it should get."""
        return self.threshold_seconds is not None and (self.oldest_seconds or 0.0) > self.threshold_seconds

    @property
    def count_text(self) -> str:
        """`1,234` or `10,000+`."""
        return f"{CAP:,}+" if self.capped else f"{self.count:,}"


@dataclass(frozen=True, kw_only=True)
class Rate:
    """A part of a whole within the last hour. `whole` is None when it could not be counted in time."""

    part: int | None
    whole: int | None
    threshold: float
    window_seconds: float

    @property
    def share(self) -> float | None:
        """Between 0 and 1; None when there was nothing, or no time, to count."""
        return self.part / self.whole if self.whole and self.part is not None else None

    @property
    def over_threshold(self) -> bool:
        """Whether the share is higher than it should get."""
        return self.share is not None and self.share > self.threshold


@dataclass(frozen=True, kw_only=True)
class Breakdown:
    """The stuck work of one job type."""

    facts: JobFacts
    stalled: int
    unknown: int
    quarantined: int
    failed_terminal: int
    begun: int

    @property
    def total(self) -> int:
        """Everything but failures, which nobody waits for."""
        return self.stalled + self.unknown + self.quarantined


@dataclass(frozen=True, kw_only=True)
class Overview:
    """What needs somebody now, at one moment of the database's clock."""

    at: datetime.datetime
    tiles: tuple[Tile, ...]
    first: tuple[Row, ...]
    takeover_rate: Rate
    quarantine_rate: Rate
    by_job_type: tuple[Breakdown, ...]

    def tile(self, key: str) -> Tile:
        """The tile of this key."""
        return next(tile for tile in self.tiles if tile.key == key)

    @property
    def is_calm(self) -> bool:
        """Whether nothing waits for anybody."""
        return not self.first and not self.tile("unregistered").count

    @property
    def stamp(self) -> str:
        """Differs when anything shown differs; see `stamp_of`."""
        tiles = [(tile.key, tile.count, tile.capped, tile.oldest_at, tile.begun) for tile in self.tiles]
        first = [(row.digest, row.state, row.condition, row.fence) for row in self.first]
        return stamp_of(self.at, tiles, first, self.takeover_rate, self.quarantine_rate, self.by_job_type)


def overview(scope: Scope) -> Overview:
    """The overview of the work that `scope` may see. Bounded: a tile reads 10,000 rows of a state at most."""
    at = database_clock()
    sql, params = _lanes_of(scope)
    params |= {"at": at, "first": FIRST, "cap": CAP, "since": at - RATE_WINDOW}
    named = {name: _filled(text, sql) for name, text in statements(_SQL).items()}
    stuck = run(named["stuck"], params)
    groups = [row for row in stuck if row[0] != "first"]
    oldest = dict(run(named["oldest"], params))
    queue = run(named["queue"], params)[0]
    takeovers, quarantines = _rates(named["rates"], params)
    return Overview(
        at=at,
        tiles=_tiles(groups, oldest=oldest, queue=queue, at=at),
        first=rows_of([bytes(row[5]) for row in stuck if row[0] == "first"], at=at),
        takeover_rate=takeovers,
        quarantine_rate=quarantines,
        by_job_type=_breakdown(groups),
    )


def job_types() -> tuple[JobFacts, ...]:
    """Every registered job type, by name: for filters and explanations."""
    return tuple(facts_of(row.name, row) for row in JobType.objects.order_by("name"))


def stamp(of: Overview | Page | Item) -> str:
    """A short text that an unchanged poll sends back to be answered 304."""
    return of.stamp


def _filled(text: str, lanes: Mapping[str, str]) -> str:
    for name, sql in lanes.items():
        text = text.replace(f"{{{name}}}", sql)
    return text


def _lanes_of(scope: Scope) -> tuple[dict[str, str], dict[str, Any]]:
    """What the statements of figures.sql call `{...}`, and the parameters that these lanes name."""
    sql: dict[str, str] = {"own_events": "true" if scope.sees_all else "e.tenant_digest = ANY (%(tenants)s::bytea[])"}
    sample = str(CAP + 1)
    for state in (State.UNKNOWN, State.QUARANTINED, State.FAILED_TERMINAL):
        lane = lane_of(state, scope)
        columns = f"i.state, i.job_type, {lane.since} AS since, i.op_digest, {BEGUN} AS begun"
        sql[state] = lane.head(columns=columns, take=sample).join(("(", ")"))
        sql[f"{state}_one"] = lane.head(columns=f"{lane.since} AS since", take="1")
    flight, queue = lane_of(State.CLAIMED, scope), lane_of(State.QUEUED, scope)
    sql["claimed"] = flight.head(
        columns=f"i.job_type, {flight.since} AS since, i.op_digest, {BEGUN} AS begun, i.lease_expires_at, i.waiting_in_worker,"
        " coalesce(i.progress_at, i.claimed_at) AS moved_at",
        take=sample,
    )
    sql["claimed_one"] = flight.head(columns=f"{flight.since} AS since", take="1")
    sql["queued_any"] = count_arm(queue, ())
    sql["queued_one"] = queue.head(columns=f"{queue.since} AS since", take="1")
    # of everybody's work only the strange job types' lanes are read; of some tenants' the oldest of their backlog
    strange = "NOT EXISTS (SELECT FROM job_type j WHERE j.name = lane.kind)"
    sql["unregistered"] = queue.head(
        columns=f"i.job_type, {queue.since} AS since", conditions=[strange] if scope.sees_all else [], take=sample
    )
    params = scope.params | ({"kinds": open_kinds()} if scope.sees_all else {})
    return sql, params


def _tiles(
    groups: Sequence[tuple[Any, ...]],
    *,
    oldest: Mapping[str, datetime.datetime | None],
    queue: tuple[Any, ...],
    at: datetime.datetime,
) -> tuple[Tile, ...]:
    number: dict[str, int] = defaultdict(int)
    begun: dict[str, int] = defaultdict(int)
    first: dict[str, datetime.datetime] = {}
    for word, _, count, since, acted, _ in groups:
        number[word] += count
        begun[word] += acted
        first[word] = min(first.get(word, since), since)
    in_flight = number["lapsed"] + number["lying"] + number["held"]

    def tile(key: str, words: Sequence[str], *, cut: bool = False) -> Tile:
        times = [first[word] for word in words if word in first] if key not in oldest else [oldest[key]]
        total = sum(number[word] for word in words)
        acted = sum(begun[word] for word in words)
        return _tile(key, total, min((time for time in times if time), default=None), acted, at=at, cut=cut)

    # the oldest of a full sample of claims are looked at; more may be stalled than were counted
    cut = in_flight > CAP
    return (
        tile("stalled", ("lapsed", "lying"), cut=cut),
        tile("unknown", ("unknown",)),
        tile("quarantined", ("quarantined",)),
        tile("lying", ("lying",), cut=cut),
        tile("failed_terminal", ("failed_terminal",)),
        _tile("unregistered", queue[2], queue[3], None, at=at),
        tile("claimed", ("lapsed", "lying", "held")),
        _tile("queued", queue[0], queue[1], None, at=at),
    )


def _tile(
    key: str,
    count: int,
    since: datetime.datetime | None,
    begun: int | None,
    *,
    at: datetime.datetime,
    cut: bool = False,
) -> Tile:
    return Tile(
        key=key,
        count=min(count, CAP),
        capped=count > CAP or cut,
        oldest_at=since,
        oldest_seconds=None
        if since is None
        else max(0.0, (at - since).total_seconds()),  # both by the database's clock
        begun=begun,
        threshold_seconds=THRESHOLDS[key],
    )


def _rates(sql: str, params: dict[str, Any]) -> tuple[Rate, Rate]:
    counted: tuple[Any, ...] = (None, None, None, None)
    with in_time(COUNT_MILLISECONDS):
        counted = run(sql, params)[0]
    claims, takeovers, endings, quarantines = counted
    seconds = RATE_WINDOW.total_seconds()
    return (
        Rate(part=takeovers, whole=claims, threshold=TAKEOVER_THRESHOLD, window_seconds=seconds),
        Rate(part=quarantines, whole=endings, threshold=QUARANTINE_THRESHOLD, window_seconds=seconds),
    )


def _breakdown(groups: Sequence[tuple[Any, ...]]) -> tuple[Breakdown, ...]:
    """Stuck work by job type, most of it first."""
    counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for word, name, count, _, begun, _ in groups:
        if word != "held":
            counts[name][word] += count
            counts[name]["begun"] += 0 if word == "failed_terminal" else begun
    registered = {row.name: row for row in JobType.objects.filter(name__in=list(counts))}
    found = [
        Breakdown(
            facts=facts_of(name, registered.get(name)),
            stalled=of["lapsed"] + of["lying"],
            unknown=of["unknown"],
            quarantined=of["quarantined"],
            failed_terminal=of["failed_terminal"],
            begun=of["begun"],
        )
        for name, of in counts.items()
    ]
    return tuple(sorted(found, key=lambda one: (-one.total, -one.failed_terminal, one.facts.name)))
