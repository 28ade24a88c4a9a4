"""One item: what it is, who owns the next step, what may be claimed, and what happened to it."""

import datetime
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.db.models import F

from workitems.identifiers import full, show
from workitems.models import WorkEvent, WorkItem
from workitems.oversight.lists import run, stamp_of
from workitems.oversight.rows import Row, row_fields
from workitems.oversight.scope import Scope
from workitems.querysets import DatabaseClock, Seconds

EVENTS_SHOWN = 100
LATE = {"late_outcome", "rejected"}  # a worker's claim, no change
FIRST = ("enqueue", "quarantine")  # what a history begins with, unless the item is older than its history
EVENTS_READ = 500  # how far back claims are told apart


@dataclass(frozen=True, kw_only=True)
class Event:
    """One change of the item. `detail` is a reconcile's verdict and evidence."""

    event_id: int
    at: datetime.datetime
    seconds_ago: float
    verb: str
    state_before: str | None
    state_after: str
    fence: int
    attempts: int
    worker: str | None
    outcome_code: str | None
    detail: Any

    @property
    def is_late(self) -> bool:
        """Whether it is what a claim that had lost the item reported: kept as evidence, no proof, and nothing changed."""
        return self.verb in LATE


@dataclass(frozen=True, kw_only=True)
class ClaimEpisode:
    """One claim from its start to the event that ended it."""

    fence: int
    worker: str | None
    claimed_at: datetime.datetime
    takeover: bool
    attempt: int
    begun_at: datetime.datetime | None = None
    ended_at: datetime.datetime | None = None
    ended_by: str | None = None
    outcome_code: str | None = None

    @property
    def is_over(self) -> bool:
        """Whether something ended it."""
        return self.ended_at is not None

    @property
    def seconds(self) -> float | None:
        """How long it lasted, once it is over."""
        return None if self.ended_at is None else max(0.0, (self.ended_at - self.claimed_at).total_seconds())


@dataclass(frozen=True, kw_only=True)
class Item(Row):
    """An item as its own page shows it."""

    at: datetime.datetime
    honest_claim: str
    payload_hash: str
    reference_digest: str
    reference_short: str
    available_at: datetime.datetime
    claimed_at: datetime.datetime | None
    first_effect_at: datetime.datetime | None
    stamping_fence: int | None
    cleared_for_attempt: int | None
    claims: tuple[ClaimEpisode, ...]
    claims_cut: bool
    events: tuple[Event, ...]
    older_events: int | None
    began_before_history: bool  # it came with a table that was adopted: what it did before is not on record

    @property
    def held_by_foreign_worker(self) -> bool:
        """Whether the claim of now is by a worker that does not stamp `begin`."""
        return self.lease_owner is not None and self.stamping_fence != self.fence

    @property
    def attempts_before_history(self) -> int:
        """How many claims an adopted item had that nothing tells of."""
        if not self.began_before_history:
            return 0
        return self.claims[-1].attempt - 1 if self.claims else self.attempts

    @property
    def foreign_limits(self) -> tuple[str, ...]:
        """What nobody can say of an item that a worker held, or may come to hold, which knows the article's statements only."""
        limits = []
        if self.foreign_held:
            limits.append(
                "Held by a worker that knows only the article's statements. It stamps no effect: nobody can say whether or"
                " when that claim acted, and a lost lease counts as acted."
            )
        if self.facts.foreign_claims:
            limits.append(
                "Workers that know only the article's statements may claim this job type. Their claims are never called"
                " “never begun”, and may show as lying: their heartbeats tell of no progress."
            )
        return tuple(limits)

    @property
    def key_window_left_seconds(self) -> float | None:
        """Of a type C item that has begun: how long the provider still remembers its key; negative once that is over."""
        if self.facts.key_window_seconds is None or self.first_effect_at is None:
            return None
        return self.facts.key_window_seconds - (self.at - self.first_effect_at).total_seconds()

    @property
    def stamp(self) -> str:
        """Differs when anything shown differs; see `stamp_of`."""
        newest = self.events[0].event_id if self.events else 0
        shown = (self.condition, self.fence, self.attempts, self.max_attempts, self.lease_expires_at, self.progress)
        return stamp_of(
            self.at, self.digest, self.state, newest, self.effect_at, self.outcome_code, *shown, bucket_seconds=5
        )


def item(scope: Scope, digest: bytes, *, before_event: int | None = None) -> Item | None:
    """The item with this digest, or None when there is none that `scope` may see: the two are one answer.

    `before_event` pages through its history: only events with a lower number, newest first, 100 at a time.
    """
    whose = WorkItem.objects.for_all() if scope.sees_all else WorkItem.objects.for_tenants(scope.tenants)
    found = whose.filter(op_digest=digest).with_clock().select_related("registered", "tenant").first()
    if found is None:
        return None
    seen: Any = found  # its annotations have no declared type
    newest = _events(found, before=None, limit=EVENTS_READ + 1)
    shown = newest if before_event is None else _events(found, before=before_event, limit=EVENTS_SHOWN + 1)
    reference = run("SELECT fencewatch.reference_digest(%(digest)s::bytea)", {"digest": digest})[0][0]
    fields = row_fields(found)
    return Item(
        **fields,
        at=seen.clock,
        honest_claim=fields["facts"].honest_claim,
        payload_hash=bytes(found.payload_hash).hex(),
        reference_digest=full(reference) if reference else "",
        reference_short=show(reference, prefix="ref") if reference else "",
        available_at=found.available_at,
        claimed_at=found.claimed_at,
        first_effect_at=found.first_effect_at,
        stamping_fence=found.stamping_fence,
        cleared_for_attempt=found.cleared_for_attempt,
        claims=claims_of(reversed(newest[:EVENTS_READ])),
        claims_cut=len(newest) > EVENTS_READ,
        events=tuple(shown[:EVENTS_SHOWN]),
        older_events=shown[EVENTS_SHOWN - 1].event_id if len(shown) > EVENTS_SHOWN else None,
        began_before_history=len(newest) <= EVENTS_READ and not (newest and newest[-1].verb in FIRST),
    )


def _events(of_item: WorkItem, *, before: int | None, limit: int) -> Sequence[Event]:
    found = WorkEvent.objects.for_tenants([bytes(of_item.tenant_digest)]).filter(item_id=of_item.item_id)
    if before is not None:
        found = found.filter(event_id__lt=before)
    rows = found.annotate(seconds_ago=Seconds(DatabaseClock() - F("at"))).order_by("-event_id")[:limit]
    names = tuple(Event.__dataclass_fields__)
    return [Event(**{name: getattr(row, name) for name in names}) for row in rows]


def claims_of(events: Iterable[Event]) -> tuple[ClaimEpisode, ...]:
    """The claims that these events, oldest first, tell of; newest claim first.

    A claim ends with the event that leaves `claimed`, with a takeover, or with any later rise of the fence. What a lost
    claim said late is evidence, and ends nothing.
    """
    claims: list[ClaimEpisode] = []
    for event in events:
        if event.verb in LATE:
            continue
        current = claims[-1] if claims and not claims[-1].is_over else None
        if event.verb in {"claim", "takeover"}:
            if current is not None:
                claims[-1] = replace(current, ended_at=event.at, ended_by=event.verb)
            claims.append(
                ClaimEpisode(
                    fence=event.fence,
                    worker=event.worker,
                    claimed_at=event.at,
                    takeover=event.verb == "takeover",
                    attempt=event.attempts,
                )
            )
        elif current is None:
            continue
        elif event.verb == "begin" and event.fence == current.fence:
            claims[-1] = replace(current, begun_at=event.at)
        elif event.state_after != "claimed" or event.fence != current.fence:
            claims[-1] = replace(current, ended_at=event.at, ended_by=event.verb, outcome_code=event.outcome_code)
    return tuple(reversed(claims))
