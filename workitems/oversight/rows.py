"""Items as pages show them: one frozen row each, with its job type's facts, its durations and a plain sentence."""

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workitems.identifiers import full, show
from workitems.models import JobType, WorkItem
from workitems.states import HONEST_CLAIM, TARGET_NAME, State, Target, next_owner


@dataclass(frozen=True, kw_only=True)
class JobFacts:
    """What the job_type table says of an item's type. Not `registered`: nobody said anything, so nothing may be claimed."""

    name: str
    registered: bool
    target: str = ""
    target_name: str = "unknown target"
    side_effect: str = ""
    owner: str = ""
    producer_team: str = ""
    system_owner: str = ""
    lease_seconds: int | None = None
    progress_seconds: int | None = None
    attempts_ceiling: int | None = None
    reconciles: bool = False
    no_reconciler_because: str = ""
    foreign_claims: bool = False
    held_until: datetime.datetime | None = None
    held_reason: str = ""
    key_window_seconds: int | None = None
    key_scope: str = ""
    key_mismatch: str = ""
    key_source: str = ""
    key_verified_by: str = ""
    key_verified_on: datetime.date | None = None
    key_expires_on: datetime.date | None = None

    @property
    def honest_claim(self) -> str:
        """What may be claimed about duplicates."""
        if not self.registered:
            return "Nothing may be claimed: no job type of this name is registered."
        if self.target == Target.D and self.foreign_claims:
            return (
                "Nothing may be claimed: workers that know only the article's statements may attempt it again after a lost"
                " lease, and no target is known that would drop a duplicate."
            )
        return HONEST_CLAIM[Target(self.target)]

    def next_owner(self, state: State) -> str:
        """Who owns the next step of an item in `state`."""
        if not self.registered and state is not State.SUCCEEDED:
            return "on-call: no job type of this name is registered"
        return next_owner(state, owner=self.owner, producer_team=self.producer_team, system_owner=self.system_owner)


@dataclass(frozen=True, kw_only=True)
class Row:
    """An item as a list shows it. Durations are in seconds, by the database's clock."""

    digest: bytes
    full: str
    short: str
    tenant_digest: bytes
    tenant_label: str
    job_type: str
    facts: JobFacts
    state: State
    lapsed: bool
    lying: bool
    waiting: bool
    foreign_held: bool
    failed_over: bool
    effect_fence: int | None
    effect_at: datetime.datetime | None
    effect_seconds: float | None
    since: datetime.datetime
    age_seconds: float
    due_in_seconds: float | None
    fence: int
    attempts: int
    max_attempts: int
    lease_owner: str | None
    lease_expires_at: datetime.datetime | None
    lease_left_seconds: float | None
    progress: int
    progress_at: datetime.datetime | None
    silent_seconds: float | None
    outcome_code: str | None
    updated_at: datetime.datetime
    enqueued_at: datetime.datetime
    first_seen_seconds: float
    next_owner: str
    reason: str

    @property
    def stalled(self) -> bool:
        """Claimed, and the lease ran out or the claim is lying."""
        return self.lapsed or self.lying

    @property
    def begun(self) -> bool:
        """Whether the item may have acted."""
        return self.effect_fence is not None or self.foreign_held or self.failed_over

    @property
    def condition(self) -> str:
        """The one word beside the state: stalled, lying, waiting, unregistered, not due, or nothing."""
        if self.lying:
            return "lying"
        if self.lapsed:
            return "stalled"
        if self.waiting:
            return "waiting"
        if not self.facts.registered and self.state is State.QUEUED:
            return "unregistered"
        return "not due" if self.due_in_seconds is not None else ""


def spell(seconds: float) -> str:
    """A duration in words of two parts at most: `45 s`, `12 min`, `3 h 5 min`, `2 d 4 h`."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86_400
    if hours == 0:
        return f"{minutes} min"
    if days == 0:
        return f"{hours} h {minutes % 60} min" if minutes % 60 else f"{hours} h"
    return f"{days} d {hours % 24} h" if hours % 24 else f"{days} d"


def facts_of(name: str, registered: JobType | None) -> JobFacts:
    """The facts of a job type by its row, or of a name without one."""
    if registered is None:
        return JobFacts(name=name, registered=False)
    taken = {
        field: getattr(registered, field)
        for field in JobFacts.__dataclass_fields__
        if field not in {"registered", "target_name"}
    }
    return JobFacts(registered=True, target_name=TARGET_NAME[Target(registered.target)], **taken)


def rows_of(digests: Sequence[bytes], *, at: datetime.datetime) -> tuple[Row, ...]:
    """The rows of these digests, in this order; one that is gone or not in sight is left out."""
    if not digests:
        return ()
    found = WorkItem.objects.filter(op_digest__in=digests).with_clock(at=at).select_related("registered", "tenant")
    by_digest = {bytes(item.op_digest): item for item in found}
    return tuple(Row(**row_fields(by_digest[digest])) for digest in digests if digest in by_digest)


def row_fields(item: Any) -> dict[str, Any]:
    """The fields of Row from an item that was read with its clock, its job type and its tenant."""
    state = State(item.state)
    facts = facts_of(item.job_type, item.registered)
    lapsed = state is State.CLAIMED and item.lease_left is not None and item.lease_left < 0
    return {
        "digest": bytes(item.op_digest),
        "full": full(item.op_digest),
        "short": show(item.op_digest),
        "tenant_digest": bytes(item.tenant_digest),
        "tenant_label": str(item.tenant) if item.tenant else show(item.tenant_digest, prefix="tn"),
        "job_type": item.job_type,
        "facts": facts,
        "state": state,
        "lapsed": lapsed,
        "lying": item.is_lying,
        "waiting": item.waiting_in_worker,
        "foreign_held": item.foreign_held,
        "failed_over": item.failed_over,
        "effect_fence": item.effect_fence,
        "effect_at": item.effect_at,
        "effect_seconds": _between(item.effect_at, item.clock),
        "since": item.since,
        "age_seconds": max(0.0, item.age),
        "due_in_seconds": -item.age if state is State.QUEUED and item.age < 0 else None,
        "fence": item.fence,
        "attempts": item.attempts,
        "max_attempts": item.max_attempts,
        "lease_owner": item.lease_owner,
        "lease_expires_at": item.lease_expires_at,
        "lease_left_seconds": item.lease_left,
        "progress": item.progress,
        "progress_at": item.progress_at,
        "silent_seconds": item.silent_for,
        "outcome_code": item.outcome_code,
        "updated_at": item.updated_at,
        "enqueued_at": item.enqueued_at,
        "first_seen_seconds": _between(item.enqueued_at, item.clock) or 0.0,
        "next_owner": facts.next_owner(state),
        "reason": _reason(item, state=state, facts=facts, lapsed=lapsed),
    }


def _between(moment: datetime.datetime | None, clock: datetime.datetime) -> float | None:
    """Seconds from one of the database's times to its clock; never negative."""
    return None if moment is None else max(0.0, (clock - moment).total_seconds())


def _acted(item: Any) -> str:
    if item.effect_at is not None:
        return f"it may have acted since {item.effect_at:%H:%M:%S} UTC on {item.effect_at:%d %B}"
    if item.foreign_held:
        return "a worker that does not stamp held it, so it may have acted"
    if item.failed_over:
        return "a failover may have lost a claim of it, so it may have acted"
    if item.registered is not None and item.registered.target == Target.A:
        return "nothing happened: its effect commits together with its completion"
    return "it has not begun to act"


def _reason(item: Any, *, state: State, facts: JobFacts, lapsed: bool) -> str:
    match state:
        case State.CLAIMED:
            return _claimed_reason(item, facts=facts, lapsed=lapsed)
        case State.UNKNOWN:
            return f"Nobody knows whether the effect happened; {_acted(item)}."
        case State.QUARANTINED:
            return f"The input was not understood with confidence: {item.outcome_code or 'no reason on record'}."
        case State.FAILED_TERMINAL:
            return f"Failed for good: {item.outcome_code or 'no outcome on record'}. A retry is a new operation."
        case State.SUCCEEDED:
            return f"Succeeded{f': {item.outcome_code}' if item.outcome_code else ''}. This never changes."
        case State.QUEUED if not facts.registered:
            return "No worker takes it: no job type of this name is registered."
        case State.QUEUED if item.age < 0:
            return f"Not due for another {spell(-item.age)}."
        case State.QUEUED:
            return f"Due for {spell(item.age)}, waiting for a worker."


def _claimed_reason(item: Any, *, facts: JobFacts, lapsed: bool) -> str:
    if lapsed:
        return f"The lease ran out {spell(-item.lease_left)} ago; {_acted(item)}."
    if item.is_lying:
        return (
            f"The lease is kept alive, but nothing moved for {spell(item.silent_for)}"
            f" ({spell(facts.progress_seconds or 0)} is allowed); {_acted(item)}."
        )
    if item.waiting_in_worker:
        return "Claimed in a batch; its turn in the worker has not come."
    return f"A worker holds it; the lease runs {spell(item.lease_left or 0)} more."
