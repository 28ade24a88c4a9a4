import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRODUCTION = {
    "DATABASE_URL": "postgresql://fencewatch_web:web-secret@db.example/fencewatch?sslmode=verify-full",
    "ACCOUNTS_DATABASE_URL": "postgresql://fencewatch_accounts:accounts-secret@db.example/fencewatch",
    "FENCEWATCH_SECRET_KEY": "t7Zk0q" * 10,
    "FENCEWATCH_CONTEXT_KEY": "0123456789abcdef" * 4,
    "FENCEWATCH_ALLOWED_HOSTS": "ops.example",
    "FENCEWATCH_URL": "https://ops.example",
}
DUMP = """
import json
from django.conf import settings
print(json.dumps({name: getattr(settings, name) for name in dir(settings) if name.isupper()}, default=str))
"""


def run(*arguments: str, **changes: str | None) -> subprocess.CompletedProcess[str]:
    around = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("FENCEWATCH_", "CELERY_", "DJANGO_")) and not name.endswith("DATABASE_URL")
    }
    environment = around | {"DJANGO_SETTINGS_MODULE": "dashboard.settings"} | PRODUCTION | changes
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={name: value for name, value in environment.items() if value is not None},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def settings(**changes: str | None) -> dict[str, Any]:
    done = run("-c", DUMP, **changes)
    assert done.returncode == 0, done.stderr
    values: dict[str, Any] = json.loads(done.stdout)
    return values


def test_djangos_deployment_check_is_clean_with_production_settings() -> None:
    done = run("manage.py", "check", "--deploy", "--fail-level", "INFO")
    assert done.returncode == 0, done.stderr
    assert "no issues" in done.stdout


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("FENCEWATCH_SECRET_KEY", None),
        ("FENCEWATCH_SECRET_KEY", "short"),
        ("FENCEWATCH_CONTEXT_KEY", None),
        ("FENCEWATCH_CONTEXT_KEY", "secret-not-hexadecimal"),
        ("FENCEWATCH_ALLOWED_HOSTS", None),
        ("FENCEWATCH_ALLOWED_HOSTS", "*"),
        ("FENCEWATCH_URL", "http://ops.example"),
        ("FENCEWATCH_SCRIPT_NAME", "no-slash"),
        ("FENCEWATCH_DEBUG", "perhaps"),
        ("FENCEWATCH_INSECURE_HTTP", "maybe"),
        ("FENCEWATCH_POOL_SIZE", "-1"),
        ("FENCEWATCH_LOG_LEVEL", "LOUD"),
        ("ACCOUNTS_DATABASE_URL", None),
        ("DATABASE_URL", "mysql://fencewatch_web:secret@db.example/fencewatch"),
        ("DATABASE_URL", "postgresql://fencewatch_web:secret@db.example:port/fencewatch"),
        ("DATABASE_URL", "postgresql://db.example/fencewatch"),
        ("WORKER_DATABASE_URL", "postgresql://fencewatch_worker:secret@db.example?nonsense=1"),
        ("CELERY_BROKER_URL", "secret@broker"),
    ],
)
def test_a_missing_or_bad_value_stops_the_start_with_one_sentence_that_names_it(
    variable: str, value: str | None
) -> None:
    done = run("manage.py", "check", **{variable: value})
    assert done.returncode == 1
    assert done.stderr.startswith("Fencewatch cannot start: ")
    assert variable in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "secret" not in done.stderr


def test_gunicorn_stops_with_the_same_sentence_before_it_listens() -> None:
    done = run("-m", "gunicorn", "--config", "deploy/gunicorn.py", FENCEWATCH_CONTEXT_KEY=None)
    assert done.returncode == 1
    assert done.stderr.startswith("Fencewatch cannot start: FENCEWATCH_CONTEXT_KEY is missing")
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_worker_needs_no_secret_of_the_pages_and_has_no_alias_but_its_own() -> None:
    found = settings(
        **dict.fromkeys(PRODUCTION),
        WORKER_DATABASE_URL="postgresql://fencewatch_worker:x@db.example/fencewatch",
        KEEPER_DATABASE_URL="postgresql://fencewatch_keeper:x@db.example/fencewatch",
    )
    assert set(found["DATABASES"]) == {"default", "worker", "keeper"}
    assert found["DATABASES"]["default"]["ENGINE"] == "dashboard.absent"
    assert found["CONTEXT_KEY"] is None
    for alias in ("worker", "keeper"):
        options = found["DATABASES"][alias]["OPTIONS"]
        assert "-c plan_cache_mode=force_generic_plan -c fencewatch.worker=stamps" in options["options"]
        assert options["prepare_threshold"] == 1


def test_using_the_pages_alias_without_its_url_says_which_variable_is_missing() -> None:
    done = run(
        "manage.py", "shell", "-c", "from django.db import connection; connection.cursor()", **dict.fromkeys(PRODUCTION)
    )
    assert "DATABASE_URL is missing" in done.stderr


def test_the_commands_that_need_no_database_need_no_variable() -> None:
    done = run("manage.py", "makemigrations", "--check", "--dry-run", **dict.fromkeys(PRODUCTION))
    assert done.returncode == 0, done.stderr


def test_cookies_are_bound_to_the_host_and_the_policy_allows_only_our_own_files() -> None:
    found = settings()
    assert found["SESSION_COOKIE_NAME"].startswith("__Host-")
    assert found["CSRF_COOKIE_NAME"].startswith("__Host-")
    assert found["SECURE_CSP"]["default-src"] == ["'none'"]
    assert {tuple(sources) for sources in found["SECURE_CSP"].values()} == {("'none'",), ("'self'",)}


def test_a_url_may_name_several_hosts_and_tls_and_a_coded_password() -> None:
    url = "postgresql://fencewatch_web:p%40ss@one.example:5432,two.example:5433/fencewatch?target_session_attrs=read-write"
    found = settings(DATABASE_URL=url)["DATABASES"]["default"]
    assert (found["HOST"], found["PORT"], found["PASSWORD"]) == ("one.example,two.example", "5432,5433", "p@ss")
    assert found["OPTIONS"]["target_session_attrs"] == "read-write"
    assert found["OPTIONS"]["server_side_binding"] is True
