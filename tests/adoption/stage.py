"""A database with the article's table, rows in every state it can get into, and an old worker that knows the article only."""

import contextlib
import random
import secrets
import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, LiteralString, cast

import psycopg
from psycopg import sql

from tests.cluster import ADDRESS, PASSWORDS, ROLES, Cluster, url
from workitems import adoption
from workitems.management.commands.roles import script

TABLE = """
CREATE TABLE work_item (tenant_id text NOT NULL, operation_id text NOT NULL, payload_hash bytea NOT NULL,
    payload_ref text NOT NULL, state text NOT NULL DEFAULT 'queued', fence bigint NOT NULL DEFAULT 0, lease_owner text,
    lease_expires_at timestamptz, attempts int NOT NULL DEFAULT 0, max_attempts int NOT NULL DEFAULT 5, outcome_code text,
    updated_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (tenant_id, operation_id),
    CHECK (state IN ('queued','claimed','succeeded','failed_terminal','unknown','quarantined')))
"""
# What a row is, of 20; the rest succeeded. The second half of a line is what an adoption has to say about it.
KINDS = {
    1: "state = 'queued', attempts = 0, fence = 0",
    2: "state = 'queued', attempts = 2, fence = 2",
    3: "state = 'queued', attempts = 5, fence = 5",
    4: "state = 'claimed', attempts = 1, fence = 1, lease_owner = 'gone', lease_expires_at = now() - interval '1 hour'",
    5: "state = 'claimed', attempts = 5, fence = 5, lease_owner = 'gone', lease_expires_at = now() + interval '1 hour'",
    6: "state = 'claimed', attempts = 1, fence = 1, lease_owner = 'gone'",
    7: "state = 'unknown', attempts = 5, fence = 5, lease_owner = 'gone', lease_expires_at = now() - interval '1 hour'",
    8: "state = 'succeeded', attempts = 1, fence = 1, lease_owner = 'gone', lease_expires_at = now(), outcome_code = ''",
    9: "state = 'failed_terminal', attempts = 1, fence = 1, outcome_code = repeat('x', 300)",
    10: "state = 'quarantined', attempts = 0, fence = 0",
    11: "state = 'claimed', attempts = 1, fence = 3, lease_owner = repeat('é', 300), lease_expires_at = 'infinity'",
    12: "state = 'queued', attempts = 0, max_attempts = 0, fence = -4, updated_at = 'infinity'",
    13: "state = 'claimed', attempts = 0, fence = 1, lease_owner = 'gone', lease_expires_at = now() - interval '1 hour'",
}
PUT_RIGHT = {
    "queued with its attempts used up became unknown": 1,
    "a claim without a lease became unknown": 1,
    "lease left on a row that nobody holds, cleared": 3,
    "outcome code empty or over 100 characters": 2,
    "lease of more than a day, cut to a day": 1,
    "lease owner empty or over 200 characters": 1,
    "attempts, or their limit, below what the state needs": 2,
    "fence below zero": 1,
    "last change in the future or before 2000": 1,
}
STATES_AFTER = {"queued": 3, "claimed": 4, "unknown": 3, "failed_terminal": 1, "quarantined": 1, "succeeded": 8}

CLAIM = """WITH candidate AS (
  SELECT tenant_id, operation_id FROM work_item WHERE attempts < max_attempts
     AND (state = 'queued' OR (state = 'claimed' AND lease_expires_at < now()))
     AND operation_id LIKE 'live-%%'
   ORDER BY updated_at FOR UPDATE SKIP LOCKED LIMIT 1)
UPDATE work_item w SET state = 'claimed', fence = w.fence + 1, lease_owner = %(worker)s,
       lease_expires_at = now() + interval '60 seconds', attempts = w.attempts + 1, updated_at = now()
  FROM candidate c WHERE w.tenant_id = c.tenant_id AND w.operation_id = c.operation_id
RETURNING w.tenant_id, w.operation_id, w.fence"""
INSERT = "INSERT INTO work_item (tenant_id, operation_id, payload_hash, payload_ref) VALUES (%s, %s, '\\x01', 'ref') ON CONFLICT (tenant_id, operation_id) DO NOTHING"
MINE = "WHERE tenant_id = %s AND operation_id = %s AND fence = %s AND state = 'claimed'"
HEARTBEAT = f"UPDATE work_item SET lease_expires_at = now() + interval '60 seconds', updated_at = now() {MINE}"
COMPLETE = f"UPDATE work_item SET state = 'succeeded', outcome_code = 'done', lease_owner = NULL, lease_expires_at = NULL, updated_at = now() {MINE}"
DROP = f"UPDATE work_item SET lease_expires_at = now() - interval '1 second' {MINE}"
SWEEP = "UPDATE work_item SET state = 'unknown', updated_at = now() WHERE state = 'claimed' AND lease_expires_at < now() AND attempts >= max_attempts"
HOLD = f"SELECT 1 FROM work_item {MINE} FOR UPDATE"


@dataclass
class OldWorker:
    """
    A producer and worker of the article's statements in a thread of its own.

    Its lock_timeout is a second: a statement that waited longer for a lock fails, and ends the thread with its error.
    """

    address: str
    inserted: set[tuple[str, str]] = field(default_factory=set)
    completed: dict[tuple[str, str], int] = field(default_factory=dict)
    fences: dict[tuple[str, str], list[int]] = field(default_factory=lambda: defaultdict(list))
    lost: int = 0
    error: BaseException | None = None
    _over: threading.Event = field(default_factory=threading.Event)

    def run(self, name: str) -> None:
        try:
            with psycopg.connect(self.address, autocommit=True, options="-c lock_timeout=1s") as connection:
                chance = random.Random(name)
                number = 0
                while not self._over.is_set():
                    number += 1
                    self._round(connection, name, number, chance)
        except BaseException as error:  # noqa: BLE001
            self.error = error

    def _round(self, connection: psycopg.Connection[Any], name: str, number: int, chance: random.Random) -> None:
        for tenant in ("tenant-0", "tenant-1"):
            key = (tenant, f"live-{name}-{number}")
            if connection.execute(INSERT, key).rowcount:
                self.inserted.add(key)
        claimed = connection.execute(CLAIM, {"worker": name}).fetchone()
        if claimed is None:
            return
        tenant, operation, fence = claimed
        self.fences[tenant, operation].append(fence)
        what = chance.random()
        if what < 0.1:  # dies, and its lease runs out
            connection.execute(DROP, claimed)
            return
        connection.execute(HEARTBEAT, claimed)
        with connection.transaction():  # the target in the same database
            held = connection.execute(HOLD, claimed).fetchone()
            done = held and connection.execute(COMPLETE, claimed).rowcount
        if done:
            self.completed[tenant, operation] = fence
        else:
            self.lost += 1
        if number % 20 == 0:
            connection.execute(SWEEP)

    @contextlib.contextmanager
    def at_work(self) -> Iterator["OldWorker"]:
        threads = [threading.Thread(target=self.run, args=(f"old-{number}",)) for number in range(2)]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._over.set()
            for thread in threads:
                thread.join(60)


@dataclass(frozen=True, kw_only=True)
class Old:
    """A database before its adoption."""

    name: str
    role: str
    address: str  # of the old worker
    environment: dict[str, str]
    cluster: Cluster

    def superuser(self) -> psycopg.Connection[Any]:
        return self.cluster.connect(database=self.name)

    def ask_dba(self) -> None:
        """Run what the two commands print, in one transaction."""
        with self.superuser() as connection, connection.transaction():
            connection.execute(cast(LiteralString, script(passwords=PASSWORDS, iterations=1)))
            connection.execute(cast(LiteralString, adoption.script(workers=[self.role])))


@contextlib.contextmanager
def old_database(cluster: Cluster, environment: dict[str, str], *, rows: int) -> Iterator[Old]:
    """The article's table with so many rows, owned by the role of its workers."""
    name, role, password = (f"{part}_{secrets.token_hex(4)}" for part in ("fencewatch_old", "app", "secret"))
    with cluster.connect() as connection:
        connection.execute(
            sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(role), sql.Literal(password))
        )
        connection.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE template0 ENCODING 'UTF8'").format(sql.Identifier(name))
        )
    try:
        with cluster.connect(database=name) as connection:
            connection.execute(sql.SQL("GRANT CREATE ON SCHEMA public TO {}").format(sql.Identifier(role)))
            connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
            connection.execute(cast(LiteralString, TABLE))
            fill(connection, rows=rows)
        yield Old(
            name=name,
            role=role,
            address=f"postgresql://{role}:{password}@{ADDRESS}/{name}",
            environment={**environment, **{variable: url(variable, database=name) for variable in ROLES}},
            cluster=cluster,
        )
    finally:
        with cluster.connect() as connection:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
            connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


def fill(connection: psycopg.Connection[Any], *, rows: int) -> None:
    """Rows of two tenants, one in twenty of each kind, the rest succeeded."""
    connection.execute(
        "INSERT INTO work_item (tenant_id, operation_id, payload_hash, payload_ref, state, attempts, fence, updated_at)"
        " SELECT 'tenant-' || n / 20 %% 2, 'op-' || n, sha256('{}'), 'ref', 'succeeded', 1, 1, now() - n * interval '1 ms'"
        "   FROM generate_series(0, %s - 1) n",
        [rows],
    )
    for kind, changed in KINDS.items():
        connection.execute(f"UPDATE work_item SET {changed} WHERE substr(operation_id, 4)::int % 20 = {kind}".encode())
