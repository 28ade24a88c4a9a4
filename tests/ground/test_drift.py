"""The live catalog against the manifest: whatever somebody changes in the database's rules is named."""

import io
import os
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from tests.cluster import Database
from workitems.guards import drift, install

LAID = (  # what, how it is changed, the object that must be named, whether laying anew mends it
    ("ALTER TABLE work_item DISABLE TRIGGER guard", "trigger guard on work_item", True),
    ("ALTER TABLE work_item ENABLE REPLICA TRIGGER guard", "trigger guard on work_item", True),
    ("DROP TRIGGER append_only ON work_event", "trigger append_only on work_event", True),
    ("ALTER POLICY worker_write ON work_item USING (true)", "policy worker_write on work_item", True),
    ("DROP POLICY web_by_context ON tenant", "policy web_by_context on tenant", True),
    ("CREATE POLICY extra ON work_item FOR SELECT TO fencewatch_web USING (true)", "policy extra on work_item", True),
    ("ALTER TABLE work_event NO FORCE ROW LEVEL SECURITY", "table work_event", True),
    ("GRANT SELECT ON work_item TO fencewatch_web", "rights of fencewatch_web on work_item", True),
    ("GRANT UPDATE (fence) ON work_item TO fencewatch_keeper", "rights of fencewatch_keeper on work_item", True),
    ("REVOKE SELECT ON job_type FROM fencewatch_worker", "rights of fencewatch_worker on job_type", True),
    (
        "GRANT EXECUTE ON FUNCTION fencewatch.sweep(int) TO PUBLIC",
        "rights of PUBLIC on function sweep(max_rows integer)",
        True,
    ),
    (
        (
            "CREATE OR REPLACE FUNCTION fencewatch.held_types() RETURNS text[] LANGUAGE sql STABLE"
            " SET search_path = pg_catalog, pg_temp AS $$ SELECT '{}'::text[] $$"
        ),
        "function held_types()",
        True,
    ),
    ("ALTER FUNCTION fencewatch.guard() RESET search_path", "function guard()", True),
    ("ALTER FUNCTION fencewatch.guard() SECURITY DEFINER", "function guard()", True),
    ("ALTER FUNCTION fencewatch.revoke OWNER TO fencewatch_owner", "function revoke(", True),
    ("CREATE FUNCTION fencewatch.door() RETURNS int LANGUAGE sql AS 'SELECT 1'", "function door()", True),
    ("GRANT SELECT ON work_event TO PUBLIC", "rights of PUBLIC on work_event", True),
    ("GRANT CREATE ON SCHEMA public TO fencewatch_web", "rights of fencewatch_web on schema public", False),
    ("GRANT USAGE ON SCHEMA fencewatch TO PUBLIC", "rights of PUBLIC on schema fencewatch", True),
    ("ALTER TABLE work_item OWNER TO fencewatch_worker", "table work_item", False),
    ("ALTER TABLE audit_unsealed SET UNLOGGED", "table audit_unsealed", False),
    ("ALTER TABLE work_item DROP CONSTRAINT claimed_iff_leased", "constraint claimed_iff_leased", False),
    ("ALTER TABLE work_item ALTER payload_ref DROP NOT NULL", "column work_item.payload_ref", False),
    ("ALTER TABLE work_item ADD COLUMN note text", "column work_item.note", False),
    ("ALTER TABLE work_item ALTER max_attempts SET DEFAULT 9", "column work_item.max_attempts", False),
    ("DROP INDEX work_item_queued", "index work_item_queued on work_item", False),
    (
        "CREATE RULE silent AS ON UPDATE TO work_item DO INSTEAD NOTHING",
        "rule silent on work_item",
        False,
    ),
    ("CREATE VIEW stalled AS SELECT * FROM work_item", "view stalled over work_item", False),
    ("CREATE TABLE child () INHERITS (work_item)", "child child of work_item", False),
    ("ALTER TABLE membership DISABLE TRIGGER ALL", "checks of membership_tenant_id_fkey on membership", False),
    (
        "SET ROLE fencewatch_owner; ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON FUNCTIONS TO PUBLIC; RESET ROLE",
        "default rights of fencewatch_owner on functions",
        False,
    ),
    (
        "ALTER ROLE fencewatch_worker IN DATABASE {database} SET session_replication_role = replica",
        "setting session_replication_role of fencewatch_worker in this database",
        False,
    ),
    (
        "ALTER DATABASE {database} SET search_path = elsewhere, public",
        "setting search_path of every role in this database",
        False,
    ),
    ("GRANT TEMPORARY ON DATABASE {database} TO PUBLIC", "rights of PUBLIC on the database", False),
)
# Roles are the whole server's: put back after the test.
OF_THE_SERVER = (
    ("ALTER ROLE fencewatch_keeper BYPASSRLS", "ALTER ROLE fencewatch_keeper NOBYPASSRLS", "role fencewatch_keeper"),
    ("ALTER ROLE fencewatch_actions LOGIN", "ALTER ROLE fencewatch_actions NOLOGIN", "role fencewatch_actions"),
    (
        "GRANT fencewatch_actions TO fencewatch_web WITH SET TRUE",
        "REVOKE fencewatch_actions FROM fencewatch_web",
        "membership of fencewatch_web in fencewatch_actions",
    ),
    (
        "GRANT pg_read_all_data TO fencewatch_web",
        "REVOKE pg_read_all_data FROM fencewatch_web",
        "membership of fencewatch_web in pg_read_all_data",
    ),
    (
        "ALTER ROLE fencewatch_web RESET statement_timeout",
        "ALTER ROLE fencewatch_web SET statement_timeout = '5s'",
        "setting statement_timeout of fencewatch_web",
    ),
)


def named() -> list[str]:
    return [difference.object for difference in drift.differences()]


def is_named(object_: str) -> bool:
    return any(name.startswith(object_) for name in named())


@pytest.mark.usefixtures("database")
def test_a_fresh_database_is_what_the_manifest_says() -> None:
    """Fails when SQL changed and the manifest did not: `make manifest` writes it anew, then read its difference."""
    if "FENCEWATCH_TEST_WRITE_MANIFEST" in os.environ:
        call_command("drift", write=True)
    assert [difference.sentence for difference in drift.differences()] == []


@pytest.mark.usefixtures("database")
def test_laying_the_files_once_more_changes_nothing() -> None:
    before = drift.live()
    assert install.install(again=True)
    assert drift.live() == before


@pytest.mark.parametrize(("changed", "object_", "mended"), LAID, ids=[changed[:60] for changed, _, _ in LAID])
def test_a_rule_that_somebody_changed_is_named(
    changed: str, object_: str, mended: bool, superuser: Any, database: Database
) -> None:
    superuser.execute(changed.replace("{database}", f'"{database.name}"'))
    assert is_named(object_), named()
    if mended:
        install.install(again=True)
        assert named() == []


@pytest.mark.parametrize(
    ("changed", "back", "object_"), OF_THE_SERVER, ids=[changed for changed, _, _ in OF_THE_SERVER]
)
def test_a_role_that_somebody_changed_is_named(changed: str, back: str, object_: str, superuser: Any) -> None:
    superuser.execute(changed)
    try:
        assert named() == [object_]
    finally:
        superuser.execute(back)
    assert named() == []


def test_other_peoples_tables_and_a_dbas_settings_are_left_alone(superuser: Any) -> None:
    superuser.execute("CREATE TABLE invoice (id int)")
    superuser.execute("CREATE FUNCTION public.total() RETURNS int LANGUAGE sql AS 'SELECT 1'")
    superuser.execute("ALTER ROLE fencewatch_web SET work_mem = '64MB'")
    try:
        assert named() == []
    finally:
        superuser.execute("ALTER ROLE fencewatch_web RESET work_mem")


def test_the_command_names_every_difference_and_says_what_to_do(superuser: Any) -> None:
    said = io.StringIO()
    call_command("drift", stdout=said)
    assert "as this version laid them" in said.getvalue()

    superuser.execute("ALTER TABLE work_item DISABLE TRIGGER guard")
    superuser.execute("GRANT DELETE ON work_item TO fencewatch_worker")
    wrong = io.StringIO()
    with pytest.raises(CommandError, match=r"2 of the database's rules .* --lay"):
        call_command("drift", stderr=wrong)
    lines = wrong.getvalue().splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "rights of fencewatch_worker on work_item",
        "trigger guard on work_item",
    ]
    assert "DISABLED" in lines[1]
    call_command("drift", lay=True, stdout=said)


def test_a_database_of_another_version_is_told_to_migrate(superuser: Any) -> None:
    superuser.execute("UPDATE fencewatch.installed SET fingerprint = 'older'")
    with pytest.raises(CommandError, match="migrate"):
        call_command("drift")
