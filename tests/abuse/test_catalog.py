"""
The catalog's own questions: nothing in our schemas gets around row security, by a view, a partition or a function.

Each question is asked of the database as it is, and once more after somebody made the mistake that it is there to find.
"""

from typing import Any

import pytest

# Tables without a tenant's data, or whose rows no signed context could choose between. Nobody but the owner and the role
# of users and sessions reads most of them; test_writes.py and the rights below say who.
WITHOUT_ROW_SECURITY = {
    *("auth_group", "auth_group_permissions", "auth_permission", "auth_user", "auth_user_groups"),
    *("auth_user_user_permissions", "django_content_type", "django_migrations", "django_session"),
    *(
        "job_type",
        "verb_right",
        "fencewatch.adoption",
        "fencewatch.context_key",
        "fencewatch.installed",
        "fencewatch.tenant_key",
    ),
}
OURS = "n.nspname IN ('public', 'fencewatch')"
TABLES = f"FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE {OURS}"
NAME = "CASE WHEN n.nspname = 'public' THEN '' ELSE n.nspname || '.' END || c.relname"
FUNCTIONS = f"FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE {OURS}"
LINT = {
    "a table that does not force row security": (
        f"SELECT {NAME} {TABLES} AND c.relkind IN ('r', 'p') AND NOT (c.relrowsecurity AND c.relforcerowsecurity)"
    ),
    "a view that reads with its owner's rights": (
        f"SELECT {NAME} {TABLES} AND c.relkind = 'v' AND NOT coalesce(c.reloptions, '{{}}') @> '{{security_invoker=true}}'"
    ),
    "a copy of rows that no policy guards": f"SELECT {NAME} {TABLES} AND c.relkind IN ('m', 'f')",
    "a right on a partition": (
        f"SELECT {NAME} || ' for ' || a.grantee::regrole {TABLES.replace(' WHERE', ', aclexplode(c.relacl) a WHERE')}"
        "   AND c.relispartition AND a.grantee <> c.relowner"
    ),
    "a right for everybody on a table": (
        f"SELECT {NAME} || ' for PUBLIC' {TABLES.replace(' WHERE', ', aclexplode(c.relacl) a WHERE')} AND a.grantee = 0"
    ),
    "an object of somebody else": f"SELECT {NAME} {TABLES} AND pg_get_userbyid(c.relowner) <> 'fencewatch_owner'",
    "a function that finds names by its caller's path": (
        f"SELECT p.proname {FUNCTIONS} AND p.prosqlbody IS NULL"
        " AND NOT coalesce(p.proconfig, '{}') @> ARRAY['search_path=pg_catalog, pg_temp']"
    ),
    "a function that everybody may call": (
        f"SELECT p.proname {FUNCTIONS} AND (p.proacl IS NULL OR EXISTS (SELECT FROM aclexplode(p.proacl) a WHERE a.grantee = 0))"
    ),
    "a function whose owner can sign in or see through row security": (
        f"SELECT p.proname {FUNCTIONS.replace(' WHERE', ' JOIN pg_roles r ON r.oid = p.proowner WHERE')}"
        " AND (r.rolcanlogin OR r.rolsuper OR r.rolbypassrls)"
    ),
    "a policy for everybody": (
        f"SELECT l.polname || ' on ' || {NAME} {TABLES.replace(' WHERE', ' JOIN pg_policy l ON l.polrelid = c.oid WHERE')}"
        " AND l.polroles = '{0}'"
    ),
    "a trigger that a replica's replay would skip": (
        f"SELECT t.tgname || ' on ' || {NAME} {TABLES.replace(' WHERE', ' JOIN pg_trigger t ON t.tgrelid = c.oid WHERE')}"
        " AND NOT t.tgisinternal AND t.tgenabled <> 'A'"
    ),
    "a right on a column that holds a raw identifier, for the pages": (
        f"SELECT {NAME} || '.' || a.attname {TABLES.replace(' WHERE', ' JOIN pg_attribute a ON a.attrelid = c.oid WHERE')}"
        " AND a.attname IN ('tenant_id', 'operation_id', 'payload_ref', 'inner_pad', 'outer_pad')"
        " AND has_column_privilege('fencewatch_web', c.oid, a.attnum, 'SELECT')"
    ),
}
MISTAKES = {
    "a table that does not force row security": (
        "ALTER TABLE work_item NO FORCE ROW LEVEL SECURITY",
        "work_item",
    ),
    "a view that reads with its owner's rights": ("CREATE VIEW stalled AS SELECT * FROM work_item", "stalled"),
    "a copy of rows that no policy guards": (
        "CREATE MATERIALIZED VIEW figures AS SELECT state FROM work_item",
        "figures",
    ),
    "a right on a partition": (
        (
            "CREATE TABLE log (at int) PARTITION BY LIST (at);"
            "CREATE TABLE log_1 PARTITION OF log FOR VALUES IN (1); GRANT SELECT ON log_1 TO fencewatch_web"
        ),
        "log_1 for fencewatch_web",
    ),
    "a right for everybody on a table": ("GRANT SELECT ON job_type TO PUBLIC", "job_type for PUBLIC"),
    "an object of somebody else": ("CREATE TABLE mine (at int)", "mine"),
    "a function that finds names by its caller's path": (
        "CREATE FUNCTION fencewatch.plain() RETURNS bigint LANGUAGE sql AS 'SELECT count(*) FROM work_item'",
        "plain",
    ),
    "a function that everybody may call": (
        "GRANT EXECUTE ON FUNCTION fencewatch.timeline() TO PUBLIC",
        "timeline",
    ),
    "a function whose owner can sign in or see through row security": (
        (
            "GRANT CREATE ON SCHEMA fencewatch TO fencewatch_worker;"
            "ALTER FUNCTION fencewatch.sweep(int) OWNER TO fencewatch_worker"
        ),
        "sweep",
    ),
    "a policy for everybody": (
        "CREATE POLICY open_door ON work_item FOR SELECT USING (true)",
        "open_door on work_item",
    ),
    "a trigger that a replica's replay would skip": (
        "ALTER TABLE work_item ENABLE TRIGGER guard",
        "guard on work_item",
    ),
    "a right on a column that holds a raw identifier, for the pages": (
        "GRANT SELECT (operation_id) ON work_item TO fencewatch_web",
        "work_item.operation_id",
    ),
}


def offenders(superuser: Any, question: str) -> set[str]:
    found = {name for (name,) in superuser.execute(LINT[question]).fetchall()}
    if question == "a table that does not force row security":
        return found ^ WITHOUT_ROW_SECURITY
    return found


@pytest.mark.parametrize("question", LINT)
def test_nothing_in_the_catalog_gets_around_row_security(question: str, superuser: Any) -> None:
    assert offenders(superuser, question) == set()


@pytest.mark.parametrize("question", LINT)
def test_each_question_finds_the_mistake_that_it_is_there_for(question: str, superuser: Any) -> None:
    made, named = MISTAKES[question]
    superuser.execute(made)
    assert named in offenders(superuser, question)


def test_a_table_without_row_security_holds_nothing_that_the_pages_could_mix_up(superuser: Any) -> None:
    """What the pages may read of the exempted tables is the same for every tenant."""
    read = superuser.execute(
        f"SELECT {NAME} {TABLES} AND c.relkind IN ('r', 'p') AND NOT c.relforcerowsecurity"
        "   AND has_any_column_privilege('fencewatch_web', c.oid, 'SELECT')"
    ).fetchall()
    assert {name for (name,) in read} == {"job_type", "verb_right"}


def test_a_plain_view_would_have_shown_every_tenant_to_the_pages(superuser: Any, tenants: tuple[str, str]) -> None:
    """Why the question about views is asked: this is what it prevents."""
    superuser.execute("SET ROLE fencewatch_owner")
    superuser.execute("CREATE VIEW plain AS SELECT label FROM tenant")
    superuser.execute("CREATE VIEW invoking WITH (security_invoker = true) AS SELECT label FROM tenant")
    superuser.execute("GRANT SELECT ON plain, invoking TO fencewatch_web")
    superuser.execute("SET ROLE fencewatch_web")
    seen = [superuser.execute(f"SELECT count(*) FROM {view}").fetchone() for view in ("plain", "invoking")]
    assert seen == [(2,), (0,)]
