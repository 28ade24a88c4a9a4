import threading
from typing import Any

import pytest
from django.db import connections

from tests.protocol.stage import HASH, add_job_type, claim_one, enqueue, let_leases_run_out, row
from workitems import protocol
from workitems.protocol import Swept


@pytest.mark.parametrize(
    ("target", "ceiling", "begun", "earlier_begun", "expected"),
    [
        ("C", 2, False, False, "queued"),
        ("C", 1, False, False, "failed_terminal"),
        ("C", 2, True, False, "unknown"),
        ("C", 1, True, False, "unknown"),
        ("C", 2, False, True, "unknown"),  # two attempts used: at the ceiling, and the first may have acted
        ("C", 3, False, True, "queued"),  # the next claim asks first
        ("D", 1, True, False, "unknown"),
        ("D", 1, False, False, "failed_terminal"),
        ("D", 3, False, False, "queued"),
        ("A", 1, False, False, "failed_terminal"),
    ],
)
def test_a_sweep_tells_never_begun_from_may_have_acted(
    target: str,
    ceiling: int,
    begun: bool,
    earlier_begun: bool,
    expected: str,
    database: Any,
    superuser: Any,
    tenants: tuple[str, str],
) -> None:
    add_job_type(target=target, max_attempts=1 + earlier_begun, ceiling=ceiling)
    enqueue(tenants[0])
    if earlier_begun:
        protocol.begin(claim_one("earlier"))
        let_leases_run_out(superuser)
    claim = claim_one()
    if begun:
        protocol.begin(claim)
    let_leases_run_out(superuser)
    assert protocol.sweep() == Swept(**{"queued": 0, "failed_terminal": 0, "unknown": 0} | {expected: 1})
    swept = row(tenants[0])
    assert swept["state"] == expected
    assert swept["attempts"] == 1 + earlier_begun
    assert swept["outcome_code"] == ("never_begun" if expected == "failed_terminal" else None)
    assert swept["lease_owner"] is None


def test_a_type_a_item_that_was_stamped_under_another_target_is_not_called_never_begun(
    database: Any, superuser: Any, tenants: tuple[str, str]
) -> None:
    add_job_type(target="C", max_attempts=2, ceiling=2)
    enqueue(tenants[0])
    protocol.begin(claim_one("earlier"))
    superuser.execute("UPDATE job_type SET target = 'A' WHERE name = 'test.job'")
    let_leases_run_out(superuser)
    assert claim_one("later").must_reconcile
    let_leases_run_out(superuser)
    assert protocol.sweep().unknown == 1


def test_a_live_lease_or_an_attempt_left_is_not_swept(database: Any, superuser: Any, tenants: tuple[str, str]) -> None:
    add_job_type("alive", max_attempts=1)
    add_job_type("attempt-left", max_attempts=2)
    enqueue(tenants[0], "left", job_type="attempt-left")
    claim_one(job_type="attempt-left")
    let_leases_run_out(superuser)
    enqueue(tenants[0], "alive", job_type="alive")
    claim_one(job_type="alive")
    assert protocol.sweep() == Swept(queued=0, failed_terminal=0, unknown=0)


def test_a_late_completion_after_the_sweep_changes_nothing(
    database: Any, superuser: Any, tenants: tuple[str, str], verbs_of: Any
) -> None:
    add_job_type(max_attempts=1)
    enqueue(tenants[0])
    claim = claim_one()
    protocol.begin(claim)
    let_leases_run_out(superuser)
    protocol.sweep()
    assert protocol.complete_many([(claim, "done")]) == [False]
    assert row(tenants[0])["state"] == "unknown"
    assert verbs_of(tenants[0]) == ["enqueue", "claim", "begin", "sweep"]


def test_sweeps_at_once_neither_deadlock_nor_count_twice(
    database: Any, superuser: Any, tenants: tuple[str, str]
) -> None:
    add_job_type(max_attempts=1)
    protocol.enqueue_many(
        [
            protocol.NewItem(
                tenant_id=tenants[n % 2],
                operation_id=f"op-{n}",
                payload_hash=HASH,
                payload_ref="r",
                job_type="test.job",
            )
            for n in range(400)
        ]
    )
    for claim in protocol.claim(job_type="test.job", worker="w", limit=400):
        protocol.begin(claim)
    let_leases_run_out(superuser)
    counts: list[int] = []
    start = threading.Barrier(4)

    def sweep() -> None:
        connections["keeper"].ensure_connection()
        start.wait(timeout=60)
        counts.extend(protocol.sweep(limit=50).unknown for _ in range(20))
        connections.close_all()

    threads = [threading.Thread(target=sweep) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert sum(counts) + protocol.sweep(limit=1_000).unknown == 400
    with connections["worker"].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM work_item WHERE state = 'unknown'")
        assert cursor.fetchone() == (400,)
