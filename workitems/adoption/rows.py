"""Carrying the rows over: batches that touch each row once, so that the trigger fills it and puts it right."""

import json
import time
from typing import Any

from django.db import IntegrityError, connections, transaction

from workitems.adoption.inspection import tenants
from workitems.adoption.locks import Say
from workitems.tenancy import add_tenant

BATCH = 2_000
REST = 0.25  # of each batch's time, left to the old workers
UNFILLED = "item_id IS NULL OR op_digest IS NULL"
# What a batch put right, told by the row before and after: the trigger is the one place that decides.
NORMALISED = {
    "a claim without a lease became unknown": "b.state = 'claimed' AND w.state = 'unknown'",
    "queued with its attempts used up became unknown": "b.state = 'queued' AND w.state = 'unknown'",
    "lease left on a row that nobody holds, cleared": (
        "w.state <> 'claimed' AND (b.lease_owner IS NOT NULL OR b.lease_expires_at IS NOT NULL)"
    ),
    "lease of more than a day, cut to a day": "w.lease_expires_at < b.lease_expires_at",
    "lease owner empty or over 200 characters": "w.state = 'claimed' AND w.lease_owner IS DISTINCT FROM b.lease_owner",
    "outcome code empty or over 100 characters": "w.outcome_code IS DISTINCT FROM b.outcome_code",
    "attempts, or their limit, below what the state needs": "w.attempts <> b.attempts OR w.max_attempts <> b.max_attempts",
    "fence below zero": "w.fence <> b.fence",
    "last change in the future or before 2000": "w.updated_at <> b.updated_at",
}
_COUNTS = ",\n       ".join(f"count(*) FILTER (WHERE {changed})" for changed in NORMALISED.values())
# Locked rows are passed over, and found by the next run of backfill. ctid, since the rows are locked and stay put.
_CARRY = """
WITH b AS MATERIALIZED (
    SELECT ctid, tenant_id, operation_id, item_id, state, fence, lease_owner, lease_expires_at, attempts, max_attempts,
           outcome_code, updated_at
      FROM public.work_item
     WHERE ({unfilled}) {beyond}
     ORDER BY tenant_id, operation_id LIMIT {batch} FOR UPDATE SKIP LOCKED),
w AS (
    UPDATE public.work_item u SET state = u.state WHERE u.ctid = ANY (ARRAY(SELECT ctid FROM b)) RETURNING u.*),
told AS (
    INSERT INTO public.work_event (item_id, tenant_digest, verb, state_before, state_after, fence, attempts, outcome_code)
    SELECT w.item_id, w.tenant_digest, 'adopt', b.state, w.state, w.fence, w.attempts, w.outcome_code
      FROM w JOIN b USING (tenant_id, operation_id) WHERE w.state <> b.state AND w.tenant_digest IS NOT NULL),
last AS (SELECT tenant_id, operation_id FROM b ORDER BY tenant_id DESC, operation_id DESC LIMIT 1)
SELECT (SELECT tenant_id FROM last), (SELECT operation_id FROM last), count(*) FILTER (WHERE b.item_id IS NULL),
       {counts}
  FROM w JOIN b USING (tenant_id, operation_id)"""


def counted(normalised: Any) -> dict[str, int]:
    """What was put right, from the column that holds it: Django's cursors hand JSON out as text."""
    return dict(json.loads(normalised) if isinstance(normalised, str) else normalised)


def add_tenants(*, using: str) -> None:
    """Give each tenant of the table that is not known yet a key of its own."""
    with connections[using].cursor() as cursor:
        there = tenants(cursor)
        cursor.execute("SELECT tenant_id FROM public.tenant")
        known = {tenant_id for (tenant_id,) in cursor.fetchall()}
    for tenant_id in there:
        if tenant_id not in known:
            try:
                add_tenant(tenant_id=tenant_id, using=using)
            except IntegrityError:
                continue  # by somebody else at this moment


def backfill(*, using: str, say: Say) -> None:
    """Carry over every row that nobody holds, in short transactions, and count what was put right."""
    total = 0
    after: tuple[str, str] | None = None
    spoken = time.monotonic()
    while True:
        started = time.monotonic()
        rows, after = _carry(after, using=using)
        if after is None:
            return
        total += rows
        if time.monotonic() - spoken > 5:
            say(f"{total:,} rows carried over")
            spoken = time.monotonic()
        time.sleep(REST * (time.monotonic() - started))


def _carry(after: tuple[str, str] | None, *, using: str) -> tuple[int, tuple[str, str] | None]:
    beyond = "AND (tenant_id, operation_id) > (%(tenant)s, %(operation)s)" if after else ""
    statement = _CARRY.format(unfilled=UNFILLED, beyond=beyond, batch=BATCH, counts=_COUNTS)
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        cursor.execute(statement, {"tenant": after[0], "operation": after[1]} if after else {})
        tenant_id, operation_id, rows, *changed = cursor.fetchone()
        if tenant_id is None:
            return 0, None
        cursor.execute("SELECT normalised FROM fencewatch.adoption FOR UPDATE")
        so_far = counted(cursor.fetchone()[0])
        for what, count in zip(NORMALISED, changed, strict=True):
            if count:
                so_far[what] = so_far.get(what, 0) + count
        cursor.execute(
            "UPDATE fencewatch.adoption SET rows = rows + %s, normalised = %s::jsonb", [rows, json.dumps(so_far)]
        )
    return rows, (tenant_id, operation_id)
