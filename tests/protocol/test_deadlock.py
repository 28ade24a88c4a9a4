import threading
from typing import Any

from django.db import connections

from tests.protocol.stage import HASH, add_job_type
from workitems import protocol

THREADS = 4
ITEMS = 300


def test_batches_that_overlap_lock_in_key_order_and_never_deadlock(
    database: Any, superuser: Any, tenants: tuple[str, str]
) -> None:
    """On a small table the planner joins by a scan, which would lock in the order in which rows lie on disk."""
    add_job_type()
    protocol.enqueue_many(
        [
            protocol.NewItem(
                tenant_id=tenants[n % 2],
                operation_id=f"op-{n * 7919 % 1000}",
                payload_hash=HASH,
                payload_ref="r",
                job_type="test.job",
            )
            for n in range(ITEMS)
        ]
    )
    claims = protocol.claim(job_type="test.job", worker="w", limit=ITEMS)
    superuser.execute("ANALYZE work_item")
    errors: list[Exception] = []
    start = threading.Barrier(THREADS)

    def beat(number: int) -> None:
        try:
            connections["worker"].ensure_connection()
            start.wait(timeout=60)
            for turn in range(25):
                shift = (number * 73 + turn * 31) % ITEMS
                protocol.heartbeat_many(
                    [(claim, 1 + number + THREADS * turn) for claim in claims[shift:] + claims[:shift]]
                )
                protocol.extend_waiting(claims)
        except Exception as error:  # noqa: BLE001 a thread's failure must fail the test
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=beat, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=100)
    assert errors == []
