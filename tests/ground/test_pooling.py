"""
What stands between the pages and the database hands on nothing of one person's to the next: PgBouncer in transaction mode,
Django's own pool, persistent connections. Real gunicorn, real PgBouncer, interleaved requests of two tenants' people.
"""

import concurrent.futures
import os
import re
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from django.conf import settings

from dashboard import servers
from dashboard.servers.processes import await_answer
from tests.cluster import ADDRESS, FOLDER, PASSWORDS, Database
from tests.dashboard.stage import add_person, digest_of, signed_in
from tests.processes import Pages
from tests.protocol.stage import add_job_type, enqueue, make
from workitems.states import State

REQUESTS = 120
SERVER_CONNECTIONS = 2  # fewer than the requests at a time, so that each is used for people of both tenants
BEHIND = ("DATABASE_URL", "ACCOUNTS_DATABASE_URL")


@pytest.fixture
def pooler(database: Database) -> Iterator[str]:
    """PgBouncer in transaction mode before the test's cluster; its address, host and port."""
    program = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
    folder = FOLDER / f"pgbouncer-{database.name}"
    folder.mkdir()
    port = servers.free_port()
    host, _, server_port = ADDRESS.rpartition(":")
    users = folder / "users.txt"
    users.write_text("".join(f'"fencewatch_{name}" "{PASSWORDS[name]}"\n' for name in ("web", "accounts")))
    configuration = folder / "pgbouncer.ini"
    configuration.write_text(f"""
[databases]
* = host={host} port={server_port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {users}
pool_mode = transaction
default_pool_size = {SERVER_CONNECTIONS}
""")
    # It refuses to run as root.
    os_user = "nobody" if os.geteuid() == 0 else None
    for path in (folder, users, configuration):
        path.chmod(0o700 if path.is_dir() else 0o600)
        if os_user:
            shutil.chown(path, os_user)
    log = folder / "log"
    process = servers.spawn([program, configuration], log=log, os_user=os_user)
    try:
        await_answer(process, lambda: servers.port_is_taken(port), name="PgBouncer", log=log)
        yield f"127.0.0.1:{port}"
    finally:
        servers.end(process)


@pytest.fixture(params=["pgbouncer", "pool", "persistent"])
def through(request: pytest.FixtureRequest, database: Database) -> dict[str, str]:
    """What the environment says about connections."""
    if request.param == "pgbouncer":
        address = request.getfixturevalue("pooler")
        return {"FENCEWATCH_POOL_SIZE": "0"} | {
            variable: database.url(variable).replace(ADDRESS, address) for variable in BEHIND
        }
    return {"FENCEWATCH_POOL_SIZE": "2" if request.param == "pool" else "0"}


def read(url: str, cookie: str) -> str:
    asked = urllib.request.Request(url, headers={"Cookie": f"{settings.SESSION_COOKIE_NAME}={cookie}"})  # noqa: S310
    with urllib.request.urlopen(asked, timeout=30) as answer:  # noqa: S310  # loopback http
        return str(answer.read().decode())


def test_interleaved_requests_of_two_tenants_show_each_its_own(
    tenants: tuple[str, str], start_pages: Callable[..., Pages], through: dict[str, str], database: Database
) -> None:
    add_job_type()
    people = []
    for tenant_id, label, other in zip(tenants, ("North", "South"), ("South", "North"), strict=True):
        make(State.UNKNOWN, tenant_id)
        enqueue(tenant_id, f"only-{label}")
        person = signed_in(add_person(label.lower(), tenant_id))
        own, foreign = digest_of(tenant_id, f"only-{label}"), f"work/{digest_of(tenant_id, f'only-{label}')}/"
        people.append((label, other, person.cookies[settings.SESSION_COOKIE_NAME].value, own, foreign))
    pages = start_pages(**through)

    def look(number: int) -> tuple[str, str, str]:
        label, other, cookie, own, _ = people[number % 2]
        path = ("", "work/", f"work/{own}/")[number // 2 % 3]
        return label, other, read(f"{pages.url}/{path}", cookie)

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(look, range(REQUESTS)))
    assert len(answers) == REQUESTS
    for label, other, body in answers:
        assert re.search(rf"\b{label}\b", body)
        assert not re.search(rf"\b{other}\b", body)
    # The same answers do tell the tenants apart: the other one's page is absent, not empty.
    with pytest.raises(urllib.error.HTTPError, match="404"):
        read(f"{pages.url}/{people[1][4]}", people[0][2])
    assert pages.process.poll() is None
    assert "Traceback" not in Path(pages.log).read_text()

    # Whoever gets a used connection next finds nobody's context on it.
    address = urlsplit(through.get("DATABASE_URL", database.url("DATABASE_URL"))).netloc.rpartition("@")[2]
    for _ in range(2 * SERVER_CONNECTIONS):
        with psycopg.connect(database.url("DATABASE_URL").replace(ADDRESS, address), autocommit=True) as connection:
            context, rows = connection.execute(
                "SELECT current_setting('fencewatch.context', true), (SELECT count(*) FROM work_item)"
            ).fetchone() or (None, None)
            assert context in (None, "")
            assert rows == 0


def test_a_pooled_session_has_its_role_s_settings(pooler: str, database: Database) -> None:
    """The startup options of clients stay with the pooler, so that timeouts have to come from the role."""
    with psycopg.connect(database.url("DATABASE_URL").replace(ADDRESS, pooler), autocommit=True) as connection:
        found = {
            name: connection.execute("SELECT current_setting(%s)", [name]).fetchone()
            for name in (
                "statement_timeout",
                "lock_timeout",
                "idle_in_transaction_session_timeout",
                "default_transaction_isolation",
            )
        }
    assert found == {
        "statement_timeout": ("5s",),
        "lock_timeout": ("2s",),
        "idle_in_transaction_session_timeout": ("15s",),
        "default_transaction_isolation": ("read committed",),
    }


def test_a_pooler_does_hand_on_what_a_session_keeps(pooler: str, database: Database) -> None:
    """The control of the first test: a context that outlives its transaction would reach the next client."""
    url = database.url("DATABASE_URL").replace(ADDRESS, pooler)
    with psycopg.connect(url, autocommit=True) as one, psycopg.connect(url, autocommit=True) as two:
        one.execute("SELECT set_config('fencewatch.context', 'left behind', false)")
        seen = {two.execute("SELECT current_setting('fencewatch.context', true)").fetchone() for _ in range(3)}
    assert ("left behind",) in seen
