"""Lease: who should be doing an item, and for how long others keep off. Liveness only; safety is the fence's."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connections

from workitems.errors import BadJobType, OwnershipLost
from workitems.protocol.statements import run, watch_replication
from workitems.states import LEGACY, State, Target


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """One claim of one item: what every later write of this worker must carry.

    `deadline` is this host's monotonic clock, read before the claim was sent, plus the lease: it never lies late.
    `must_reconcile`: an earlier claim may have acted; ask before acting. `window_from`: the earliest moment at which one
    may have, from where a type C key's window counts; None where none can have.
    """

    tenant_id: str
    operation_id: str
    job_type: str
    target: Target
    fence: int
    worker: str
    attempts: int
    max_attempts: int
    payload_ref: str
    payload_hash: bytes
    lease_seconds: int
    must_reconcile: bool
    cleared: bool
    op_digest: bytes
    first_effect_at: datetime | None
    window_from: datetime | None
    deadline: float

    def __repr__(self) -> str:
        return f"<Claim {self.op_digest.hex()[:16]} fence {self.fence}>"  # a repr ends up in logs: digests only


@dataclass(frozen=True, kw_only=True, slots=True)
class Swept:
    """How many items a sweep moved on, by the state they went to."""

    queued: int
    failed_terminal: int
    unknown: int


def claim(*, job_type: str, worker: str, limit: int = 1, using: str = "worker") -> list[Claim]:
    """Claim up to `limit` items of a job type: those whose lease ran out first, then those that are due, oldest first.

    A type D item is claimed alone, whatever the limit. A claim whose commit could not be confirmed as replicated is not
    owned and not returned: its lease runs out.

    Raises: RuntimeError inside a transaction: a claim has to be committed before anybody acts on it. BadJobType for
    `legacy`: rows without a job type are for workers that know the article's statements only.
    Source: the article, "Claim: one atomic statement"; design, section 3, rules 1 to 6.
    """
    if connections[using].in_atomic_block:
        raise RuntimeError("claim() was called inside a transaction; a claim must commit before anybody acts on it.")
    if job_type == LEGACY:
        raise BadJobType("legacy items have no job type: nobody here knows what would run them.")
    waiting = limit > 1  # all of a batch wait for their turn, whichever statement took them
    taken = _take("take_over", job_type=job_type, worker=worker, limit=limit, waiting=waiting, using=using)
    if len(taken) < limit and not any(c.target is Target.D for c in taken):
        taken += _take(
            "claim", job_type=job_type, worker=worker, limit=limit - len(taken), waiting=waiting, using=using
        )
    return taken


def _take(statement: str, *, job_type: str, worker: str, limit: int, waiting: bool, using: str) -> list[Claim]:
    before = time.monotonic()
    parameters = {"job_type": job_type, "worker": worker, "limit": limit, "waiting": waiting}
    with watch_replication(using) as watch, run(statement, parameters, using=using) as cursor:
        names = [column.name for column in cursor.description or ()]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    if watch.unreplicated:
        return []
    rows.sort(key=lambda row: row.pop("available_at"))  # rows come back as they lie on disk
    return [_claim_of(row, before=before) for row in rows]


def _claim_of(row: Mapping[str, Any], *, before: float) -> Claim:
    return Claim(
        **{
            **row,
            "target": Target(row["target"]),
            "payload_hash": bytes(row["payload_hash"]),
            "op_digest": bytes(row["op_digest"]),
            "deadline": before + row["lease_seconds"],
        }
    )


def in_key_order(claims: Sequence[Claim]) -> list[int]:
    """The places of claims in key order, in which batch statements lock rows, so that no two of them deadlock."""
    return sorted(range(len(claims)), key=lambda place: (claims[place].tenant_id, claims[place].operation_id))


def keys_of(claims: Sequence[Claim]) -> dict[str, list[Any]]:
    """The arrays by which a batch statement recognises its claims."""
    return {
        "tenants": [c.tenant_id for c in claims],
        "operations": [c.operation_id for c in claims],
        "fences": [c.fence for c in claims],
        "owners": [c.worker for c in claims],
    }


def heartbeat(claim: Claim, *, progress: int, using: str = "worker") -> float:
    """Extend my lease because work moved on: `progress` must be higher than at the last heartbeat, and starts at 1.

    Returns the new deadline on this host's monotonic clock.
    Raises: OwnershipLost when no row came back: stop at once.
    """
    before = time.monotonic()
    if heartbeat_many([(claim, progress)], using=using) != [True]:
        raise OwnershipLost
    return before + claim.lease_seconds


def heartbeat_many(marks: Sequence[tuple[Claim, int]], *, using: str = "worker") -> list[bool]:
    """Extend several leases in one statement, each by its own progress mark. False: ownership lost, or no progress."""
    order = in_key_order([claim for claim, _ in marks])
    claims = [marks[place][0] for place in order]
    extra = {"leases": [c.lease_seconds for c in claims], "progress": [marks[place][1] for place in order]}
    return places("heartbeat", claims, order, extra, using=using)


def extend_waiting(claims: Sequence[Claim], *, using: str = "worker") -> set[Claim]:
    """Extend the leases of batch-mates whose turn has not come; returns those still owned. Drop the others."""
    order = in_key_order(claims)
    sorted_claims = [claims[place] for place in order]
    kept = places(
        "extend_waiting", sorted_claims, order, {"leases": [c.lease_seconds for c in sorted_claims]}, using=using
    )
    return {claim for claim, owned in zip(claims, kept, strict=True) if owned}


def settled(
    statement: str, claims: Sequence[Claim], order: Sequence[int], extra: Mapping[str, Any], *, using: str
) -> list[State | None]:
    """Run a batch statement on claims in key order; for each place of the caller's order, the state it left, or None."""
    states: list[State | None] = [None] * len(claims)
    if not claims:
        return states
    with run(statement, {**keys_of(claims), **extra}, using=using) as cursor:
        for place, state in cursor.fetchall():
            states[order[place - 1]] = State(state)
    return states


def places(
    statement: str, claims: Sequence[Claim], order: Sequence[int], extra: Mapping[str, Any], *, using: str
) -> list[bool]:
    """As `settled`, saying only whether the write took place."""
    return [state is not None for state in settled(statement, claims, order, extra, using=using)]


def sweep(*, limit: int = 1_000, using: str = "keeper") -> Swept:
    """Move on what ran out of attempts and lease, at most `limit` items. Safe to run twice at once.

    Source: the article, "Sweeper"; design, section 2.
    """
    with run("sweep", {"limit": limit}, using=using) as cursor:
        moved = dict(cursor.fetchall())
    return Swept(
        queued=moved.get("queued", 0), failed_terminal=moved.get("failed_terminal", 0), unknown=moved.get("unknown", 0)
    )
