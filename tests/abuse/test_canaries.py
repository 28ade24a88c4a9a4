"""
Planted identifiers: real pages, a real worker, a broker that tells all it hears, and a server that logs every statement.

Nothing outside the columns that hold them may say a tenant's id, an operation id, a payload's reference or its content.
"""

import base64
import hashlib
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.cookiejar import CookieJar
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, build_opener

import psycopg
import pytest
from django.db import connections

from dashboard import servers
from tests.abuse.test_writes import signed_in_as
from tests.cluster import FOLDER, GIVEN, Cluster, Database
from tests.dashboard.stage import PASSWORD, add_person
from tests.processes import Pages, StartProcess, wait_until
from workitems import protocol
from workitems.identifiers import full, show
from workitems.jobs import JobType
from workitems.jobs.agreement import sync
from workitems.jobs.payloads import store
from workitems.jobs.registry import isolated
from workitems.tenancy import add_tenant

TENANT, OPERATION, REFERENCE, CONTENT = "canary-tenant", "canary-operation", "canary-reference", "canary-content"
CANARY = re.compile("canary-(tenant|operation|reference|content)")
# The columns that hold them, and no other.
RAW = {
    "work_item": {"tenant_id", "operation_id", "payload_ref"},
    "payload": {"tenant_id", "payload_ref", "body"},
    "tenant": {"tenant_id"},
    "membership": {"tenant_id"},
    "tenant_key": {"tenant_id"},
    "tombstone": {"tenant_id"},
}


def canaries(text: str) -> set[str]:
    """The lines that say one, in plain text or in hexadecimal."""
    hexadecimal = {word: word.encode().hex() for word in (TENANT, OPERATION, REFERENCE, CONTENT)}
    return {
        line[:300]
        for line in text.splitlines()
        if CANARY.search(line) or any(word in line for word in hexadecimal.values())
    }


class Overheard:
    """Every command that the broker hears, with its arguments, as MONITOR tells it."""

    def __init__(self, broker: servers.Valkey) -> None:
        self._socket = socket.create_connection(("127.0.0.1", broker.port))
        self._socket.sendall(f"AUTH {broker.password}\r\nMONITOR\r\n".encode())
        self._heard = bytearray()
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()

    def _listen(self) -> None:
        while part := self._socket.recv(65_536):
            self._heard += part

    def text(self) -> str:
        return bytes(self._heard).decode(errors="replace").replace('\\"', '"')

    def __enter__(self) -> "Overheard":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._listener.join()
        self._socket.close()


def decoded(heard: str) -> list[str]:
    """The bodies of messages, which travel in base64."""
    return [base64.b64decode(body).decode() for body in re.findall(r'"body": "([A-Za-z0-9+/=]+)"', heard)]


@contextmanager
def watched(cluster: Cluster, database: Database) -> Iterator[set[str]]:
    """What every session of our roles shows in pg_stat_activity, looked at a few hundred times a second."""
    seen: set[str] = set()
    over = threading.Event()

    def watch() -> None:
        with cluster.connect() as connection:
            while not over.wait(0.003):
                shown = connection.execute(
                    "SELECT query || application_name FROM pg_stat_activity WHERE datname = %s AND usename LIKE 'fencewatch\\_%%'",
                    [database.name],
                )
                seen.update(query for (query,) in shown)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        over.set()
        watcher.join()


@pytest.fixture
def server_log(superuser: Any, database: Database) -> Callable[[], str]:
    """Every statement of our roles in this database is logged from here on; what the log says of them up to now."""
    if GIVEN.hostname:
        pytest.skip("The server's log is somewhere else.")
    log = FOLDER / "postgres" / "postgres.log"
    start = log.stat().st_size
    superuser.execute(f'ALTER DATABASE "{database.name}" SET log_min_duration_statement = 0')
    connections.close_all()

    def read() -> str:
        # One entry may have several lines; each begins with log_line_prefix.
        entries = re.split(r"(?m)^(?=\d{4}-\d\d-\d\d )", log.read_bytes()[start:].decode(errors="replace"))
        return "".join(entry.replace("\n", " ") + "\n" for entry in entries if f" {database.name} " in entry[:120])

    return read


def rows(superuser: Any) -> str:
    """Every row of every table, without the columns that hold the identifiers."""
    tables = superuser.execute(
        "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname IN ('public', 'fencewatch') AND c.relkind = 'r'"
    ).fetchall()
    found = []
    for schema, table in tables:
        for (row,) in superuser.execute(f'SELECT to_jsonb(t) FROM {schema}."{table}" t').fetchall():
            kept = {name: value for name, value in row.items() if name not in RAW.get(table, set())}
            found.append(json.dumps([table, kept]))
    return "\n".join(found)


class Browser:
    """Asks for pages with a session, and keeps every answer: status line, headers, body, and where it led."""

    def __init__(self, pages: Pages) -> None:
        self.url = pages.url
        self.jar = CookieJar()
        self.opener = build_opener(HTTPCookieProcessor(self.jar))
        self.answers: list[str] = []

    def ask(self, path: str, **form: str) -> str:
        body = None
        if form:
            token = next(cookie.value or "" for cookie in self.jar if "csrf" in cookie.name)
            body = urlencode({"csrfmiddlewaretoken": token, **form}).encode()
        try:
            answer = self.opener.open(self.url + path, body, timeout=20)
        except HTTPError as error:
            answer = error
        text = f"{answer.geturl()}\n{answer.headers}\n{answer.read().decode()}"
        if OPERATION not in path:  # what a person typed into an address comes back to that person in its links
            self.answers.append(text)
        return text


@pytest.mark.timeout(240)
def test_a_planted_identifier_is_in_its_columns_and_nowhere_else(
    cluster: Cluster,
    database: Database,
    superuser: Any,
    server_log: Callable[[], str],
    broker: servers.Valkey,
    start_celery: StartProcess,
    start_pages: Callable[..., Pages],
) -> None:
    with isolated():
        from tests.abuse import jobs
    types = {job.name: job for job in (jobs.works, jobs.breaks, jobs.warns)}
    with watched(cluster, database) as activity, Overheard(broker) as heard:
        add_tenant(tenant_id=TENANT, label="Canary Islands")
        sync(types)
        person = add_person("ada", TENANT)
        good = json.dumps({"version": 1, "amount": 250}).encode()
        for job in types.values():
            _produce(f"{OPERATION}-{job.name}", good, job)
        bad = json.dumps({"version": 1, "amount": CONTENT, CONTENT: 1}).encode()
        _produce(f"{OPERATION}-bad", bad, types["canary.works"])
        _, worker_log = start_celery("worker", "--pool=solo", FENCEWATCH_JOB_MODULES="tests.abuse.jobs")
        _, beat_log = start_celery("beat", FENCEWATCH_WAKE_EVERY_SECONDS="1")
        wait_until(
            lambda: not superuser.execute("SELECT 1 FROM work_item WHERE state IN ('queued', 'claimed')").fetchone(),
            what=f"every item ended (see {worker_log})",
        )
        wait_until(lambda: "fencewatch.wake" in heard.text(), what="beat woke the worker")
        pages = start_pages(FENCEWATCH_LOG_LEVEL="INFO")
        browser = Browser(pages)
        browser.ask("/sign-in/")
        browser.ask("/sign-in/", username="ada", password=PASSWORD)
        digests = [bytes(digest) for (digest,) in superuser.execute("SELECT op_digest FROM work_item").fetchall()]
        browser.ask("/")
        browser.ask("/work/")
        for digest in digests:
            assert show(digest) in browser.ask(f"/work/{full(digest)}/")
        assert "canary.breaks" in browser.ask("/work/find/", q=f"{OPERATION}-canary.breaks")
        browser.ask("/work/find/", q=f"{OPERATION}-of-nobody")
        for typed in (f"/work/{OPERATION}/", f"/{OPERATION}", f"/work/find/?q={OPERATION}", f"/work/?{OPERATION}=1"):
            browser.ask(typed)
    _refused_statements(database)  # their own text stands in pg_stat_activity, as it does for whoever writes literals

    places = {
        "the pages' log": pages.log.read_text(),
        "the worker's log": worker_log.read_text(),
        "beat's log": beat_log.read_text(),
        "messages": "\n".join([heard.text(), *decoded(heard.text())]),
        "activity": "\n".join(activity),
        "the server's log": server_log(),
        "pages": "\n".join(browser.answers),
        "other columns": rows(superuser),
    }
    assert {place: canaries(text) for place, text in places.items()} == {place: set() for place in places}

    # The control: each place did hear of this work, and would have been read.
    (breaks,) = [digest for digest in digests if "canary.breaks" in browser.ask(f"/work/{full(digest)}/")]
    assert "/work/" + full(breaks) in places["the pages' log"]
    assert "RuntimeError" in places["the worker's log"]
    assert "is starting" in places["beat's log"]
    assert '"task": "fencewatch.wake"' in places["messages"]
    assert '"callbacks": null' in places["messages"]  # a body, decoded
    assert any("FROM work_item" in query or "work_item" in query for query in activity)
    assert "duration: " in places["the server's log"]
    assert "violates check constraint" in places["the server's log"]
    assert "Canary Islands" in places["pages"]
    assert breaks.hex() in places["other columns"]
    assert superuser.execute(
        "SELECT count(*) FROM audit_entry WHERE verb = 'search' AND actor = %s", [person.pk]
    ).fetchone() == (2,)


def _produce(operation_id: str, body: bytes, job: JobType) -> None:
    reference = f"{REFERENCE} of {job.name}"
    store(tenant_id=TENANT, payload_ref=reference + operation_id, body=body)
    protocol.enqueue(
        tenant_id=TENANT,
        operation_id=operation_id,
        payload_hash=hashlib.sha256(body).digest(),
        payload_ref=reference + operation_id,
        job_type=job.name,
    )


def _refused_statements(database: Database) -> None:
    """Statements of other people's programs that the server refuses, whose row or text it would quote in its log."""
    with signed_in_as("worker", database) as session:
        for statement in (
            f"INSERT INTO work_item (tenant_id, operation_id, payload_hash, payload_ref) VALUES ('{TENANT}', '{OPERATION}', '', 'r')",
            f"INSERT INTO work_item (tenant_id, operation_id, payload_hash, payload_ref) VALUES ('{TENANT}', '{OPERATION}-bad', 'x', 'r')",
            f"SELECT * FROM fencewatch.enqueue('{TENANT}', '{OPERATION}', ''::bytea, '{REFERENCE}', 'canary.works')",
            f"SELECT * FROM fencewatch.enqueue('{TENANT}-2', '{OPERATION}', 'x'::bytea, '{REFERENCE}', 'canary.works')",
            f"UPDATE work_item SET operation_id = '{OPERATION}-other'",
        ):
            with pytest.raises(psycopg.Error):
                session.execute(statement.encode())


def test_the_server_would_have_quoted_the_row_for_a_role_without_our_settings(
    server_log: Callable[[], str], superuser: Any
) -> None:
    """The control of the server's log: a superuser's failing statement is quoted whole."""
    with pytest.raises(psycopg.Error):
        superuser.execute(f"INSERT INTO tenant (tenant_id, tenant_digest, label) VALUES ('{TENANT}', '', '{TENANT}')")
    wait_until(lambda: len(canaries(server_log())) >= 2, what="the detail and the statement were logged")
