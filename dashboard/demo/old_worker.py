"""A worker of before Fencewatch: it runs the article's own statements, and knows of no effect stamp and no progress.

Now and then one of its jobs hangs on a dead connection while the loop goes on to renew the lease: the heartbeat that
lies. Its lease is 10 seconds where the article has 60, so that things show within the demo's first minute.
"""

import os
import random
import socket
import time
from dataclasses import dataclass

import psycopg

MOST_HELD = 5
HANGS_SECONDS = 75.0
MOST_HANGING = 2

CLAIM = """
WITH candidate AS (
  SELECT tenant_id, operation_id FROM work_item
  WHERE attempts < max_attempts
    AND (state = 'queued' OR (state = 'claimed' AND lease_expires_at < now()))
  ORDER BY updated_at
  FOR UPDATE SKIP LOCKED LIMIT 1
)
UPDATE work_item w
SET state = 'claimed', fence = w.fence + 1, lease_owner = %(worker)s,
    lease_expires_at = now() + interval '10 seconds', attempts = w.attempts + 1, updated_at = now()
FROM candidate c
WHERE w.tenant_id = c.tenant_id AND w.operation_id = c.operation_id
RETURNING w.tenant_id, w.operation_id, w.fence, w.attempts, w.payload_ref
"""
HEARTBEAT = """
UPDATE work_item SET lease_expires_at = now() + interval '10 seconds', updated_at = now()
WHERE tenant_id = %(tenant)s AND operation_id = %(operation)s AND fence = %(fence)s AND state = 'claimed'
"""
COMPLETE = """
UPDATE work_item SET state = 'succeeded', outcome_code = 'exported',
    lease_owner = NULL, lease_expires_at = NULL, updated_at = now()
WHERE tenant_id = %(tenant)s AND operation_id = %(operation)s AND fence = %(fence)s AND state = 'claimed'
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A claim in hand, until when its work goes on, and whether it hangs."""

    tenant: str
    operation: str
    fence: int
    ends_at: float
    hangs: bool

    @property
    def condition(self) -> dict[str, object]:
        return {"tenant": self.tenant, "operation": self.operation, "fence": self.fence}


def worker_id() -> str:
    """What stands in lease_owner; its second part lets the fault driver find the process."""
    return f"{socket.gethostname()}/{os.getpid()}/old"


def main() -> None:
    with psycopg.connect(os.environ["WORKER_DATABASE_URL"], autocommit=True) as connection:
        jobs: list[Job] = []
        while True:
            jobs = [job for job in jobs if _goes_on(connection, job)]
            if len(jobs) < MOST_HELD and (claimed := _claim(connection, jobs)) is not None:
                jobs.append(claimed)
            time.sleep(1)


def _claim(connection: psycopg.Connection, jobs: list[Job]) -> Job | None:
    row = connection.execute(CLAIM, {"worker": worker_id()}).fetchone()
    if row is None:
        return None
    # The first job of a new process hangs for sure: the pages are to show one within a minute.
    hanging = sum(job.hangs for job in jobs)
    hangs = hanging < MOST_HANGING and (not jobs or random.random() < 0.1)
    seconds = HANGS_SECONDS if hangs else random.uniform(1, 4)
    return Job(tenant=row[0], operation=row[1], fence=row[2], ends_at=time.monotonic() + seconds, hangs=hangs)


def _goes_on(connection: psycopg.Connection, job: Job) -> bool:
    """Renew or complete one job. Zero rows: a newer claim exists; the article says to stop, and so it does."""
    is_done = time.monotonic() >= job.ends_at
    changed = connection.execute(COMPLETE if is_done else HEARTBEAT, job.condition).rowcount
    return changed == 1 and not is_done


if __name__ == "__main__":
    main()
