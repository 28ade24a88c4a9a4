"""The stage that tests of jobs set: definitions of each target, stored payloads, enqueued work, a look at the row."""

import hashlib
import json
from collections.abc import Callable
from datetime import date, timedelta
from typing import Any

from tests.protocol.stage import guard_off, let_leases_run_out, row
from workitems import protocol
from workitems.jobs import JobType, KeyRecord, SideEffect, Target, Work, did_not_happen, job_type
from workitems.jobs.agreement import sync
from workitems.jobs.payloads import store
from workitems.jobs.registry import job_types

SCHEMA = {
    1: {
        "type": "object",
        "properties": {"version": {"const": 1}, "amount": {"type": "integer", "minimum": 1}},
        "required": ["version", "amount"],
        "additionalProperties": False,
    }
}
KEY = KeyRecord(
    window=timedelta(hours=24),
    scope="account",
    mismatch="422",
    source="provider's reference, Idempotent requests",
    verified_on=date(2026, 1, 1),
    verified_by="A. Reader",
    expires_on=date(2099, 1, 1),
)
BODY = json.dumps({"version": 1, "amount": 250}).encode()


def nothing(work: Work) -> str:
    return "done"


def not_there(work: Work) -> Any:
    return did_not_happen(looked="by key")


def arguments(target: Target, /, **over: Any) -> dict[str, Any]:
    """A right definition of `target`, with some fields replaced."""
    right: dict[str, Any] = {
        "target": target,
        "side_effect": SideEffect.IRREVERSIBLE,
        "owner": "billing",
        "producer_team": "checkout",
        "system_owner": "payments",
        "lease": 60,
        "progress": 30,
        "max_attempts": 1 if target == Target.D else 3,
        "attempts_ceiling": 1 if target == Target.D else 5,
        "schema": SCHEMA,
    }
    if target in (Target.B, Target.C):
        right["reconcile"] = not_there
    if target == Target.C:
        right["key"] = KEY
    return right | over


def define(
    target: Target, handler: Callable[[Work], str] = nothing, *, name: str = "billing.refund", **over: Any
) -> JobType:
    return job_type(name, **arguments(target, **over))(handler)


def defined(
    target: Target, handler: Callable[[Work], str] = nothing, *, name: str = "billing.refund", **over: Any
) -> JobType:
    """A definition that the job_type table has too."""
    job = define(target, handler, name=name, **over)
    sync(job_types())
    return job


def enqueue(
    tenant_id: str,
    operation_id: str = "op-1",
    *,
    job: JobType,
    body: bytes = BODY,
    payload_hash: bytes | None = None,
    keep: bool = True,
) -> None:
    reference = f"payload of {operation_id}"
    if keep:
        store(tenant_id=tenant_id, payload_ref=reference, body=body)
    protocol.enqueue(
        tenant_id=tenant_id,
        operation_id=operation_id,
        payload_hash=payload_hash or hashlib.sha256(body).digest(),
        payload_ref=reference,
        job_type=job.name,
    )


def standing(tenant_id: str, operation_id: str = "op-1") -> tuple[str, str | None]:
    found = row(tenant_id, operation_id)
    return found["state"], found["outcome_code"]


def make_due(superuser: Any) -> None:
    """End every backoff."""
    with guard_off(superuser):
        superuser.execute(
            "UPDATE work_item SET available_at = clock_timestamp() - interval '1 second' WHERE state = 'queued'"
        )


def notes(superuser: Any) -> list[tuple[str, str, dict[str, Any]]]:
    """What reconciles and checks put on record, oldest first: verb, code, detail."""
    return list(
        superuser.execute(
            "SELECT verb, outcome_code, detail FROM work_event WHERE verb IN ('reconcile', 'check') ORDER BY event_id"
        ).fetchall()
    )


__all__ = ["let_leases_run_out", "row"]
