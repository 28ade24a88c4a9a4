"""
Every write on every column of every table, tried as every role that can sign in, against one written list.

Each statement is planned and its rights are checked by the server (EXPLAIN does both), and nothing is executed.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests.cluster import ADDRESS, PASSWORDS, Database

LOGINS = ("web", "accounts", "worker", "reconciler", "keeper", "migrator")


@contextmanager
def signed_in_as(name: str, database: Database) -> Iterator[psycopg.Connection[Any]]:
    url = f"postgresql://fencewatch_{name}:{PASSWORDS[name]}@{ADDRESS}/{database.name}"
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


def columns(superuser: Any) -> list[tuple[str, str, str]]:
    """Schema, table and column of whatever can be written."""
    found = superuser.execute(
        "SELECT n.nspname::text, c.relname::text, a.attname::text FROM pg_class c"
        "  JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid"
        " WHERE n.nspname IN ('public', 'fencewatch') AND c.relkind IN ('r', 'p', 'v', 'm', 'f')"
        "   AND a.attnum > 0 AND NOT a.attisdropped ORDER BY 1, 2, a.attnum"
    ).fetchall()
    return [tuple(row) for row in found]


def allowed(connection: psycopg.Connection[Any], statement: sql.Composed) -> bool:
    try:
        connection.execute(sql.SQL("EXPLAIN ") + statement)
    except psycopg.errors.InsufficientPrivilege:
        return False
    return True


def writes_of(connection: psycopg.Connection[Any], every: list[tuple[str, str, str]]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = defaultdict(lambda: defaultdict(set))
    for schema, table, column in every:
        where, what = sql.Identifier(schema, table), sql.Identifier(column)
        name = f"{schema}.{table}"
        if allowed(connection, sql.SQL("INSERT INTO {} ({}) VALUES (DEFAULT)").format(where, what)):
            found[name]["insert"].add(column)
        if allowed(connection, sql.SQL("UPDATE {} SET {} = DEFAULT").format(where, what)):
            found[name]["update"].add(column)
        if allowed(connection, sql.SQL("DELETE FROM {}").format(where)):
            found[name]["delete"].add("*")
    return {table: dict(verbs) for table, verbs in found.items()}


ANY = {"insert": ..., "update": ..., "delete": {"*"}}  # every column
MAY_WRITE: dict[str, dict[str, dict[str, Any]]] = {
    "web": {},
    "accounts": {
        f"public.{table}": ANY
        for table in (
            *("auth_group", "auth_group_permissions", "auth_permission", "auth_user", "auth_user_groups"),
            *("auth_user_user_permissions", "django_content_type", "django_session"),
        )
    },
    "worker": {
        "public.payload": {"insert": {"tenant_id", "payload_ref", "body", "stored_at"}},
        "public.work_item": {
            "insert": {
                *("tenant_id", "operation_id", "payload_hash", "payload_ref", "state", "max_attempts", "outcome_code"),
                *("job_type", "available_at"),
            },
            "update": {
                *("state", "fence", "lease_owner", "lease_expires_at", "attempts", "max_attempts", "unspent_attempts"),
                *(
                    "outcome_code",
                    "updated_at",
                    "available_at",
                    "stamping_fence",
                    "effect_fence",
                    "effect_at",
                    "progress",
                ),
                "waiting_in_worker",
            },
        },
    },
    "reconciler": {},
    "keeper": {},
    "migrator": {},  # until it says SET ROLE
}
READ_CONTEXT = {"context_parts", "context_sees_all", "context_tenants", "context_user", "person_may", "tenants_open_to"}
TIMELINES = {"timeline", "nothing_lost", "safe_timelines"}
MAY_CALL: dict[str, set[str]] = {
    "web": {
        *READ_CONTEXT,
        *TIMELINES,
        *("confirm_lossless", "propose_lossless", "withdraw_lossless", "reference_digest", "revoke", "search"),
    },
    "accounts": set(),
    "worker": {
        *TIMELINES,
        *("enqueue", "enqueue_many", "note", "note_rejected", "tombstone_of"),
        *(
            "fence_base",
            "foreign_types",
            "held_types",
            "may_be_lost",
            "may_have_acted",
            "worker_is_scoped",
            "worker_tenants",
        ),
    },
    "reconciler": set(),
    "keeper": {"retire", "seal", "sweep"},
    "migrator": set(),
}
OUT_OF_BOUNDS = (
    "SET session_replication_role = replica",
    "SET SESSION AUTHORIZATION fencewatch_owner",
    "CREATE TEMPORARY TABLE work_item ()",
    "CREATE TABLE public.mine ()",
    "CREATE TABLE fencewatch.mine ()",
    "CREATE SCHEMA mine",
    "CREATE FUNCTION public.clock_timestamp() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "CREATE ROLE mine",
    "ALTER TABLE public.work_item DISABLE TRIGGER ALL",
    "ALTER TABLE public.work_item DISABLE ROW LEVEL SECURITY",
    "ALTER TABLE public.work_item NO FORCE ROW LEVEL SECURITY",
    "DROP POLICY owner_all ON work_item",
    "TRUNCATE public.work_item CASCADE",
    "TRUNCATE public.audit_entry",
    "COPY (SELECT 1) TO PROGRAM 'true'",
    "COPY (SELECT 1) TO '/tmp/out'",
    "SELECT pg_read_file('/etc/passwd')",
    "SELECT pg_ls_dir('/')",
    "SELECT lo_from_bytea(0, 'x')",
    "SELECT lo_import('/etc/passwd')",
    "SELECT * FROM pg_authid",
    "SELECT * FROM fencewatch.context_key",
    "SELECT * FROM fencewatch.tenant_key",
    "ALTER SYSTEM SET fsync = off",
)


@pytest.mark.parametrize("name", LOGINS)
def test_a_role_writes_what_the_list_says_and_nothing_else(name: str, superuser: Any, database: Database) -> None:
    every = columns(superuser)
    assert len(every) > 150
    wanted = {
        table: {
            verb: {column for schema, named, column in every if f"{schema}.{named}" == table} if given is ... else given
            for verb, given in verbs.items()
        }
        for table, verbs in MAY_WRITE[name].items()
    }
    with signed_in_as(name, database) as connection:
        assert writes_of(connection, every) == wanted


def test_the_table_owner_would_be_seen_to_write(superuser: Any) -> None:
    """The control: the same questions, asked as a superuser, find every column."""
    every = columns(superuser)
    found = writes_of(superuser, every)
    assert {(table, column) for table, verbs in found.items() for column in verbs["insert"]} == {
        (f"{schema}.{table}", column) for schema, table, column in every
    }


@pytest.mark.parametrize("name", LOGINS)
def test_a_role_calls_what_the_list_says_and_nothing_else(name: str, superuser: Any, database: Database) -> None:
    every = superuser.execute(
        "SELECT p.proname::text FROM pg_proc p WHERE p.pronamespace = 'fencewatch'::regnamespace"
        "  AND has_schema_privilege(%(role)s, 'fencewatch', 'USAGE') AND has_function_privilege(%(role)s, p.oid, 'EXECUTE')",
        {"role": f"fencewatch_{name}"},
    ).fetchall()
    assert {function for (function,) in every} == MAY_CALL[name]


@pytest.mark.parametrize("name", LOGINS)
@pytest.mark.parametrize("statement", OUT_OF_BOUNDS)
def test_no_role_gets_around_its_rights(name: str, statement: str, database: Database) -> None:
    with signed_in_as(name, database) as connection, pytest.raises(psycopg.Error) as refused:
        connection.execute(statement.encode())
    assert refused.value.sqlstate == "42501", refused.value


@pytest.mark.parametrize("name", LOGINS)
def test_a_role_becomes_nobody_else(name: str, superuser: Any, database: Database) -> None:
    roles = [
        role
        for (role,) in superuser.execute("SELECT rolname FROM pg_roles WHERE rolname <> %s", [f"fencewatch_{name}"])
    ]
    became = set()
    with signed_in_as(name, database) as connection:
        for role in roles:
            try:
                connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
            except psycopg.errors.InsufficientPrivilege:
                continue
            became.add(role)
    wanted = {"fencewatch_owner", "fencewatch_actions", "fencewatch_keeping"} if name == "migrator" else set()
    assert became == wanted
