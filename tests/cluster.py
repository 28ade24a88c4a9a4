"""
The test cluster: an embedded PostgreSQL, one template database made by the real migrations, a fresh clone for each test.

Importing this sets the environment and Django up, so that it has to happen before any model is imported. The aliases
connect under the roles of production. FENCEWATCH_TEST_SUPERUSER_URL names a server to use instead of the embedded one;
its fencewatch_* roles then get new passwords.
"""

import atexit
import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, LiteralString, cast
from urllib.parse import urlsplit

import django
import psycopg
import pytest
from psycopg import sql

from dashboard import servers

GIVEN = urlsplit(os.environ.get("FENCEWATCH_TEST_SUPERUSER_URL", ""))
ADDRESS = f"{GIVEN.hostname or '127.0.0.1'}:{GIVEN.port or (5432 if GIVEN.hostname else servers.free_port())}"
RUN = secrets.token_hex(4)
TEMPLATE = f"fencewatch_template_{RUN}"
# variable -> (alias, role, name of the password in roles.sql)
ROLES = {
    "DATABASE_URL": ("default", "fencewatch_web", "web"),
    "ACCOUNTS_DATABASE_URL": ("accounts", "fencewatch_accounts", "accounts"),
    "WORKER_DATABASE_URL": ("worker", "fencewatch_worker", "worker"),
    "KEEPER_DATABASE_URL": ("keeper", "fencewatch_keeper", "keeper"),
    "OWNER_DATABASE_URL": ("owner", "fencewatch_migrator", "migrator"),
}
PASSWORDS = {name: secrets.token_hex(12) for name in ("web", "accounts", "worker", "keeper", "migrator", "reconciler")}
# Below /tmp itself: pytest's own folders are closed to the user that PostgreSQL runs as under root.
FOLDER = Path(tempfile.mkdtemp(prefix="fencewatch-test-"))
FOLDER.chmod(0o711)
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)


def url(variable: str, *, database: str) -> str:
    _, role, password = ROLES[variable]
    return f"postgresql://{role}:{PASSWORDS[password]}@{ADDRESS}/{database}"


def _set_up_django() -> None:
    for name in [name for name in os.environ if name.startswith(("FENCEWATCH_", "CELERY_"))]:
        if not name.startswith("FENCEWATCH_TEST_"):
            del os.environ[name]
    os.environ |= {
        "DJANGO_SETTINGS_MODULE": "dashboard.settings",
        "FENCEWATCH_SECRET_KEY": secrets.token_urlsafe(64),
        "FENCEWATCH_CONTEXT_KEY": secrets.token_hex(32),
        "FENCEWATCH_ALLOWED_HOSTS": "127.0.0.1,localhost,testserver",
        "FENCEWATCH_INSECURE_HTTP": "1",
        "FENCEWATCH_DEMO": "1",
        "FENCEWATCH_POOL_SIZE": "0",
        "FENCEWATCH_LOG_LEVEL": "WARNING",
        "FENCEWATCH_STATIC_ROOT": str(FOLDER / "static"),
        **{variable: url(variable, database=TEMPLATE) for variable in ROLES},
    }
    django.setup()


_set_up_django()


@dataclass(frozen=True, kw_only=True)
class Cluster:
    superuser_url: str = field(repr=False)

    def connect(self, *, database: str = "postgres") -> psycopg.Connection[Any]:
        """A superuser's connection in autocommit."""
        return psycopg.connect(self.superuser_url, dbname=database, autocommit=True)


@dataclass(frozen=True, kw_only=True)
class Database:
    """One test's clone. ``environment`` is what a real process needs to work on it under every role."""

    name: str
    environment: dict[str, str] = field(repr=False)

    def url(self, variable: str) -> str:
        return url(variable, database=self.name)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A running server with roles and a migrated template database."""
    server = None
    if GIVEN.hostname:
        found = Cluster(superuser_url=GIVEN.geturl())
    else:
        # Nothing here outlives the run, so nothing waits for a disk.
        quick = {"fsync": "off", "full_page_writes": "off", "shared_buffers": "256MB"}
        server = servers.start_postgres(
            folder=FOLDER / "postgres", port=int(ADDRESS.rpartition(":")[2]), settings=quick
        )
        found = Cluster(superuser_url=server.url())
    try:
        _make_template(found)
        yield found
    finally:
        with contextlib.suppress(psycopg.OperationalError), found.connect() as connection:
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(TEMPLATE)))
        if server is not None:
            server.stop()
            servers.erase_postgres(folder=FOLDER / "postgres")


def _make_template(cluster: Cluster) -> None:
    from django.conf import settings
    from django.core.management import call_command
    from django.db import connections

    from workitems.management.commands.roles import script
    from workitems.tenancy import install_context_key

    with cluster.connect() as connection:
        connection.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE template0 ENCODING 'UTF8'").format(sql.Identifier(TEMPLATE))
        )
    with cluster.connect(database=TEMPLATE) as connection:
        # One iteration: a test opens many connections, and each would spend its time on deriving a random password's key.
        connection.execute(cast(LiteralString, script(passwords=PASSWORDS, iterations=1)))
    call_command("migrate", database="owner", verbosity=0, interactive=False)
    install_context_key(key=settings.CONTEXT_KEY)
    call_command("collectstatic", interactive=False, verbosity=0)
    connections.close_all()


@pytest.fixture
def database(cluster: Cluster) -> Iterator[Database]:
    """A database of this test alone; every alias of this process points at it until the test ends."""
    from django.db import connections

    name = f"fencewatch_{RUN}_{secrets.token_hex(4)}"
    with cluster.connect() as connection:
        _clone(connection, name)
    point_aliases_at(name)
    environment = {**os.environ, **{variable: url(variable, database=name) for variable in ROLES}}
    # For this process's browser only; see tests/chromium.py.
    environment.pop("DJANGO_ALLOW_ASYNC_UNSAFE", None)
    try:
        yield Database(name=name, environment=environment)
    finally:
        connections.close_all()
        point_aliases_at(TEMPLATE)
        with cluster.connect() as connection:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _clone(connection: psycopg.Connection[Any], name: str) -> None:
    made, source = sql.Identifier(name), sql.Identifier(TEMPLATE)
    # Without waiting for a disk, file_copy takes 20 ms where wal_log takes 80.
    connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy").format(made, source))
    # Rights on the database itself are not part of what a template hands on.
    rights = connection.execute(
        "SELECT CASE WHEN grantee <> 0 THEN pg_get_userbyid(grantee) END, privilege_type"
        " FROM pg_database, aclexplode(datacl) WHERE datname = %s",
        [TEMPLATE],
    ).fetchall()
    connection.execute(sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(made))
    for role, right in rights:
        to = sql.Identifier(role) if role else sql.SQL("PUBLIC")
        connection.execute(sql.SQL("GRANT {} ON DATABASE {} TO {}").format(sql.SQL(right), made, to))


def point_aliases_at(name: str) -> None:
    from django.db import connections

    connections.close_all()
    for alias, _, _ in ROLES.values():
        # One dictionary per alias, shared by the connections of all threads.
        connections.settings[alias]["NAME"] = name


@pytest.fixture
def superuser(cluster: Cluster, database: Database) -> Iterator[psycopg.Connection[Any]]:
    """For back-dating rows and for looking at what no role may see; autocommit."""
    with cluster.connect(database=database.name) as connection:
        yield connection


@pytest.fixture
def tenants(database: Database) -> tuple[str, str]:
    """Two tenants; tests give both the same operation ids."""
    from workitems.tenancy import add_tenant

    add_tenant(tenant_id="tenant-north", label="North")
    add_tenant(tenant_id="tenant-south", label="South")
    return "tenant-north", "tenant-south"


@pytest.fixture
def foreign(database: Database) -> Iterator[psycopg.Connection[Any]]:
    """A connection of the worker role without any of our settings: a worker that knows the article's statements only."""
    from django.db import connections

    settings = connections["worker"].settings_dict
    with psycopg.connect(
        host=settings["HOST"],
        port=settings["PORT"],
        dbname=settings["NAME"],
        user=settings["USER"],
        password=settings["PASSWORD"],
        autocommit=True,
    ) as connection:
        yield connection
