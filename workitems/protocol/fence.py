"""Fence: whose write counts. Each verb is one conditional write on tenant, operation, fence, state and lease owner.

A write that finds no row means that a newer claim exists or the item moved on. It is never retried.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from django.db import connections, transaction

from workitems.errors import OwnershipLost
from workitems.protocol.lease import Claim, in_key_order, places, settled
from workitems.protocol.statements import run, watch_replication
from workitems.states import QuarantineReason, State, Verdict


def begin(claim: Claim, *, using: str = "worker") -> None:
    """Stamp that an outside effect may start now; commit it before the first byte goes out.

    Raises: OwnershipLost when no row came back, or the commit could not be confirmed as replicated: do not act.
    RuntimeError inside a transaction: an uncommitted stamp would vanish with the worker.
    """
    if connections[using].in_atomic_block:
        raise RuntimeError("begin() was called inside a transaction; the stamp must commit before the effect starts.")
    with watch_replication(using) as watch:
        _one_row("begin", claim, using=using)
    if watch.unreplicated:
        raise OwnershipLost("The stamp may not survive a failover: do not act, let the lease run out.")


def hold(claim: Claim, *, using: str = "worker") -> None:
    """Lock the item inside the caller's transaction, for a business write in the same database (type A).

    Raises: OwnershipLost when no row came back: roll back. RuntimeError outside a transaction, where a lock holds nothing.
    """
    if not connections[using].in_atomic_block:
        raise RuntimeError("hold() was called outside a transaction, where a row lock ends with the statement.")
    _one_row("hold", claim, using=using)


def _one_row(statement: str, claim: Claim, *, using: str) -> None:
    parameters = {
        "tenant_id": claim.tenant_id,
        "operation_id": claim.operation_id,
        "fence": claim.fence,
        "lease_owner": claim.worker,
    }
    with run(statement, parameters, using=using) as cursor:
        if cursor.fetchone() is None:
            raise OwnershipLost


def complete(claim: Claim, *, outcome_code: str, using: str = "worker") -> None:
    """Confirmed success. Raises: OwnershipLost."""
    _expect(complete_many([(claim, outcome_code)], using=using))


def fail(claim: Claim, *, outcome_code: str, using: str = "worker") -> None:
    """Confirmed failure that no retry can fix. Raises: OwnershipLost."""
    _expect(fail_many([(claim, outcome_code)], using=using))


def park(claim: Claim, *, outcome_code: str, using: str = "worker") -> None:
    """The outcome is not known: to unknown, for reconciliation. Raises: OwnershipLost."""
    _expect(park_many([(claim, outcome_code)], using=using))


def quarantine(
    claim: Claim, *, reason: QuarantineReason, detail: Mapping[str, Any] | None = None, using: str = "worker"
) -> None:
    """The input was not understood with confidence: to the producer team. Only before `begin`.

    `detail` says where and by which rule, never a value of the payload; it goes on record in the same transaction.
    Raises: OwnershipLost, also when an effect has begun under this claim: then the outcome is in doubt; park it.
    """
    with transaction.atomic(using=using):
        if detail:
            _note(claim, verb="check", code=reason, detail=detail, using=using)
        _expect(quarantine_many([(claim, reason)], using=using))


def release(claim: Claim, *, waiting: bool = False, using: str = "worker") -> State:
    """Give an item back unfinished, only while not begun; returns the state it went to.

    Queued after a backoff; at the attempts ceiling failed_terminal, or unknown if an earlier claim may have acted.
    `waiting`: a batch-mate whose turn never came; it goes back at once and its attempt is not held against it.
    Raises: OwnershipLost, also when an effect has begun under this claim.
    """
    state = release_many([claim], waiting=waiting, using=using)[0]
    if state is None:
        raise OwnershipLost
    return state


def complete_many(outcomes: Sequence[tuple[Claim, str]], *, using: str = "worker") -> list[bool]:
    """Complete several claims in one statement. False: ownership lost."""
    return _with_codes("complete", outcomes, using=using)


def fail_many(outcomes: Sequence[tuple[Claim, str]], *, using: str = "worker") -> list[bool]:
    """Fail several claims in one statement. False: ownership lost."""
    return _with_codes("fail", outcomes, using=using)


def park_many(outcomes: Sequence[tuple[Claim, str]], *, using: str = "worker") -> list[bool]:
    """Park several claims in one statement. False: ownership lost."""
    return _with_codes("park", outcomes, using=using)


def quarantine_many(outcomes: Sequence[tuple[Claim, QuarantineReason]], *, using: str = "worker") -> list[bool]:
    """Quarantine several claims in one statement. False: ownership lost, or begun."""
    return _with_codes("quarantine", outcomes, using=using)


def release_many(claims: Sequence[Claim], *, waiting: bool = False, using: str = "worker") -> list[State | None]:
    """Release several claims in one statement; the state each went to. None: ownership lost, or begun."""
    order = in_key_order(claims)
    return settled("release", [claims[p] for p in order], order, {"waiting": [waiting] * len(claims)}, using=using)


def _with_codes(statement: str, outcomes: Sequence[tuple[Claim, str]], *, using: str) -> list[bool]:
    order = in_key_order([claim for claim, _ in outcomes])
    claims = [outcomes[place][0] for place in order]
    return places(statement, claims, order, {"codes": [str(outcomes[place][1]) for place in order]}, using=using)


def _expect(written: list[bool]) -> None:
    if written != [True]:
        raise OwnershipLost


def note_reconcile(claim: Claim, *, verdict: Verdict, evidence: Mapping[str, Any], using: str = "worker") -> None:
    """Put a reconcile's verdict on record under this claim: what was asked, what came back; no identifiers, no payload.

    Raises: OwnershipLost.
    """
    _note(claim, verb="reconcile", code=verdict, detail=evidence, using=using)


def note_rejected(claim: Claim, *, tried: str, outcome_code: str | None = None, using: str = "worker") -> bool:
    """Keep what a claim that lost still had to say: the verb whose write found no row, and the outcome it would have written.

    Evidence for whoever reconciles: this worker's claim, no proof, and it changes nothing. Kept once for each fence and
    verb, and at most 20 times an hour for one item; returns whether it was kept.
    """
    with connections[using].cursor() as cursor:
        cursor.execute(
            "SELECT fencewatch.note_rejected(%s, %s, %s::bigint, %s, %s, %s)",
            [claim.tenant_id, claim.operation_id, claim.fence, claim.worker, tried, outcome_code],
        )
        row = cursor.fetchone()
    return bool(row and row[0])


def _note(claim: Claim, *, verb: str, code: str, detail: Mapping[str, Any], using: str) -> None:
    with connections[using].cursor() as cursor:
        cursor.execute(
            "SELECT fencewatch.note(%s, %s, %s::bigint, %s, %s, %s, %s::jsonb)",
            [claim.tenant_id, claim.operation_id, claim.fence, claim.worker, verb, str(code), json.dumps(detail)],
        )
        row = cursor.fetchone()
    if row is None or not row[0]:
        raise OwnershipLost
