"""The stage for what pages read: people, work in bulk, and a look at the plans of what is asked."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections

from dashboard.access import Person, operator_context
from tests.protocol.stage import guard_off
from workitems.tenancy import add_membership

NORTH, SOUTH, EVERYBODY, NOBODY, BOTH = 11, 12, 13, 14, 15

FILL = """
INSERT INTO work_item (tenant_id, operation_id, payload_hash, payload_ref, state, fence, lease_owner, lease_expires_at,
    attempts, outcome_code, updated_at, job_type, available_at, enqueued_at, claimed_at, stamping_fence, effect_fence,
    effect_at, first_effect_at, progress_at, op_digest, tenant_digest, digest_key_version, enqueue_timeline)
SELECT t.tenant_id, 'bulk-' || n, '\\x01', 'ref', s.state, s.fence,
       CASE WHEN s.state = 'claimed' THEN 'host/1/x' END,
       CASE WHEN s.state = 'claimed' THEN clock.now + (n %% 7 - 3) * interval '1 minute' END,
       least(s.fence, 1), CASE WHEN s.state IN ('unknown', 'quarantined', 'failed_terminal') THEN 'why' END,
       clock.now - (%(rows)s - n) * interval '1 day' / %(rows)s,
       (%(types)s::text[])[1 + n / 128 %% cardinality(%(types)s::text[])],
       clock.now - (%(rows)s - n) * interval '1 day' / %(rows)s, clock.now - interval '1 day',
       clock.now - (n %% 1000) * interval '1 second', s.fence,
       CASE WHEN n / 256 %% 2 = 1 THEN s.fence END, CASE WHEN n / 256 %% 2 = 1 THEN clock.now END, NULL,
       clock.now - (n %% 300) * interval '1 second', sha256((t.tenant_id || n)::bytea), t.tenant_digest, 1,
       fencewatch.timeline() - CASE WHEN n / 512 %% 8 = 1 THEN 1 ELSE 0 END  -- a failover lies between for some
  FROM (SELECT clock_timestamp() AS now) clock, generate_series(1, %(rows)s) n
  JOIN (SELECT *, row_number() OVER (ORDER BY tenant_id) - 1 AS number FROM tenant) t
    ON t.number = n %% (SELECT count(*) FROM tenant)
 CROSS JOIN LATERAL (SELECT CASE n / 2 %% 64 WHEN 1 THEN 'unknown' WHEN 2 THEN 'quarantined' WHEN 3 THEN 'failed_terminal'
                                 WHEN 4 THEN 'claimed' WHEN 5 THEN 'queued' ELSE 'succeeded' END AS state) kind
 CROSS JOIN LATERAL (SELECT kind.state, CASE WHEN kind.state = 'queued' THEN 0 ELSE (fencewatch.timeline() << 32) + 1 END AS fence) s
"""


def add_people() -> None:
    """One person of each tenant, one of both, one who sees everything, one without any membership."""
    add_membership(user_id=NORTH, tenant_id="tenant-north", role="operator")
    add_membership(user_id=SOUTH, tenant_id="tenant-south", role="viewer")
    add_membership(user_id=BOTH, tenant_id="tenant-north", role="viewer")
    add_membership(user_id=BOTH, tenant_id="tenant-south", role="viewer")
    add_membership(user_id=EVERYBODY, tenant_id=None, role="auditor")


@contextmanager
def looking(user_id: int) -> Iterator[Person]:
    """Look at work as this person."""
    with operator_context(user_id) as person:
        yield person


def fill(superuser: Any, *, rows: int, types: tuple[str, ...] = ("test.job",)) -> None:
    """Work in every state, spread over a day: of 64 rows of a tenant one is in each unfinished state, the rest succeeded."""
    with guard_off(superuser):
        superuser.execute(FILL, {"rows": rows, "types": list(types)})
    superuser.execute("VACUUM ANALYZE work_item")


@contextmanager
def plans(found: list[dict[str, Any]]) -> Iterator[None]:
    """Collect the plan of every read that the pages' connection makes."""

    def explain(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.lstrip("(").startswith(("SELECT", "WITH", "--")) and "work_item" in sql:
            with context["connection"].cursor().cursor as cursor:
                cursor.execute(f"EXPLAIN (FORMAT JSON) {sql}", params)
                answer = cursor.fetchone()[0]
            found.append((json.loads(answer) if isinstance(answer, str) else answer)[0]["Plan"])
        return execute(sql, params, many, context)

    with connections["default"].execute_wrapper(explain):
        yield


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every node of a plan."""
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)
