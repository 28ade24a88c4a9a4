"""What a read looks at: whose work, which of it, and along which index.

A *lane* is one range of one index in the order in which the pages list it: one state, and where the index begins with the
tenant or the job type, one of those. A page merges the heads of its lanes, so it reads as many rows as it shows, however
many tenants a person sees and however long the backlog is. The conditions below are the only place that says in SQL what
stalled, lying and begun mean; `WorkItem.objects` says the same in the ORM, and a test holds both against each other.
"""

import datetime
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from workitems.errors import FencewatchError
from workitems.states import State

CAP = 10_000  # numbers above are shown as 10,000+
WINDOWS = (1, 24, 168)  # hours within which finished work is looked at
OPEN = (State.QUEUED, State.CLAIMED)
WAITING = (State.UNKNOWN, State.QUARANTINED, State.FAILED_TERMINAL)
UNFINISHED = (*WAITING, State.CLAIMED, State.QUEUED)
UNREGISTERED = "?"  # stands for the target of job types that nobody registered

LAPSED = "i.lease_expires_at < %(at)s"
LYING = (
    "i.lease_expires_at >= %(at)s AND NOT i.waiting_in_worker AND coalesce(i.progress_at, i.claimed_at)"
    " < %(at)s - make_interval(secs => (SELECT j.progress_seconds FROM job_type j WHERE j.name = i.job_type))"
)
STALLED = f"({LAPSED} OR {LYING})"
# A claim may have been lost in a failover: the last claim's timeline is not the enqueue's or, for work still open, the
# server's is not, and two persons have not confirmed that the failover lost nothing. Type A is excepted: its effect was
# lost together with its claim.
FAILED_OVER = (
    "((i.fence > 0 AND (i.fence >> 32) <> i.enqueue_timeline AND NOT fencewatch.nothing_lost(i.enqueue_timeline, i.fence >> 32)"
    " OR i.state IN ('queued', 'claimed') AND i.enqueue_timeline <> ALL ((SELECT fencewatch.safe_timelines())::bigint[]))"
    " AND (SELECT j.target FROM job_type j WHERE j.name = i.job_type) IS DISTINCT FROM 'A')"
)
BEGUN = f"(i.effect_fence IS NOT NULL OR i.foreign_held OR {FAILED_OVER})"


class BadFilter(FencewatchError):
    """This combination of filters is not one that can be answered; the message says which part to change."""


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Whose work: everybody's, or that of these tenants. Neither: nobody's."""

    sees_all: bool = False
    tenants: tuple[bytes, ...] = ()

    def only(self, tenant: bytes | None) -> "Scope":
        """This scope narrowed to one tenant; to nobody when the scope does not hold it."""
        if tenant is None:
            return self
        if self.sees_all or tenant in self.tenants:
            return Scope(tenants=(tenant,))
        return Scope()

    @property
    def is_empty(self) -> bool:
        """Whether nothing can be seen."""
        return not self.sees_all and not self.tenants

    @property
    def params(self) -> dict[str, Any]:
        """What the lanes' SQL names."""
        return {"tenants": list(self.tenants)}


@dataclass(frozen=True, kw_only=True)
class Filters:
    """Which work. No state means everything unfinished: finished work is only listed when asked for, within a window."""

    states: tuple[State, ...] = ()
    stalled: bool = False
    lying: bool = False
    begun: bool | None = None
    job_types: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    tenant: bytes | None = None
    window_hours: int = 1
    order: Literal["newest", "oldest"] = "newest"

    def __post_init__(self) -> None:
        if self.window_hours not in WINDOWS:
            raise BadFilter("finished work is listed by the last 1, 24 or 168 hours; choose one of these.")
        if (self.stalled or self.lying) and self.states and State.CLAIMED not in self.states:
            raise BadFilter("only claimed work can be stalled or lying; take the state filter away or choose claimed.")

    @property
    def wanted(self) -> tuple[State, ...]:
        """The states whose lanes are read."""
        if self.stalled or self.lying:
            return (State.CLAIMED,)
        return tuple(dict.fromkeys(self.states)) or UNFINISHED

    @property
    def name(self) -> str:
        """A short text that differs whenever the filters do: what a cursor is sealed for."""
        facts = {**asdict(self), "tenant": self.tenant.hex() if self.tenant else None}
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]

    def conditions(self, state: State) -> list[str]:
        """What a lane's rows must fulfil beside its index, as SQL over `i`."""
        found = []
        if state is State.SUCCEEDED:
            found.append("i.updated_at > %(window_start)s")
        if self.lying:
            found.append(LYING)
        elif self.stalled:
            found.append(STALLED)
        if self.begun is not None:
            found.append(BEGUN if self.begun else f"NOT {BEGUN}")
        return found

    def window_start(self, at: datetime.datetime) -> datetime.datetime:
        """From when on finished work is looked at. `at` is the database's clock."""
        return at - datetime.timedelta(hours=self.window_hours)


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One state along one index: `source` yields the ranges, `within` ties a row `i` to one, `since` is the order."""

    state: State
    source: str
    within: str
    since: str

    def head(
        self, *, columns: str, conditions: Sequence[str] = (), descending: bool = False, take: str = "%(take)s"
    ) -> str:
        """SQL for the first `take` rows of each range, in the lane's order with the digest as tie-break."""
        where = " AND ".join((f"i.state = '{self.state}'", self.within, *conditions))
        way = "DESC" if descending else "ASC"
        order = f"ORDER BY {self.since} {way}, i.op_digest {way} LIMIT {take}"
        rows = f"SELECT {columns} FROM work_item i WHERE {where} {order}"  # noqa: S608 - made of this file's constants
        return f"SELECT item.* FROM {self.source} CROSS JOIN LATERAL ({rows}) item"  # noqa: S608


SINCE = {State.CLAIMED: "i.claimed_at", State.QUEUED: "i.available_at"}


def lane_of(state: State, scope: Scope) -> Lane:
    """The lane that lists `state` for `scope`. Its SQL names `tenants`, or `kinds` (job types) for open work of all."""
    since = SINCE.get(state, "i.updated_at")
    within = "i.attempts > 0" if state is State.CLAIMED else "true"
    if state is State.SUCCEEDED and not scope.sees_all:
        # its index knows times only: one look at the window, not one for each tenant
        source, tie = "(VALUES (1)) AS lane (window_of_time)", "i.tenant_digest = ANY (%(tenants)s::bytea[])"
    elif not scope.sees_all:
        source, tie = "unnest(%(tenants)s::bytea[]) AS lane (tenant)", "i.tenant_digest = lane.tenant"
    elif state in OPEN:
        source, tie = "unnest(%(kinds)s::text[]) AS lane (kind)", "i.job_type = lane.kind"
    else:
        source, tie = "(VALUES (1)) AS lane (everybody)", "true"
    return Lane(state=state, source=source, within=f"{within} AND {tie}", since=since)
