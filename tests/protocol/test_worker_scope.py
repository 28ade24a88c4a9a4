"""Workers by tenant group: a role that sees some tenants enqueues, reads, claims and writes for those, and knows of no other."""

import secrets
from collections.abc import Iterator
from io import StringIO
from typing import Any

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import connections
from psycopg import sql

from dashboard import checks
from tests.cluster import ADDRESS, Cluster, Database
from tests.protocol.stage import HASH, add_job_type, enqueue, row
from workitems import protocol
from workitems.guards import drift
from workitems.tenancy import allow_worker, withdraw_worker

CLAIM = (
    "UPDATE work_item SET state = 'claimed', fence = fence + 1, stamping_fence = fence + 1, attempts = attempts + 1, lease_owner = 'x',"
    " lease_expires_at = clock_timestamp() + interval '1 minute' WHERE state = 'queued' RETURNING tenant_id"
)


@pytest.fixture
def group(cluster: Cluster, database: Database) -> Iterator[tuple[str, str]]:
    """A role that signs in as a member of fencewatch_worker, and its address."""
    name, password = f"group_{secrets.token_hex(4)}", secrets.token_hex(12)
    with cluster.connect() as connection:
        connection.execute(
            sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(name), sql.Literal(password))
        )
        connection.execute(
            sql.SQL("GRANT fencewatch_worker TO {} WITH INHERIT TRUE, SET FALSE").format(sql.Identifier(name))
        )
    yield name, f"postgresql://{name}:{password}@{ADDRESS}/{database.name}"
    with cluster.connect() as connection:
        connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


@pytest.fixture
def work(tenants: tuple[str, str]) -> tuple[str, str]:
    """An item in each of two tenants, and a payload for each."""
    add_job_type(foreign_claims=True)
    for tenant in tenants:
        enqueue(tenant)
        with connections["worker"].cursor() as cursor:
            cursor.execute("INSERT INTO payload (tenant_id, payload_ref, body) VALUES (%s, 'ref', 'x')", [tenant])
    return tenants


def seen(connection: Any) -> list[set[str]]:
    return [
        {tenant for (tenant,) in connection.execute(f"SELECT tenant_id FROM {table}").fetchall()}
        for table in ("work_item", "payload")
    ]


def test_a_role_that_nothing_names_sees_nothing(group: tuple[str, str], work: tuple[str, str]) -> None:
    with psycopg.connect(group[1], autocommit=True) as connection:
        assert seen(connection) == [set(), set()]
        assert connection.execute(CLAIM).fetchall() == []


def test_a_role_sees_its_tenants_only(group: tuple[str, str], work: tuple[str, str]) -> None:
    allow_worker(role=group[0], tenant_id=work[0])
    with psycopg.connect(group[1], autocommit=True) as connection:
        assert seen(connection) == [{work[0]}, {work[0]}]
        assert connection.execute(CLAIM).fetchall() == [(work[0],)]
        assert row(work[1])["state"] == "queued"


def test_it_writes_into_its_tenants_only(group: tuple[str, str], work: tuple[str, str]) -> None:
    allow_worker(role=group[0], tenant_id=work[0])
    ask = "SELECT outcome FROM fencewatch.enqueue(%s, %s, %s, 'ref', 'test.job')"
    with psycopg.connect(group[1], autocommit=True) as connection:
        assert connection.execute(ask, [work[0], "new", HASH]).fetchone() == ("enqueued",)
        for operation in ("new", "op-1"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(ask, [work[1], operation, HASH])
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("INSERT INTO payload (tenant_id, payload_ref, body) VALUES (%s, 'mine', 'x')", [work[1]])


def test_functions_with_their_owners_rights_know_of_no_other_tenant(
    group: tuple[str, str], work: tuple[str, str], superuser: Any
) -> None:
    allow_worker(role=group[0], tenant_id=work[0])
    claims = protocol.claim(job_type="test.job", worker="w", limit=2)
    with psycopg.connect(group[1], autocommit=True) as connection:
        for claim in claims:
            mine = claim.tenant_id == work[0]
            key = (claim.tenant_id, claim.operation_id)
            noted = connection.execute(
                "SELECT fencewatch.note(%s, %s, %s, %s, 'check', 'ok', NULL)", [*key, claim.fence, claim.worker]
            ).fetchone()
            late = connection.execute(
                "SELECT fencewatch.note_rejected(%s, %s, %s, 'sleeper', 'begin')", [*key, claim.fence - 1]
            ).fetchone()
            assert (noted, late) == ((mine,), (mine,))


def test_tombstones_of_other_tenants_do_not_answer(
    group: tuple[str, str], work: tuple[str, str], superuser: Any
) -> None:
    superuser.execute(
        "INSERT INTO tombstone (op_digest, tenant_digest, digest_key_version, item_id, job_type, payload_hash, state, fence, ended_at)"
        " SELECT fencewatch.item_digest(k.inner_pad, k.outer_pad, k.tenant_id, 'gone'), t.tenant_digest, 1, 0, 'x', '\\x01', 'succeeded', 0, clock_timestamp()"
        "   FROM fencewatch.tenant_key k JOIN tenant t USING (tenant_id)"
    )
    allow_worker(role=group[0], tenant_id=work[0])
    ask = "SELECT count(*) FROM fencewatch.tombstone_of(%s, 'gone')"
    with psycopg.connect(group[1], autocommit=True) as connection:
        assert [connection.execute(ask, [tenant]).fetchone() for tenant in work] == [(1,), (0,)]


def test_all_tenants_can_be_named_and_withdrawn(group: tuple[str, str], work: tuple[str, str], superuser: Any) -> None:
    with psycopg.connect(group[1], autocommit=True) as connection:
        assert allow_worker(role=group[0], tenant_id=None, reason="the old fleet")
        assert not allow_worker(role=group[0], tenant_id=None)
        assert seen(connection) == [set(work), set(work)]
        assert withdraw_worker(role=group[0], tenant_id=None)
        assert not withdraw_worker(role=group[0], tenant_id=None)
        assert seen(connection) == [set(), set()]
    entered = superuser.execute(
        "SELECT e.verb, t.reason FROM audit_entry e LEFT JOIN audit_text t USING (entry_id) WHERE e.verb LIKE 'worker%' ORDER BY e.entry_id"
    ).fetchall()
    assert entered == [("worker_allow", "the old fleet"), ("worker_withdraw", None)]


def test_a_named_role_is_no_drift_and_may_be_a_workers_own(
    group: tuple[str, str], work: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [difference.object for difference in drift.differences()] == [
        f"membership of {group[0]} in fencewatch_worker"
    ]
    allow_worker(role=group[0], tenant_id=work[0])
    assert drift.differences() == ()

    connections.close_all()
    user, password = group[1].partition("://")[2].partition("@")[0].split(":")
    for alias in ("worker", "keeper"):
        monkeypatch.setitem(connections[alias].settings_dict, "USER", user)
        monkeypatch.setitem(connections[alias].settings_dict, "PASSWORD", password)
    assert checks.unbound("worker") is None
    assert "is a member of fencewatch_worker" in (_why("keeper") or "")
    connections.close_all()


def _why(alias: str) -> str | None:
    try:
        return checks.unbound(alias)
    except checks.ImproperlyConfigured as error:
        return str(error)


def test_the_command_names_roles_and_tenants_and_says_what_is_wrong(
    group: tuple[str, str], work: tuple[str, str]
) -> None:
    said = StringIO()
    call_command("worker", "allow", group[0], "--tenant", work[0], "--reason", "test", stdout=said)
    call_command("worker", "allow", group[0], "--tenant", work[0], "--reason", "test", stdout=said)
    call_command("worker", "list", stdout=said)
    lines = said.getvalue().splitlines()
    assert lines[:2] == ["done", "nothing to do: it is so already"]
    assert lines[2].startswith(f"{group[0]}  tn_")
    for arguments, sentence in (
        (("allow", "nobody_at_all", "--all", "--reason", "x"), "there is no such role"),
        (("allow", group[0], "--tenant", "nobody", "--reason", "x"), "there is no such tenant"),
        (("allow", group[0], "--all", "--reason", " "), "the reason is empty"),
    ):
        with pytest.raises(CommandError, match=sentence):
            call_command("worker", *arguments)
