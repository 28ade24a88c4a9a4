"""
What the guard, row security and the history cost: claim and complete on our table against the same statements on a bare one.

`make bench` prints the figures. Both tables are worked alternately in one run under the worker's role and settings, with the
same rows and indexes; the bare one has no trigger, no row security, no check and no history.
"""

import statistics
import time
from typing import Any

import pytest
from django.db import connections

from tests.protocol.stage import JOB_TYPE, add_job_type
from workitems.protocol.statements import PROTOCOL, statements

STATEMENTS = statements(PROTOCOL)

BATCH = 200
ROWS = 10_000  # per table and round
ROUNDS = 7
AT_LEAST = 0.7
HOT_AT_LEAST = 0.95


@pytest.fixture
def both(superuser: Any, tenants: tuple[str, str]) -> tuple[str, str]:
    add_job_type(max_attempts=5, ceiling=5)
    superuser.execute("CREATE SCHEMA bare")
    superuser.execute(
        "CREATE TABLE bare.work_item (LIKE public.work_item INCLUDING DEFAULTS INCLUDING INDEXES INCLUDING IDENTITY)"
    )
    superuser.execute("ALTER TABLE bare.work_item SET (fillfactor = 85)")
    superuser.execute("GRANT USAGE ON SCHEMA bare TO fencewatch_worker")
    superuser.execute("GRANT ALL ON bare.work_item TO fencewatch_worker")
    superuser.execute("ALTER TABLE bare.work_item SET (autovacuum_enabled = off)")
    superuser.execute("ALTER TABLE public.work_item SET (autovacuum_enabled = off)")
    return tenants


def fill(superuser: Any, tenant_id: str, number: int) -> None:
    superuser.execute(
        "INSERT INTO public.work_item (tenant_id, operation_id, payload_hash, payload_ref, job_type, max_attempts)"
        " SELECT %s, 'r' || %s || '-' || n, sha256(n::text::bytea), 'ref', %s, 5 FROM generate_series(1, %s) n",
        [tenant_id, number, JOB_TYPE, ROWS],
    )
    columns = [
        name
        for (name,) in superuser.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = 'bare.work_item'::regclass AND attnum > 0 AND attidentity = ''"
        ).fetchall()
    ]
    names = ", ".join(columns)
    superuser.execute(
        f"INSERT INTO bare.work_item ({names}) SELECT {names} FROM public.work_item WHERE state = 'queued'"
    )
    superuser.execute("ANALYZE public.work_item")
    superuser.execute("ANALYZE bare.work_item")


def on_bare(statement: str) -> str:
    """The same statement where nothing but the table is there to ask."""
    return (
        statement.replace(
            "fencewatch.may_have_acted(w, t.target, (SELECT fencewatch.timeline()))", "w.effect_fence IS NOT NULL"
        )
        .replace("fencewatch.may_be_lost(w.enqueue_timeline, (SELECT fencewatch.timeline()))", "false")
        .replace("work_item", "bare.work_item")
    )


def work_off_batch(cursor: Any, claim: str, complete: str) -> float:
    """Seconds to claim and complete one batch, a commit each; nothing where nothing is queued."""
    started = time.perf_counter()
    cursor.execute(claim, {"job_type": JOB_TYPE, "worker": "bench", "limit": BATCH, "waiting": True})
    names = [column.name for column in cursor.description]
    taken = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    taken.sort(key=lambda row: (row["tenant_id"], row["operation_id"]))
    cursor.execute(
        complete,
        {
            "tenants": [row["tenant_id"] for row in taken],
            "operations": [row["operation_id"] for row in taken],
            "fences": [row["fence"] for row in taken],
            "owners": [row["worker"] for row in taken],
            "codes": ["done"] * len(taken),
        },
    )
    assert len(cursor.fetchall()) == len(taken) == BATCH
    return time.perf_counter() - started


@pytest.mark.long
@pytest.mark.bench
def test_claim_and_complete_keep_most_of_a_bare_tables_speed(both: tuple[str, str], superuser: Any) -> None:
    claim, complete = STATEMENTS["claim"], STATEMENTS["complete"]
    statements_of = {"bare": (on_bare(claim), on_bare(complete)), "ours": (claim, complete)}
    ratios = []
    with connections["worker"].cursor() as cursor:
        for number in range(ROUNDS):
            fill(superuser, both[0], number)
            seconds = {"bare": 0.0, "ours": 0.0}
            for step in range(ROWS // BATCH):
                # Batch by batch, each table first in turn: whatever else the machine does slows both alike.
                for table in ("bare", "ours") if step % 2 else ("ours", "bare"):
                    seconds[table] += work_off_batch(cursor, *statements_of[table])
            ratios.append(seconds["bare"] / seconds["ours"])
            print(
                f"round {number}: bare {ROWS / seconds['bare']:7.0f}/s  ours {ROWS / seconds['ours']:7.0f}/s"
                f"  ratio {ratios[-1]:.2f}"
            )
    found = statistics.median(ratios[1:])  # the first round fills caches and plans
    print(f"claim + complete at batch {BATCH}: {found:.2f} of a bare table (median of {len(ratios) - 1} rounds)")
    assert found >= AT_LEAST


@pytest.mark.bench
def test_heartbeats_are_hot_updates(both: tuple[str, str], superuser: Any) -> None:
    fill(superuser, both[0], 0)
    claim, heartbeat = STATEMENTS["claim"], STATEMENTS["heartbeat"]
    with connections["worker"].cursor() as cursor:
        cursor.execute(claim, {"job_type": JOB_TYPE, "worker": "bench", "limit": 500, "waiting": False})
        names = [column.name for column in cursor.description]
        taken = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        superuser.execute("VACUUM public.work_item")
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute("SELECT 1")  # counts reach the view at the end of a statement: the claim's are in it now
        before = _updates(superuser)
        # as the work loop sends them: one at a time, each committed, every item in its turn
        for progress in range(1, 11):
            for row in taken:
                cursor.execute(
                    heartbeat,
                    {
                        "tenants": [row["tenant_id"]],
                        "operations": [row["operation_id"]],
                        "fences": [row["fence"]],
                        "owners": [row["worker"]],
                        "leases": [60],
                        "progress": [progress],
                    },
                )
                assert len(cursor.fetchall()) == 1
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute("SELECT 1")
    updates, hot = (after - earlier for after, earlier in zip(_updates(superuser), before, strict=True))
    print(f"heartbeats: {updates} updates, {hot / updates:.1%} HOT")
    assert updates == 5_000
    assert hot / updates >= HOT_AT_LEAST


def _updates(superuser: Any) -> tuple[int, int]:
    superuser.execute("SELECT pg_stat_force_next_flush()")
    found = superuser.execute(
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE schemaname = 'public' AND relname = 'work_item'"
    ).fetchone()
    return int(found[0]), int(found[1])
