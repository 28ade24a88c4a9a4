"""A runtime role that the database's rules do not bind stops the process, in one sentence that names variable and role."""

import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.checks import Error
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import connections

from dashboard import checks, servers
from tests.cluster import ADDRESS, Database
from tests.processes import ROOT, StartProcess, wait_until

ALIASES = ("default", "accounts", "worker", "keeper")


@pytest.fixture
def probe(superuser: Any, database: Database) -> Iterator[str]:
    """A login role of this test alone; its password is its name."""
    name = f"probe_{secrets.token_hex(4)}"
    superuser.execute(f"CREATE ROLE {name} LOGIN NOINHERIT PASSWORD '{name}'")
    yield name
    connections.close_all()
    superuser.execute(f"REASSIGN OWNED BY {name} TO CURRENT_USER; DROP OWNED BY {name}")
    superuser.execute(f"DROP ROLE {name}")


@pytest.fixture
def signs_in(probe: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """``signs_in(alias)``: the alias's URL names the probe now."""

    def change(alias: str) -> None:
        connections[alias].close()
        for part in ("USER", "PASSWORD"):
            monkeypatch.setitem(connections.settings[alias], part, probe)
            monkeypatch.setitem(connections[alias].settings_dict, part, probe)

    return change


@pytest.mark.parametrize("alias", ALIASES)
def test_the_roles_of_the_script_are_bound(database: Database, alias: str) -> None:
    assert checks.unbound(alias) is None
    assert checks.check_roles(databases=[alias]) == []


@pytest.mark.parametrize("alias", ALIASES)
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("ALTER ROLE {role} SUPERUSER", "is a superuser"),
        ("ALTER ROLE {role} BYPASSRLS", "has BYPASSRLS"),
        ("ALTER ROLE {role} CREATEROLE", "has CREATEROLE"),
        ("ALTER ROLE {role} REPLICATION", "has REPLICATION"),
        ("GRANT fencewatch_owner TO {role} WITH INHERIT FALSE", "owns the work table"),
        ("GRANT fencewatch_migrator TO {role}", "owns the work table"),
        ("ALTER TABLE work_item OWNER TO {role}", "owns the work table"),
        ("ALTER DATABASE {database} OWNER TO {role}", "owns the database"),
        ("GRANT fencewatch_actions TO {role}", "is a member of fencewatch_actions"),
        ("GRANT fencewatch_keeper TO {role}", "is a member of fencewatch_keeper"),
        ("GRANT pg_write_all_data TO {role}", "is a member of pg_write_all_data"),
    ],
)
def test_a_role_that_the_rules_do_not_bind_is_named_and_refused(
    superuser: Any, database: Database, probe: str, signs_in: Any, alias: str, change: str, said: str
) -> None:
    superuser.execute(change.format(role=probe, database=database.name))
    signs_in(alias)
    wanted = f"{checks.VARIABLES[alias]} signs in as {probe}, which {said}: the database's rules would not bind"
    with pytest.raises(ImproperlyConfigured, match=re.escape(wanted)):
        connections[alias].ensure_connection()
    with pytest.raises(ImproperlyConfigured):
        connections[alias].ensure_connection()


@pytest.mark.parametrize("right", ["UPDATE (outcome_code)", "INSERT (operation_id)", "DELETE", "TRUNCATE"])
@pytest.mark.parametrize("alias", ["default", "accounts"])
def test_the_pages_roles_may_not_write_the_work_table(
    superuser: Any, probe: str, signs_in: Any, alias: str, right: str
) -> None:
    superuser.execute(f"GRANT {right} ON work_item TO {probe}")
    signs_in(alias)
    with pytest.raises(ImproperlyConfigured, match="may write the work table"):
        connections[alias].ensure_connection()


def test_djangos_own_check_reports_it(superuser: Any, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = "DATABASE_URL signs in as postgres"
    monkeypatch.setattr(checks, "unbound", lambda alias: sentence)
    assert checks.check_roles(databases=["default"]) == [Error(sentence, id="fencewatch.E001")]
    with pytest.raises(SystemCheckError, match="signs in as postgres"):
        call_command("check", databases=["default"])
    call_command("check")


def as_superuser(database: Database, probe: str) -> str:
    return f"postgresql://{probe}:{probe}@{ADDRESS}/{database.name}"


@pytest.mark.parametrize("variable", ["DATABASE_URL", "ACCOUNTS_DATABASE_URL"])
def test_gunicorn_does_not_start_under_a_superuser(
    superuser: Any, database: Database, probe: str, start_process: StartProcess, variable: str
) -> None:
    superuser.execute(f"ALTER ROLE {probe} SUPERUSER")
    port = servers.free_port()
    process, log = start_process(
        *("-m", "gunicorn", "--config", "deploy/gunicorn.py"),
        **{
            "DJANGO_SETTINGS_MODULE": None,
            "FENCEWATCH_BIND": f"127.0.0.1:{port}",
            variable: as_superuser(database, probe),
        },
    )
    wait_until(lambda: process.poll() is not None, what="gunicorn gave up")
    assert process.returncode != 0
    assert f"Fencewatch cannot start: {variable} signs in as {probe}, which is a superuser" in log.read_text()
    assert "Traceback" not in log.read_text()


@pytest.mark.parametrize("variable", ["WORKER_DATABASE_URL", "KEEPER_DATABASE_URL"])
def test_a_celery_worker_does_not_start_under_a_superuser(
    superuser: Any, database: Database, probe: str, variable: str
) -> None:
    superuser.execute(f"ALTER ROLE {probe} SUPERUSER")
    ended = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "dashboard", "worker"],
        cwd=ROOT,
        env={
            **database.environment,
            "CELERY_BROKER_URL": "redis://127.0.0.1:1/0",
            variable: as_superuser(database, probe),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode != 0
    assert f"Fencewatch cannot start: {variable} signs in as {probe}, which is a superuser" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_database_that_is_away_at_the_start_is_asked_about_by_the_first_connection(
    superuser: Any, database: Database, probe: str, signs_in: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as away:
        away.setitem(connections["keeper"].settings_dict, "PORT", str(servers.free_port()))
        connections["keeper"].close()
        checks.require_bound_roles("keeper")
    superuser.execute(f"ALTER ROLE {probe} BYPASSRLS")
    signs_in("keeper")
    with pytest.raises(ImproperlyConfigured, match="has BYPASSRLS"):
        connections["keeper"].ensure_connection()
    with pytest.raises(SystemExit, match=r"Fencewatch cannot start: KEEPER_DATABASE_URL .* has BYPASSRLS"):
        checks.require_bound_roles("keeper")
