"""The stage that tests set: job types of each target, items in each state, leases that ran out, a look at the whole row."""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections

from workitems import protocol
from workitems.states import QuarantineReason, State

HASH = hashlib.sha256(b"{}").digest()
JOB_TYPE = "test.job"


def add_job_type(
    name: str = JOB_TYPE, *, target: str = "C", max_attempts: int = 3, ceiling: int = 5, lease: int = 60, **more: Any
) -> str:
    """A row of job_type, as `sync_job_types` would write it."""
    columns: dict[str, Any] = {
        "name": name,
        "target": target,
        "side_effect": "irreversible",
        "owner": "billing",
        "producer_team": "checkout",
        "system_owner": "payments",
        "lease_seconds": lease,
        "progress_seconds": 120,
        "max_attempts": max_attempts,
        "attempts_ceiling": ceiling,
        "reconciles": target in "BC",
        "no_reconciler_because": "" if target in "BC" else "no look-up",
        "fingerprint": "test",
    }
    if target == "C":
        columns |= {
            "key_window_seconds": 86_400,
            "key_scope": "account",
            "key_mismatch": "422",
            "key_source": "provider's reference",
            "key_verified_on": "2026-01-01",
            "key_verified_by": "somebody",
            "key_expires_on": "2099-01-01",
        }
    columns |= more
    with connections["owner"].cursor() as cursor:
        cursor.execute("SELECT fencewatch.put_job_type(%s::jsonb)", [json.dumps(columns, default=str)])
    return name


def enqueue(tenant_id: str, operation_id: str = "op-1", *, job_type: str = JOB_TYPE, **more: Any) -> protocol.Enqueued:
    return protocol.enqueue(
        **{
            "tenant_id": tenant_id,
            "operation_id": operation_id,
            "payload_hash": HASH,
            "payload_ref": "ref",
            "job_type": job_type,
            **more,
        }
    )


def claim_one(worker: str = "host/1/aaaa", *, job_type: str = JOB_TYPE) -> protocol.Claim:
    (claim,) = protocol.claim(job_type=job_type, worker=worker)
    return claim


def row(tenant_id: str, operation_id: str = "op-1") -> dict[str, Any]:
    """The whole row, as the worker role reads it."""
    with connections["worker"].cursor() as cursor:
        cursor.execute("SELECT * FROM work_item WHERE tenant_id = %s AND operation_id = %s", [tenant_id, operation_id])
        names = [column.name for column in cursor.description]
        return dict(zip(names, cursor.fetchone(), strict=True))


@contextmanager
def guard_off(superuser: Any) -> Iterator[None]:
    """For setting a stage that no verb could: the triggers are back before anything is tested."""
    superuser.execute("ALTER TABLE work_item DISABLE TRIGGER USER")
    try:
        yield
    finally:
        superuser.execute(
            "ALTER TABLE work_item ENABLE ALWAYS TRIGGER guard, ENABLE ALWAYS TRIGGER identify,"
            " ENABLE ALWAYS TRIGGER never_again, ENABLE ALWAYS TRIGGER only_buried, ENABLE ALWAYS TRIGGER never_truncated,"
            " ENABLE ALWAYS TRIGGER record_enqueued, ENABLE ALWAYS TRIGGER record_changed"
        )


def let_leases_run_out(superuser: Any) -> None:
    superuser.execute(
        "UPDATE work_item SET lease_expires_at = clock_timestamp() - interval '1 second' WHERE state = 'claimed'"
    )


def make(state: State, tenant_id: str, operation_id: str = "op-1", *, job_type: str = JOB_TYPE) -> protocol.Claim:
    """An item in `state`, brought there by the protocol; returns the claim that held it last (for queued: one given back)."""
    enqueue(tenant_id, operation_id, job_type=job_type)
    if state is State.QUEUED:  # claimed as a mate of a batch, and given back before its turn came
        claims = protocol.claim(job_type=job_type, worker="host/1/aaaa", limit=100)
        protocol.release_many(claims, waiting=True)
        return next(c for c in claims if (c.tenant_id, c.operation_id) == (tenant_id, operation_id))
    claim = claim_one(job_type=job_type)
    match state:
        case State.SUCCEEDED:
            protocol.complete(claim, outcome_code="done")
        case State.FAILED_TERMINAL:
            protocol.fail(claim, outcome_code="refused")
        case State.UNKNOWN:
            protocol.park(claim, outcome_code="timeout")
        case State.QUARANTINED:
            protocol.quarantine(claim, reason=QuarantineReason.UNPARSEABLE)
    return claim


VERBS: dict[str, Callable[[protocol.Claim], object]] = {
    "begin": protocol.begin,
    "heartbeat": lambda claim: protocol.heartbeat(claim, progress=1_000),
    "complete": lambda claim: protocol.complete(claim, outcome_code="done"),
    "fail": lambda claim: protocol.fail(claim, outcome_code="refused"),
    "release": protocol.release,
    "park": lambda claim: protocol.park(claim, outcome_code="timeout"),
    "quarantine": lambda claim: protocol.quarantine(claim, reason=QuarantineReason.UNPARSEABLE),
    "note_reconcile": lambda claim: protocol.note_reconcile(claim, verdict="happened", evidence={"asked": "by key"}),
}
