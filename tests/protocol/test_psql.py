"""A worker that is nothing but psql: the article's statements, each by a session of its own, under the worker's role."""

import subprocess
from typing import Any

import psycopg
import pytest

from tests.cluster import Database
from tests.protocol.stage import add_job_type, enqueue, row

INSERT = """INSERT INTO work_item (tenant_id, operation_id, payload_hash, payload_ref)
VALUES (:'tenant_id', :'operation_id', decode(:'payload', 'hex'), 'ref') ON CONFLICT (tenant_id, operation_id) DO NOTHING
RETURNING operation_id;"""
COMPARE = """SELECT encode(payload_hash, 'hex'), state FROM work_item
WHERE tenant_id = :'tenant_id' AND operation_id = :'operation_id';"""
CLAIM = """WITH candidate AS (
  SELECT tenant_id, operation_id FROM work_item WHERE attempts < max_attempts
     AND (state = 'queued' OR (state = 'claimed' AND lease_expires_at < now()))
   ORDER BY updated_at FOR UPDATE SKIP LOCKED LIMIT 1)
UPDATE work_item w SET state = 'claimed', fence = w.fence + 1, lease_owner = :'worker_id',
       lease_expires_at = now() + interval '60 seconds', attempts = w.attempts + 1, updated_at = now()
  FROM candidate c WHERE w.tenant_id = c.tenant_id AND w.operation_id = c.operation_id
RETURNING w.tenant_id, w.operation_id, w.fence, w.attempts, w.payload_ref;"""
MINE = "WHERE tenant_id = :'tenant_id' AND operation_id = :'operation_id' AND fence = :fence AND state = 'claimed'"
HEARTBEAT = f"UPDATE work_item SET lease_expires_at = now() + interval '60 seconds', updated_at = now() {MINE};"
COMPLETE = f"""UPDATE work_item SET state = 'succeeded', outcome_code = 'refunded', lease_owner = NULL, lease_expires_at = NULL,
       updated_at = now() {MINE};"""
SWEEP = """UPDATE work_item SET state = 'unknown', updated_at = now()
WHERE state = 'claimed' AND lease_expires_at < now() AND attempts >= max_attempts;"""
HOLD = f"SELECT 1 FROM work_item {MINE} FOR UPDATE;"
REFUND = "UPDATE invoice SET status = 'refunded' WHERE invoice_id = 1 AND status = 'paid';"
# The target's own guard: it keeps the highest fence it has seen, and compares in the write.
TARGET_WRITE = "UPDATE account SET balance = balance - 5, fence = :fence WHERE account_id = 1 AND fence < :fence;"


@pytest.fixture
def psql(database: Database, tenants: tuple[str, str], superuser: Any) -> Any:
    """``psql(CLAIM, worker_id="one")``: the lines that psql prints for these statements; variables are psql's own."""
    superuser.execute(
        "CREATE TABLE invoice (invoice_id int PRIMARY KEY, status text); INSERT INTO invoice VALUES (1, 'paid');"
        "CREATE TABLE account (account_id int PRIMARY KEY, balance int, fence bigint); INSERT INTO account VALUES (1, 100, 0);"
        "GRANT SELECT, UPDATE ON invoice, account TO fencewatch_worker"
    )

    def run(*statements: str, **variables: Any) -> list[str]:
        named = {"tenant_id": tenants[0], "operation_id": "op-1", "worker_id": "host/1", "payload": "01", **variables}
        done = subprocess.run(
            [
                *("psql", "--no-psqlrc", "--no-align", "--tuples-only", "--set", "ON_ERROR_STOP=1"),
                *(word for name, value in named.items() for word in ("--set", f"{name}={value}")),
                database.url("WORKER_DATABASE_URL"),
            ],
            input="\n".join(statements),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split("\n")[:-1]

    return run


def lapse(superuser: Any) -> None:
    superuser.execute("UPDATE work_item SET lease_expires_at = clock_timestamp() - interval '1 second'")


def fence_of(lines: list[str]) -> int:
    return int(lines[0].split("|")[2])


def test_insert_claim_heartbeat_and_complete(psql: Any, tenants: tuple[str, str]) -> None:
    assert psql(INSERT) == ["op-1", "INSERT 0 1"]
    assert psql(INSERT) == ["INSERT 0 0"]
    assert psql(COMPARE) == ["01|queued"]
    assert psql(INSERT, payload="02") == ["INSERT 0 0"]
    assert psql(COMPARE) == ["01|queued"]
    claimed = psql(CLAIM)
    fence = fence_of(claimed)
    assert claimed == [f"{tenants[0]}|op-1|{fence}|1|ref", "UPDATE 1"]
    assert fence >> 32 > 0
    assert psql(HEARTBEAT, fence=fence) == ["UPDATE 1"]
    assert psql(COMPLETE, fence=fence) == ["UPDATE 1"]
    assert psql(COMPLETE, fence=fence) == ["UPDATE 0"]
    assert psql(CLAIM) == ["UPDATE 0"]
    assert row(tenants[0])["outcome_code"] == "refunded"


def test_a_worker_that_lost_its_claim_changes_nothing(psql: Any, superuser: Any) -> None:
    psql(INSERT)
    old = fence_of(psql(CLAIM))
    assert psql(CLAIM, worker_id="two") == ["UPDATE 0"]
    lapse(superuser)
    new = fence_of(psql(CLAIM, worker_id="two"))
    assert new == old + 1
    assert psql(HEARTBEAT, fence=old) == ["UPDATE 0"]
    assert psql(COMPLETE, fence=old) == ["UPDATE 0"]
    assert psql(COMPLETE, fence=new) == ["UPDATE 1"]


def test_its_sweep_parks_used_up_attempts(psql: Any, superuser: Any, tenants: tuple[str, str]) -> None:
    psql(INSERT)
    superuser.execute("UPDATE work_item SET max_attempts = 1")
    psql(CLAIM)
    assert psql(SWEEP) == ["UPDATE 0"]
    lapse(superuser)
    assert psql(CLAIM) == ["UPDATE 0"]
    assert psql(SWEEP) == ["UPDATE 1"]
    swept = row(tenants[0])
    assert (swept["state"], swept["lease_owner"], swept["lease_expires_at"]) == ("unknown", None, None)


def test_the_same_database_pattern_commits_effect_and_completion_once(
    psql: Any, superuser: Any, database: Database
) -> None:
    psql(INSERT)
    old = fence_of(psql(CLAIM))
    lapse(superuser)
    with psycopg.connect(database.url("WORKER_DATABASE_URL")) as holder:
        held = holder.execute("SELECT 1 FROM work_item WHERE fence = %s AND state = 'claimed' FOR UPDATE", [old])
        assert held.fetchone() == (1,)
        assert psql(CLAIM, worker_id="two") == ["UPDATE 0"]  # its lock keeps others off, though the lease is over
    new = fence_of(psql(CLAIM, worker_id="two"))
    assert psql("BEGIN;", HOLD, "ROLLBACK;", fence=old) == ["BEGIN", "ROLLBACK"]
    assert psql("BEGIN;", HOLD, REFUND, COMPLETE, "COMMIT;", fence=new) == [
        "BEGIN",
        "1",
        "UPDATE 1",
        "UPDATE 1",
        "COMMIT",
    ]
    assert superuser.execute("SELECT status FROM invoice").fetchone() == ("refunded",)
    assert psql("BEGIN;", HOLD, "ROLLBACK;", fence=new) == ["BEGIN", "ROLLBACK"]


def test_the_target_rejects_a_lower_fence(psql: Any, superuser: Any) -> None:
    psql(INSERT)
    old = fence_of(psql(CLAIM))
    lapse(superuser)
    new = fence_of(psql(CLAIM, worker_id="two"))
    assert psql(TARGET_WRITE, fence=new) == ["UPDATE 1"]
    assert psql(TARGET_WRITE, fence=old) == ["UPDATE 0"]
    assert superuser.execute("SELECT balance FROM account").fetchone() == (95,)


def test_it_claims_nothing_that_is_not_due_held_or_not_open_to_it(
    psql: Any, superuser: Any, tenants: tuple[str, str]
) -> None:
    add_job_type()
    enqueue(tenants[0], "ours")
    assert psql(CLAIM) == ["UPDATE 0"]
    psql(INSERT)
    superuser.execute("UPDATE work_item SET available_at = clock_timestamp() + interval '1 hour'")
    assert psql(CLAIM) == ["UPDATE 0"]
    superuser.execute("UPDATE work_item SET available_at = clock_timestamp()")
    superuser.execute("UPDATE job_type SET held_until = clock_timestamp() + interval '1 hour' WHERE name = 'legacy'")
    assert psql(CLAIM) == ["UPDATE 0"]
    superuser.execute("UPDATE job_type SET held_until = NULL")
    assert psql(CLAIM)[0].split("|")[1] == "op-1"
