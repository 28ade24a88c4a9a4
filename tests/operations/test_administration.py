"""Memberships, rights and job types: written by audited functions only, whoever asks."""

from typing import Any

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connections

from tests.dashboard.stage import add_person
from tests.protocol.stage import add_job_type, enqueue, row
from workitems import protocol, tenancy
from workitems.jobs import agreement

TABLES = ("membership", "verb_right", "job_type", "fencewatch.worker_scope")
FUNCTIONS = (
    "add_membership(1, NULL, 'operator')",
    "remove_membership(1, NULL, 'operator')",
    "give_right('viewer', 'revoke')",
    "take_right('operator', 'revoke')",
    "allow_worker('fencewatch_worker', NULL)",
    "withdraw_worker('fencewatch_worker', NULL)",
    'put_job_type(\'{"name": "legacy", "max_attempts": 99}\')',
    "hold_job_type('legacy', 'infinity', 'x')",
    "release_hold('legacy')",
)


def entries(superuser: Any) -> list[tuple[Any, ...]]:
    found = superuser.execute(
        "SELECT e.verb, e.outcome, e.subject, t.reason, e.db_role FROM audit_entry e LEFT JOIN audit_text t USING (entry_id)"
        " ORDER BY e.entry_id"
    )
    return list(found.fetchall())


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("alias", ["default", "worker", "accounts", "keeper", "owner"])
def test_no_role_that_signs_in_writes_these_tables(database: Any, superuser: Any, alias: str, table: str) -> None:
    (column,) = superuser.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum DESC LIMIT 1",
        [table],
    ).fetchone()
    for statement in (
        f"INSERT INTO {table} DEFAULT VALUES",
        f"UPDATE {table} SET {column} = {column}",
        f"DELETE FROM {table}",
        f"TRUNCATE {table}",
    ):
        with connections[alias].cursor() as cursor, pytest.raises(DatabaseError) as refused:
            cursor.execute(statement)
        assert getattr(refused.value.__cause__, "sqlstate", None) == "42501", statement


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("alias", ["default", "worker", "accounts", "keeper"])
def test_only_the_owner_calls_the_functions(database: Any, alias: str, function: str) -> None:
    with connections[alias].cursor() as cursor, pytest.raises(DatabaseError, match="permission denied"):
        cursor.execute(f"SELECT fencewatch.{function}")


def test_a_membership_and_its_entry_are_one_change(tenants: tuple[str, str], superuser: Any) -> None:
    given = {"user_id": 7, "tenant_id": tenants[0], "role": "approver", "reason": "joined checkout"}
    assert tenancy.add_membership(**given)
    assert not tenancy.add_membership(**given)  # it is so already: nothing to enter
    assert tenancy.remove_membership(**given)
    assert not tenancy.remove_membership(**given)
    first, second = entries(superuser)
    assert first[:2] == ("member_add", "applied")
    assert second[:2] == ("member_remove", "applied")
    assert first[2]["is"]["role"] == second[2]["was"]["role"] == "approver"
    assert first[2]["is"]["user_id"] == 7
    assert first[3] == "joined checkout"
    assert tenants[0] not in str(entries(superuser))
    (said_by, version, digest) = superuser.execute(
        "SELECT said_by, software_version, tenant_digest FROM audit_entry LIMIT 1"
    ).fetchone()
    assert said_by
    assert version
    assert (
        digest == superuser.execute("SELECT tenant_digest FROM tenant WHERE tenant_id = %s", [tenants[0]]).fetchone()[0]
    )


def test_a_right_is_given_and_taken_with_a_reason(
    database: Any, superuser: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    call_command("right", "give", "approver", "revoke", "--reason=night shift")
    call_command("right", "give", "approver", "revoke", "--reason=night shift")
    call_command("right", "take", "approver", "revoke", "--reason=night shift ended")
    call_command("right", "list")
    assert "operator  revoke" in capsys.readouterr().out
    assert [(entry[0], entry[3]) for entry in entries(superuser)] == [
        ("right_give", "night shift"),
        ("right_take", "night shift ended"),
    ]
    with pytest.raises(CommandError, match="does not have that verb"):
        call_command("right", "take", "approver", "revoke", "--reason=again")
    with pytest.raises(CommandError, match="reason is empty"):
        call_command("right", "give", "approver", "revoke", "--reason= ")


def test_a_job_type_on_hold_is_not_claimed_until_it_is_released(tenants: tuple[str, str], superuser: Any) -> None:
    add_job_type()
    enqueue(tenants[0])
    call_command("job_type", "hold", "test.job", "--hours=2", "--reason=provider is down")
    assert protocol.claim(job_type="test.job", worker="w") == []
    add_job_type(max_attempts=4)  # a sync leaves the hold alone
    assert protocol.claim(job_type="test.job", worker="w") == []
    call_command("job_type", "release", "test.job", "--reason=it is back")
    assert len(protocol.claim(job_type="test.job", worker="w")) == 1
    assert row(tenants[0])["state"] == "claimed"
    put, hold, changed, released = entries(superuser)
    assert [entry[0] for entry in (put, hold, changed, released)] == [
        "job_type_put",
        "hold",
        "job_type_put",
        "release_hold",
    ]
    assert (changed[2]["was"], changed[2]["is"]) == ({"max_attempts": 3}, {"max_attempts": 4})
    assert (hold[3], released[3]) == ("provider is down", "it is back")
    assert agreement.release_hold("test.job") is False
    with pytest.raises(CommandError, match="no such job type"):
        call_command("job_type", "hold", "absent", "--hours=2", "--reason=x")
    with pytest.raises(CommandError, match="must lie between"):
        call_command("job_type", "hold", "test.job", "--hours=-1", "--reason=x")


def test_the_same_definition_again_is_no_change(database: Any, superuser: Any) -> None:
    add_job_type()
    add_job_type()
    assert len(entries(superuser)) == 1


@pytest.mark.parametrize("more", [{"held_until": "infinity"}, {"no_such_column": 1}, {"synced_at": "2026-01-01"}])
def test_a_definition_holds_columns_of_a_definition_only(database: Any, more: dict[str, Any]) -> None:
    with pytest.raises(DatabaseError, match="names columns of job_type"):
        add_job_type(**more)


@pytest.mark.parametrize("replica", [False, True])
def test_a_superusers_own_write_leaves_an_entry_too(database: Any, superuser: Any, replica: bool) -> None:
    add_person("ada", None)
    superuser.execute(f"SET session_replication_role = {'replica' if replica else 'origin'}")
    superuser.execute("UPDATE membership SET role = 'auditor'")
    superuser.execute("UPDATE job_type SET max_attempts = 4 WHERE name = 'legacy'")
    superuser.execute("INSERT INTO verb_right VALUES ('viewer', 'revoke')")
    superuser.execute("DELETE FROM membership")
    found = entries(superuser)[1:]
    assert [entry[0] for entry in found] == ["member_change", "job_type_put", "right_give", "member_remove"]
    assert {entry[4] for entry in found} == {"postgres"}
    for table in TABLES:
        with pytest.raises(psycopg.Error, match="never removed"):
            superuser.execute(f"TRUNCATE {table}")
