"""The planner's traps: each was seen to cost a factor of four to twenty on tables of this shape."""

import re
from typing import Any

import psycopg
import pytest
from django.db import connections, transaction

from tests.protocol.stage import HASH, add_job_type, guard_off
from workitems import protocol
from workitems.protocol.lease import keys_of
from workitems.protocol.statements import PROTOCOL, statements

IN_FLIGHT = 2_000
BATCH = 1_000


def explain(name: str, parameters: dict[str, Any], options: str = "COSTS OFF") -> str:
    """The plan that a prepared statement gets on the worker's connection; nothing of the statement stays.

    EXPLAIN of the bare text would plan for these very values; EXECUTE of a prepared one plans as the worker's session does.
    """
    order: list[str] = []

    def numbered(match: re.Match[str]) -> str:
        if match[1] not in order:
            order.append(match[1])
        return f"${order.index(match[1]) + 1}"

    text = re.sub(r"%\((\w+)\)s", numbered, statements(PROTOCOL)[name])
    connections["worker"].ensure_connection()
    connection = connections["worker"].connection
    with transaction.atomic(using="worker"), psycopg.ClientCursor(connection) as cursor:
        cursor.execute(f"PREPARE explained AS {text}")
        try:
            cursor.execute(
                f"EXPLAIN ({options}) EXECUTE explained({', '.join(['%s'] * len(order))})",
                [parameters[key] for key in order],
            )
            plan = "\n".join(line for (line,) in cursor.fetchall())
        finally:
            transaction.set_rollback(True, using="worker")
            cursor.execute("DEALLOCATE explained")
    return plan


def fill(superuser: Any, tenants: tuple[str, str], rows: int) -> None:
    """Finished history, so that a scan of the whole table costs what it costs in real life."""
    with guard_off(superuser):
        superuser.execute(
            """INSERT INTO work_item (tenant_id, operation_id, payload_hash, payload_ref, state, attempts, job_type,
                   op_digest, tenant_digest, digest_key_version)
               SELECT %s, 'old-' || g, '\\x01', 'r', 'succeeded', 1, 'test.job', sha256(('old' || g)::bytea), '\\x00', 1
                 FROM generate_series(1, %s) g""",
            [tenants[0], rows],
        )


def enqueue_thousands(tenants: tuple[str, str], count: int) -> None:
    protocol.enqueue_many(
        [
            protocol.NewItem(
                tenant_id=tenants[n % 2],
                operation_id=f"op-{n}",
                payload_hash=HASH,
                payload_ref="r",
                job_type="test.job",
            )
            for n in range(count)
        ]
    )


@pytest.fixture(params=["statistics of an empty table", "statistics of a full table"])
def busy(
    request: pytest.FixtureRequest, database: Any, superuser: Any, tenants: tuple[str, str]
) -> list[protocol.Claim]:
    """A table with history, a backlog and many items in flight, its statistics taken before or after."""
    add_job_type()
    fill(superuser, tenants, 20_000)
    superuser.execute("VACUUM ANALYZE work_item")
    enqueue_thousands(tenants, 2 * IN_FLIGHT)
    claims = protocol.claim(job_type="test.job", worker="w", limit=IN_FLIGHT)
    if request.param.endswith("full table"):
        superuser.execute("VACUUM ANALYZE work_item")
    return claims


ONE = {
    "begin": lambda c: {
        "tenant_id": c.tenant_id,
        "operation_id": c.operation_id,
        "fence": c.fence,
        "lease_owner": c.worker,
    },
    "hold": lambda c: {
        "tenant_id": c.tenant_id,
        "operation_id": c.operation_id,
        "fence": c.fence,
        "lease_owner": c.worker,
    },
}
MANY = {
    "complete": lambda n: {"codes": ["done"] * n},
    "fail": lambda n: {"codes": ["refused"] * n},
    "park": lambda n: {"codes": ["timeout"] * n},
    "quarantine": lambda n: {"codes": ["unparseable"] * n},
    "release": lambda n: {"waiting": [False] * n},
    "heartbeat": lambda n: {"leases": [60] * n, "progress": [1] * n},
    "extend_waiting": lambda n: {"leases": [60] * n},
}


def assert_by_primary_key(plan: str, name: str) -> None:
    assert "work_item_pkey" in plan, f"{name} does not go by the primary key:\n{plan}"
    assert "Seq Scan on work_item" not in plan, f"{name} scans the table:\n{plan}"
    for index in ("work_item_in_flight", "work_item_queued", "work_item_attention", "work_item_open_of_tenant"):
        assert index not in plan, f"{name} was drawn into {index}:\n{plan}"


def test_every_write_of_a_claims_holder_goes_by_the_primary_key_whatever_the_statistics_say(
    busy: list[protocol.Claim],
) -> None:
    for name, parameters in ONE.items():
        assert_by_primary_key(explain(name, parameters(busy[0])), name)
    for name, extra in MANY.items():
        for size in (1, BATCH):
            assert_by_primary_key(explain(name, {**keys_of(busy[:size]), **extra(size)}), f"{name} of {size}")


def test_claim_and_takeover_go_by_their_own_indexes_whatever_the_statistics_say(busy: list[protocol.Claim]) -> None:
    for name, index in (("claim", "work_item_queued"), ("take_over", "work_item_in_flight")):
        plan = explain(name, {"job_type": "test.job", "worker": "w", "limit": 200, "waiting": False})
        assert index in plan, plan
        assert "Seq Scan on work_item" not in plan, plan
        assert "Tid Scan on work_item" in plan, plan


def test_another_job_types_backlog_costs_a_claim_nothing(
    busy: list[protocol.Claim], superuser: Any, tenants: tuple[str, str]
) -> None:
    add_job_type("small.job")
    protocol.enqueue(
        tenant_id=tenants[0], operation_id="small", payload_hash=HASH, payload_ref="r", job_type="small.job"
    )
    plan = explain(
        "claim",
        {"job_type": "small.job", "worker": "w", "limit": 1, "waiting": False},
        "ANALYZE, TIMING OFF, COSTS OFF",
    )
    assert "Rows Removed by Filter" not in plan, plan


def test_worker_connections_plan_generically(database: Any) -> None:
    for alias in ("worker", "keeper"):
        with connections[alias].cursor() as cursor:
            cursor.execute("SHOW plan_cache_mode")
            assert cursor.fetchone() == ("force_generic_plan",)


def test_heartbeats_and_begins_are_heap_only_updates(busy: list[protocol.Claim], superuser: Any) -> None:
    def updates() -> tuple[int, int]:
        with connections["worker"].cursor() as cursor:
            cursor.execute("SELECT pg_stat_force_next_flush()")
        superuser.execute("SELECT pg_stat_clear_snapshot()")
        found: tuple[int, int] = superuser.execute(
            "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'work_item'"
        ).fetchone()
        return found

    beating = busy[:: IN_FLIGHT // 200]
    before = updates()
    for claim in beating:
        protocol.begin(claim)
        for progress in (1, 2, 3, 4):
            protocol.heartbeat(claim, progress=progress)
    after = updates()
    total, hot = after[0] - before[0], after[1] - before[1]
    assert total == 5 * len(beating)
    assert hot / total >= 0.95, f"{hot} of {total} heartbeats and begins were HOT"


def test_the_history_of_a_batch_is_not_written_by_comparing_every_row_with_every_other(
    busy: list[protocol.Claim], superuser: Any
) -> None:
    """The trigger's plan is made once a session, for whatever statement came first: here one of a single row."""
    plans: list[str] = []
    superuser.add_notice_handler(lambda notice: plans.append(notice.message_primary or ""))
    for setting in (
        "auto_explain.log_min_duration = 0",
        "auto_explain.log_nested_statements = on",
        "client_min_messages = log",
        "plan_cache_mode = force_generic_plan",
    ):
        superuser.execute("LOAD 'auto_explain'")
        superuser.execute(f"SET {setting}")
    change = "UPDATE work_item SET state = 'succeeded', outcome_code = 'done' WHERE state = 'claimed' AND operation_id = ANY (%s)"
    for names in ([busy[0].operation_id], [claim.operation_id for claim in busy[1:]]):
        plans.clear()
        assert superuser.execute(change, [names]).rowcount == len(names)
    (history,) = [plan for plan in plans if "INSERT INTO public.work_event" in plan]
    assert "Join" in history, history
    assert "Nested Loop" not in history, history
