"""
Names that a session puts before ours: temporary tables, a schema of its own, functions and operators of the same names.

roles.sql takes away the rights for all of it, and test_writes.py tries. Here somebody gave them back, and it still does
nothing: every function that decides looks its names up in a path of its own.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from tests.abuse.test_writes import signed_in_as
from tests.cluster import Database
from tests.dashboard.test_access import context
from tests.protocol.stage import add_job_type, claim_one, enqueue, make, row
from workitems import protocol
from workitems.states import State

KEY = b"k" * 32
TABLES = (
    "work_item",
    "work_event",
    "tenant",
    "membership",
    "job_type",
    "tombstone",
    "lossless_failover",
    "audit_entry",
)
# Each says what an attacker would like to hear: anything is equal, every lease is over, everything is due.
FUNCTIONS = """
CREATE FUNCTION mine.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$ SELECT timestamptz '2999-01-01' $$;
CREATE FUNCTION mine.pg_backend_pid() RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION mine.pg_walfile_name(pg_lsn) RETURNS text LANGUAGE sql AS $$ SELECT '000000630000000000000001' $$;
CREATE FUNCTION mine.current_setting(text) RETURNS text LANGUAGE sql AS $$ SELECT 'on' $$;
CREATE FUNCTION mine.sha256(bytea) RETURNS bytea LANGUAGE sql AS $$ SELECT '\\x00'::bytea $$;
CREATE FUNCTION mine.same(bytea, bytea) RETURNS boolean LANGUAGE sql AS 'SELECT true';
CREATE FUNCTION mine.same(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT true';
CREATE OPERATOR mine.= (LEFTARG = bytea, RIGHTARG = bytea, FUNCTION = mine.same);
CREATE OPERATOR mine.= (LEFTARG = text, RIGHTARG = text, FUNCTION = mine.same);
"""


@contextmanager
def shadowing(name: str, superuser: Any, database: Database) -> Iterator[psycopg.Connection[Any]]:
    """A session of this role that finds its own objects first."""
    superuser.execute(f'GRANT TEMPORARY ON DATABASE "{database.name}" TO PUBLIC; CREATE SCHEMA mine')
    for table in TABLES:
        superuser.execute(f"CREATE TABLE mine.{table} (LIKE public.{table})")
    superuser.execute("GRANT ALL ON SCHEMA mine TO PUBLIC; GRANT ALL ON ALL TABLES IN SCHEMA mine TO PUBLIC")
    with signed_in_as(name, database) as session:
        for statement in FUNCTIONS.strip().split(";\n"):
            session.execute(statement.encode())
        for table in TABLES:
            session.execute(f"CREATE TEMPORARY TABLE {table} (LIKE mine.{table})".encode())
        session.execute("SET search_path = pg_temp, mine, pg_catalog, public")
        yield session


def test_the_session_does_find_its_own_objects_first(superuser: Any, database: Database) -> None:
    """The control: by a plain name, this session is fooled."""
    with shadowing("worker", superuser, database) as session:
        fooled = session.execute("SELECT clock_timestamp() = '2999-01-01', count(*), 'a'::text = 'b'::text FROM tenant")
        assert fooled.fetchone() == (True, 0, True)


@pytest.mark.usefixtures("tenants")
def test_no_context_is_believed_that_was_signed_by_another_key(superuser: Any, database: Database) -> None:
    add_job_type()
    make(State.UNKNOWN, "tenant-north")
    with shadowing("web", superuser, database) as session:
        session.execute(
            "CREATE TEMPORARY TABLE context_key (version int, inner_pad bytea, outer_pad bytea, retired_at timestamptz)"
        )
        session.execute(
            "INSERT INTO pg_temp.membership (membership_id, user_id, role, created_at) VALUES (1, 11, 'operator', pg_catalog.clock_timestamp())"
        )
        for pid in (session.info.backend_pid, 1):
            forged = context(pid, key=KEY)
            session.execute("SELECT set_config('fencewatch.context', %s, false)", [forged])
            for table in ("work_item", "work_event", "tenant", "membership", "audit_entry"):
                seen = session.execute(f"SELECT count(*) FROM public.{table}".encode()).fetchone()
                assert (table, seen) == (table, (0,))
        # and the true key is still bound to its own connection
        session.execute("SELECT set_config('fencewatch.context', %s, false)", [context(1)])
        assert session.execute("SELECT count(*) FROM public.work_item").fetchone() == (0,)
        session.execute("SELECT set_config('fencewatch.context', %s, false)", [context(session.info.backend_pid)])
        assert session.execute("SELECT count(*) FROM public.work_item").fetchone() == (1,)


def test_a_worker_gets_no_fence_lease_identity_or_history_of_its_own_making(
    superuser: Any, database: Database, tenants: tuple[str, str]
) -> None:
    add_job_type(max_attempts=2)
    honest = enqueue(tenants[1])
    with shadowing("worker", superuser, database) as session:
        session.execute("INSERT INTO pg_temp.job_type SELECT * FROM public.job_type")
        session.execute("UPDATE pg_temp.job_type SET foreign_claims = true, target = 'A', max_attempts = 99")
        (outcome,) = session.execute(
            "SELECT outcome FROM fencewatch.enqueue('tenant-north', 'op-1', '\\x01'::bytea, 'ref', 'test.job')"
        ).fetchone() or ("",)
        assert outcome == "enqueued"
        written = row(tenants[0])
        assert (written["max_attempts"], bytes(written["op_digest"]) == honest.op_digest) == (2, False)
        assert len(written["op_digest"]) == 32
        assert written["enqueued_at"].year < 2999

        claim = (
            "UPDATE public.work_item SET state = 'claimed', fence = fence + 1, attempts = attempts + 1, lease_owner = 'x',"
            " lease_expires_at = pg_catalog.clock_timestamp() + interval '1 minute' WHERE state OPERATOR(pg_catalog.=) 'queued'"
        )
        assert session.execute(claim.encode()).rowcount == 0  # the type is not open to workers that do not stamp
        session.execute("SET fencewatch.worker = 'stamps'")
        assert session.execute(claim.encode()).rowcount == 2
        assert (
            row(tenants[0])["fence"]
            == row(tenants[1])["fence"]
            == superuser.execute("SELECT (fencewatch.timeline() << 32) + 1").fetchone()[0]
        )
        assert session.execute("SELECT pg_catalog.count(*) FROM pg_temp.work_event").fetchone() == (0,)
        with pytest.raises(psycopg.Error) as refused:  # not over, whatever the session's clock says
            session.execute(claim.replace("'queued'", "'claimed'").encode())
        assert refused.value.sqlstate == "FW002"
    verbs = superuser.execute("SELECT verb, count(*) FROM work_event GROUP BY verb ORDER BY verb").fetchall()
    assert verbs == [("claim", 2), ("enqueue", 2)]


def test_a_keeper_sweeps_by_the_true_job_type_and_the_true_clock(
    superuser: Any, database: Database, tenants: tuple[str, str]
) -> None:
    add_job_type(max_attempts=1)
    for tenant in tenants:
        enqueue(tenant)
    begun, running = claim_one(), claim_one()
    protocol.begin(begun)
    superuser.execute(
        "UPDATE work_item SET lease_expires_at = clock_timestamp() - interval '1 second' WHERE fence = %s AND tenant_id = %s",
        [begun.fence, begun.tenant_id],
    )
    with shadowing("keeper", superuser, database) as session:
        session.execute("SELECT * FROM fencewatch.sweep(100)")
    assert row(begun.tenant_id)["state"] == State.UNKNOWN
    assert row(running.tenant_id)["state"] == State.CLAIMED


def test_a_seal_takes_the_true_entries(superuser: Any, database: Database, tenants: tuple[str, str]) -> None:
    add_job_type()  # which is entered
    waiting = superuser.execute("SELECT count(*) FROM audit_unsealed").fetchone()
    assert waiting != (0,)
    with shadowing("keeper", superuser, database) as session:
        assert session.execute("SELECT sealed FROM fencewatch.seal(1000)").fetchone() == waiting
    assert superuser.execute("SELECT count(*) FROM public.audit_seal").fetchone() == (1,)
