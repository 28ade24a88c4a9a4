"""The article's own statements, by a worker that knows nothing else: they give the article's answers on this table."""

from typing import Any

import pytest

from tests.protocol.stage import add_job_type, enqueue, row
from workitems import protocol
from workitems.errors import BadJobType

INSERT = """INSERT INTO work_item (tenant_id, operation_id, payload_hash, payload_ref) VALUES (%(tenant)s, %(operation)s, %(hash)s, 'r')
ON CONFLICT (tenant_id, operation_id) DO NOTHING RETURNING operation_id"""
COMPARE = "SELECT payload_hash, state FROM work_item WHERE tenant_id = %(tenant)s AND operation_id = %(operation)s"
CLAIM = """WITH candidate AS (SELECT tenant_id, operation_id FROM work_item WHERE attempts < max_attempts
  AND (state = 'queued' OR (state = 'claimed' AND lease_expires_at < now())) ORDER BY updated_at FOR UPDATE SKIP LOCKED LIMIT 1)
UPDATE work_item w SET state = 'claimed', fence = w.fence + 1, lease_owner = %(worker)s, lease_expires_at = now() + interval '60 seconds',
  attempts = w.attempts + 1, updated_at = now()
FROM candidate c WHERE w.tenant_id = c.tenant_id AND w.operation_id = c.operation_id
RETURNING w.tenant_id, w.operation_id, w.fence, w.attempts, w.payload_ref"""
MINE = "WHERE tenant_id = %(tenant)s AND operation_id = %(operation)s AND fence = %(fence)s AND state = 'claimed'"
HEARTBEAT = f"UPDATE work_item SET lease_expires_at = now() + interval '60 seconds', updated_at = now() {MINE}"
COMPLETE = f"UPDATE work_item SET state = 'succeeded', outcome_code = 'ok', lease_owner = NULL, lease_expires_at = NULL, updated_at = now() {MINE}"
SWEEP = "UPDATE work_item SET state = 'unknown', updated_at = now() WHERE state = 'claimed' AND lease_expires_at < now() AND attempts >= max_attempts"


def test_insert_claim_heartbeat_and_complete_work_as_printed(
    database: Any, foreign: Any, tenants: tuple[str, str]
) -> None:
    key = {"tenant": tenants[0], "operation": "op-1", "hash": b"\x01", "worker": "old", "fence": 0}
    assert foreign.execute(INSERT, key).fetchone() == ("op-1",)
    assert foreign.execute(INSERT, key).fetchone() is None
    assert foreign.execute(COMPARE, key).fetchone() == (b"\x01", "queued")
    _, _, fence, attempts, _ = foreign.execute(CLAIM, key).fetchone()
    assert fence >> 32 > 0  # the timeline's fence, though the statement says fence + 1
    assert attempts == 1
    key["fence"] = fence
    assert foreign.execute(HEARTBEAT, key).rowcount == 1
    assert foreign.execute(COMPLETE, key).rowcount == 1
    assert foreign.execute(COMPLETE, key).rowcount == 0
    assert foreign.execute(HEARTBEAT, key).rowcount == 0
    assert row(tenants[0])["outcome_code"] == "ok"


def test_its_sweep_as_printed_leaves_no_lease_behind(
    database: Any, foreign: Any, superuser: Any, tenants: tuple[str, str], verbs_of: Any
) -> None:
    key = {"tenant": tenants[0], "operation": "op-1", "hash": b"\x01", "worker": "old"}
    foreign.execute(INSERT, key)
    superuser.execute("UPDATE work_item SET max_attempts = 1")
    foreign.execute(CLAIM, key)
    superuser.execute("UPDATE work_item SET lease_expires_at = clock_timestamp() - interval '1 second'")
    assert foreign.execute(SWEEP).rowcount == 1
    swept = row(tenants[0])
    assert (swept["state"], swept["lease_owner"], swept["lease_expires_at"]) == ("unknown", None, None)
    assert verbs_of(tenants[0]) == ["enqueue", "claim", "sweep"]


def test_our_sweep_never_calls_a_foreign_workers_item_never_begun(
    database: Any, foreign: Any, superuser: Any, tenants: tuple[str, str]
) -> None:
    key = {"tenant": tenants[0], "operation": "op-1", "hash": b"\x01", "worker": "old"}
    foreign.execute(INSERT, key)
    superuser.execute("UPDATE work_item SET max_attempts = 1")
    foreign.execute(CLAIM, key)
    superuser.execute("UPDATE work_item SET lease_expires_at = clock_timestamp() - interval '1 second'")
    assert protocol.sweep().unknown == 1


def test_it_cannot_claim_what_is_not_due_or_on_hold(
    database: Any, foreign: Any, superuser: Any, tenants: tuple[str, str]
) -> None:
    key = {"tenant": tenants[0], "operation": "op-1", "hash": b"\x01", "worker": "old"}
    foreign.execute(INSERT, key)
    superuser.execute("UPDATE work_item SET available_at = clock_timestamp() + interval '1 hour'")
    assert foreign.execute(CLAIM, key).fetchone() is None
    superuser.execute("UPDATE work_item SET available_at = clock_timestamp()")
    superuser.execute("UPDATE job_type SET held_until = clock_timestamp() + interval '1 hour' WHERE name = 'legacy'")
    assert foreign.execute(CLAIM, key).fetchone() is None
    superuser.execute("UPDATE job_type SET held_until = NULL")
    assert foreign.execute(CLAIM, key).fetchone() is not None
    superuser.execute("UPDATE job_type SET held_until = clock_timestamp() + interval '1 hour' WHERE name = 'legacy'")
    superuser.execute("UPDATE work_item SET lease_expires_at = clock_timestamp() - interval '1 second'")
    assert foreign.execute(CLAIM, key).fetchone() is None  # nor taken over


def test_it_claims_no_job_type_that_is_not_open_to_it_and_our_workers_claim_no_legacy(
    database: Any, foreign: Any, superuser: Any, tenants: tuple[str, str]
) -> None:
    add_job_type()
    enqueue(tenants[0], "ours")
    assert foreign.execute(CLAIM, {"worker": "old"}).fetchone() is None
    superuser.execute("UPDATE job_type SET foreign_claims = true WHERE name = 'test.job'")
    assert foreign.execute(CLAIM, {"worker": "old"}).fetchone()[1] == "ours"
    with pytest.raises(BadJobType, match="legacy"):
        protocol.claim(job_type="legacy", worker="new")


def test_what_a_foreign_worker_held_must_be_reconciled_by_ours(
    database: Any, foreign: Any, superuser: Any, tenants: tuple[str, str]
) -> None:
    add_job_type(foreign_claims=True)
    enqueue(tenants[0], "ours")
    foreign.execute(CLAIM, {"worker": "old"})
    superuser.execute("UPDATE work_item SET lease_expires_at = clock_timestamp() - interval '1 second'")
    (claim,) = protocol.claim(job_type="test.job", worker="new")
    assert claim.must_reconcile
    key = {"tenant": tenants[0], "operation": "ours", "fence": claim.fence - 1}
    assert foreign.execute(COMPLETE, key).rowcount == 0
