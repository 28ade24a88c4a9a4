import base64
from typing import Any

import psycopg
import pytest
from django.db import connections

from workitems.management.commands.roles import script, verifier


def test_every_alias_connects_under_its_own_role_to_the_tests_own_database(database: Any) -> None:
    for alias, role in {
        "default": "fencewatch_web",
        "accounts": "fencewatch_accounts",
        "worker": "fencewatch_worker",
        "keeper": "fencewatch_keeper",
        "owner": "fencewatch_owner",
    }.items():
        with connections[alias].cursor() as cursor:
            cursor.execute(
                "SELECT current_user::text, current_database()::text, current_setting('transaction_isolation')"
            )
            assert cursor.fetchone() == (role, database.name, "read committed")


def test_no_login_role_is_more_than_its_grants(superuser: Any) -> None:
    rows = superuser.execute(
        "SELECT rolname FROM pg_roles WHERE rolname LIKE 'fencewatch%'"
        " AND (rolsuper OR rolbypassrls OR rolcreaterole OR rolcreatedb OR rolreplication OR rolinherit)"
    ).fetchall()
    assert rows == []


def test_a_login_role_makes_no_temporary_table_to_shadow_ours(database: Any) -> None:
    for variable in ("DATABASE_URL", "WORKER_DATABASE_URL", "KEEPER_DATABASE_URL", "ACCOUNTS_DATABASE_URL"):
        with (
            psycopg.connect(database.url(variable)) as connection,
            pytest.raises(psycopg.errors.InsufficientPrivilege),
        ):
            connection.execute("CREATE TEMPORARY TABLE work_item ()")


def test_the_script_holds_verifiers_and_no_password() -> None:
    passwords = {name: f"secret-{name}" for name in ("web", "accounts", "worker", "keeper", "migrator")}
    text = script(passwords=passwords)
    assert "secret-" not in text
    assert "{{" not in text.partition("$roles$")[2]
    assert "ALTER ROLE fencewatch_reconciler PASSWORD NULL;" in text
    assert text.count("SCRAM-SHA-256$4096:") == len(passwords)


def test_a_verifier_equals_the_servers_own(superuser: Any) -> None:
    superuser.execute("CREATE ROLE verifier_probe PASSWORD 'open-sesame'")
    try:
        (stored,) = superuser.execute("SELECT rolpassword FROM pg_authid WHERE rolname = 'verifier_probe'").fetchone()
    finally:
        superuser.execute("DROP ROLE verifier_probe")
    head, _, _ = stored.rpartition("$")
    salt = base64.b64decode(head.rpartition(":")[2])
    assert verifier("open-sesame", salt=salt) == stored


@pytest.mark.parametrize("password", ["", "with space", "naïve", "new\nline"])
def test_a_password_that_clients_would_normalise_is_refused(password: str) -> None:
    with pytest.raises(ValueError, match="printable ASCII"):
        verifier(password)
