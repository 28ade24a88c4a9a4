import hashlib
import hmac
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from django.conf import settings
from django.db import connections, transaction
from django.db.utils import OperationalError, ProgrammingError
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import RequestFactory
from django.utils import timezone
from psycopg_pool import PoolTimeout

from dashboard import access
from dashboard.access import Busy, PersonRequest, TooSlow, mint, operator_context, operator_view
from tests.oversight.stage import BOTH, EVERYBODY, NOBODY, NORTH, SOUTH, add_people
from tests.protocol.stage import add_job_type, make
from workitems.errors import ReadOnly
from workitems.models import JobType, Membership, Tenant, WorkEvent, WorkItem
from workitems.states import State

SEEN_MODELS = (WorkItem, WorkEvent, Tenant, Membership)


@pytest.fixture
def work(tenants: tuple[str, str]) -> tuple[str, str]:
    """Two tenants, each with an unknown item under the same operation id."""
    add_people()
    add_job_type()
    for tenant_id in tenants:
        make(State.UNKNOWN, tenant_id)
    return tenants


def seen() -> tuple[int, ...]:
    """How many rows of each table the pages' connection sees now."""
    return tuple(model.objects.count() for model in SEEN_MODELS)


def north(superuser: Any) -> bytes:
    (digest,) = superuser.execute("SELECT tenant_digest FROM tenant WHERE tenant_id = 'tenant-north'").fetchone()
    return bytes(digest)


@contextmanager
def given(make_context: Callable[[int], str]) -> Iterator[None]:
    """A transaction with a context of the test's making; it gets the connection's pid."""
    with transaction.atomic(using="default"), connections["default"].cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (pid,) = cursor.fetchone()
        cursor.execute("SELECT set_config('fencewatch.context', %s, true)", [make_context(pid)])
        yield


def now() -> int:
    return int(timezone.now().timestamp())


def context(pid: int, **changed: Any) -> str:
    wanted: dict[str, Any] = {
        "key": settings.CONTEXT_KEY,
        "user_id": NORTH,
        "sees_all": True,
        "tenants": (),
        "expires_at": now() + 30,
        "backend_pid": pid,
    }
    return mint(**{**wanted, **changed})


def test_a_context_that_the_pages_sign_opens_what_it_names(work: tuple[str, str], superuser: Any) -> None:
    with given(lambda pid: context(pid)):
        assert seen() == (2, 6, 2, 1)
    with given(lambda pid: context(pid, sees_all=False, tenants=(north(superuser),))):
        assert seen() == (1, 3, 1, 1)


FORGED: dict[str, Callable[[int], str]] = {
    "signed with another key": lambda pid: context(pid, key=b"x" * 32),
    "signed with an empty key": lambda pid: context(pid, key=b""),
    "without a signature": lambda pid: context(pid).rpartition("|")[0],
    "with an empty signature": lambda pid: context(pid).rpartition("|")[0] + "|",
    "for another person under the old signature": lambda pid: context(pid).replace(f"1|{NORTH}|", f"1|{SOUTH}|"),
    "for everything under the signature of something": lambda pid: context(pid, sees_all=False).replace(
        "|some|", "|all|"
    ),
    "with a tenant slipped in": lambda pid: context(pid, sees_all=False).replace("|some||", f"|some|{'ab' * 32}|"),
    "of another version": lambda pid: "2" + context(pid)[1:],
    "expired": lambda pid: context(pid, expires_at=now() - 2),
    "with its expiry moved": lambda pid: _moved(context(pid, expires_at=now() - 2)),
    "of another connection": lambda pid: context(pid, backend_pid=pid + 1),
    "empty": lambda pid: "",
    "a bare bar": lambda pid: "||||||",
    "a quote": lambda pid: "1|1' OR true --|all|||0|",
    "huge": lambda pid: "1|" * 100_000,
    "a signature over the message of another purpose": lambda pid: (
        f"1|{NORTH}|all||{now() + 30}|{pid}|" + hmac.new(settings.CONTEXT_KEY or b"", b"", hashlib.sha256).hexdigest()
    ),
}


def _moved(signed: str) -> str:
    parts = signed.split("|")
    parts[4] = str(int(parts[4]) + 3_600)
    return "|".join(parts)


@pytest.mark.usefixtures("work")
def test_a_forged_expired_or_foreign_context_sees_nothing_and_breaks_nothing() -> None:
    for name, forge in FORGED.items():
        with given(forge):
            assert (name, seen()) == (name, (0, 0, 0, 0))


@pytest.mark.usefixtures("work")
def test_without_any_context_nothing_is_seen() -> None:
    assert seen() == (0, 0, 0, 0)


def test_a_context_copied_from_another_connection_sees_nothing(work: tuple[str, str], database: Any) -> None:
    with (
        psycopg.connect(database.url("DATABASE_URL")) as victim,
        psycopg.connect(database.url("DATABASE_URL")) as thief,
    ):
        stolen = context(victim.info.backend_pid)
        numbers = []
        for connection in (victim, thief):
            connection.execute("SELECT set_config('fencewatch.context', %s, true)", [stolen])
            numbers.append(connection.execute("SELECT count(*) FROM work_item").fetchone())
    assert numbers == [(2,), (0,)]


def test_a_session_cannot_read_another_ones_context_from_the_list_of_activity(
    work: tuple[str, str], superuser: Any
) -> None:
    with operator_context(NORTH):
        (queries,) = superuser.execute(
            "SELECT string_agg(query, ' ') FROM pg_stat_activity WHERE usename = 'fencewatch_web'"
        ).fetchone()
        assert WorkItem.objects.count() == 1
    assert "|some|" not in queries


@pytest.fixture(params=["persistent connection", "pool"])
def connection_kind(request: pytest.FixtureRequest, database: Any) -> Iterator[str]:
    """The pages' alias with one connection that requests share, kept open or lent by a pool."""
    alias = connections["default"]
    before = connections.settings["default"]
    changed = {**before, "OPTIONS": dict(before["OPTIONS"]), "CONN_MAX_AGE": 60}
    if request.param == "pool":
        changed |= {"CONN_MAX_AGE": 0, "CONN_HEALTH_CHECKS": False}
        changed["OPTIONS"]["pool"] = {"min_size": 1, "max_size": 1, "timeout": 5}
    alias.close()
    connections.settings["default"] = changed
    del connections["default"]
    try:
        yield request.param
    finally:
        connections["default"].close()
        if request.param == "pool":
            connections["default"].close_pool()
        connections.settings["default"] = before
        del connections["default"]


@pytest.mark.usefixtures("work")
def test_nothing_of_a_context_is_left_for_the_next_request(connection_kind: str) -> None:
    pids = set()
    for user_id, expected in ((NORTH, 1), (NOBODY, 0), (EVERYBODY, 2), (NOBODY, 0)):
        with operator_context(user_id) as person:
            assert WorkItem.objects.count() == expected
            assert len(person.tenants) == expected
            pids.add(_pid())
        connections["default"].close_if_unusable_or_obsolete()
        if connection_kind == "pool":
            connections["default"].close()
        assert seen() == (0, 0, 0, 0)
        pids.add(_pid())
        if connection_kind == "pool":
            connections["default"].close()
    assert len(pids) == 1, "the requests were to share one connection"


@pytest.mark.usefixtures("work")
def test_a_context_ends_with_its_transaction_when_the_view_fails() -> None:
    def fail() -> None:
        with operator_context(EVERYBODY):
            assert WorkItem.objects.count() == 2
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert seen() == (0, 0, 0, 0)


def _pid() -> int:
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def test_a_person_is_what_the_memberships_say(work: tuple[str, str]) -> None:
    found = {}
    for user_id in (NORTH, SOUTH, BOTH, EVERYBODY, NOBODY):
        with operator_context(user_id) as person:
            found[user_id] = (sorted(tenant.label for tenant in person.tenants), person.sees_all, sorted(person.roles))
            assert all(member.label for member in person.memberships)
    assert found == {
        NORTH: (["North"], False, ["operator"]),
        SOUTH: (["South"], False, ["viewer"]),
        BOTH: (["North", "South"], False, ["viewer"]),
        EVERYBODY: (["North", "South"], True, ["auditor"]),
        NOBODY: ([], False, []),
    }


def test_a_tenant_without_a_nickname_is_shown_by_its_digest(work: tuple[str, str], superuser: Any) -> None:
    superuser.execute("UPDATE tenant SET label = ''")
    with operator_context(NORTH) as person:
        (tenant,) = person.tenants
    assert tenant.label == tenant.short
    assert tenant.label.startswith("tn_")
    assert "north" not in repr(person)


def test_a_page_is_one_snapshot(work: tuple[str, str]) -> None:
    with operator_context(EVERYBODY):
        before = WorkItem.objects.count()
        make(State.UNKNOWN, work[0], "op-2")
        assert WorkItem.objects.count() == before
    with operator_context(EVERYBODY):
        assert WorkItem.objects.count() == before + 1


def test_contexts_are_never_nested(work: tuple[str, str]) -> None:
    with operator_context(NORTH), pytest.raises(RuntimeError), operator_context(EVERYBODY):
        pass


@pytest.mark.usefixtures("work")
def test_a_statement_that_runs_out_of_its_time_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "STATEMENT_MILLISECONDS", 50)
    with (
        pytest.raises(TooSlow, match="narrow the filter"),
        operator_context(NORTH),
        connections["default"].cursor() as cursor,
    ):
        cursor.execute("SELECT count(*) FROM generate_series(1, 1000000000000)")
    with operator_context(NORTH):
        assert WorkItem.objects.count() == 1


def test_when_every_connection_is_taken_the_answer_says_to_wait(
    work: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken() -> None:
        raise OperationalError from PoolTimeout("no connection")

    monkeypatch.setattr(connections["default"], "ensure_connection", taken)
    connections["default"].close()
    with pytest.raises(Busy, match="wait a few seconds"), operator_context(NORTH):
        pass


# ---------------------------------------------------------------------------------------------------------------------
# What the pages' role may never do
# ---------------------------------------------------------------------------------------------------------------------
REFUSED = [
    *(f"SELECT {column} FROM work_item" for column in ("tenant_id", "operation_id", "payload_ref", "*")),
    "SELECT tenant_id FROM tenant",
    "SELECT tenant_id FROM membership",
    "SELECT * FROM payload",
    "SELECT * FROM fencewatch.tenant_key",
    "SELECT * FROM fencewatch.context_key",
    "SELECT * FROM auth_user",
    "SELECT * FROM django_session",
    "INSERT INTO work_item (tenant_id, operation_id, payload_hash, payload_ref) VALUES ('tenant-north', 'x', '\\x01', 'r')",
    "UPDATE work_item SET state = 'queued'",
    "UPDATE work_item SET fence = fence + 1",
    "DELETE FROM work_item",
    "TRUNCATE work_item",
    "SELECT op_digest FROM work_item FOR UPDATE",
    "INSERT INTO work_event (item_id, tenant_digest, verb, state_after, fence, attempts) VALUES (1, '\\x01', 'x', 'x', 1, 1)",
    "UPDATE work_event SET verb = 'x'",
    "DELETE FROM work_event",
    "UPDATE membership SET role = 'operator'",
    "INSERT INTO membership (user_id, role) VALUES (14, 'operator')",
    "UPDATE tenant SET label = 'x'",
    "UPDATE job_type SET max_attempts = 9",
    "SELECT fencewatch.sweep(1)",
    "SELECT fencewatch.add_tenant('x', 'x', '\\x01', '\\x01')",
    "SELECT fencewatch.enqueue('tenant-north', 'x', '\\x01', 'r', 'legacy', NULL)",
    "CREATE TEMPORARY TABLE work_item_shadow (x int)",
    "CREATE TABLE public.mine (x int)",
    "SET ROLE fencewatch_owner",
    "ALTER TABLE work_item DISABLE TRIGGER ALL",
]


@pytest.mark.usefixtures("work")
def test_raw_identifiers_keys_and_every_write_are_refused_by_the_database() -> None:
    for statement in REFUSED:
        _refused(statement)


def _refused(statement: str) -> None:
    with (
        pytest.raises(ProgrammingError) as refusal,
        operator_context(EVERYBODY, writes=True),
        connections["default"].cursor() as cursor,
    ):
        cursor.execute(statement)
    assert isinstance(refusal.value.__cause__, psycopg.errors.InsufficientPrivilege), (statement, refusal.value)


@pytest.mark.usefixtures("work")
def test_every_way_to_write_through_a_model_is_refused_in_plain_words() -> None:
    with operator_context(EVERYBODY, writes=True):
        item = WorkItem.objects.get(state="unknown", tenant_digest=Tenant.objects.get(label="North").tenant_digest)
        ways: list[Callable[[], Any]] = [
            item.save,
            item.delete,
            lambda: WorkItem.objects.create(op_digest=b"x"),
            lambda: WorkItem.objects.get_or_create(op_digest=b"x"),
            lambda: WorkItem.objects.update_or_create(op_digest=b"x"),
            lambda: WorkItem.objects.bulk_create([item]),
            lambda: WorkItem.objects.bulk_update([item], ["state"]),
            lambda: WorkItem.objects.update(state="queued"),
            lambda: WorkItem.objects.all().delete(),
            lambda: WorkItem.objects.select_for_update(),
            lambda: WorkEvent.objects.update(verb="x"),
            lambda: Tenant.objects.update(label="x"),
            lambda: Membership.objects.create(user_id=NOBODY, role="operator"),
            lambda: JobType.objects.all().delete(),
        ]
        for way in ways:
            with pytest.raises(ReadOnly, match="Pages read"):
                way()


# ---------------------------------------------------------------------------------------------------------------------
# Views
# ---------------------------------------------------------------------------------------------------------------------
@operator_view
def names(request: PersonRequest) -> HttpResponse:
    """A page that names what is seen."""
    return HttpResponse(f"{request.person.username} {WorkItem.objects.count()}")


def ask(view: Callable[[HttpRequest], Any], *, user_id: int | None = NORTH, **headers: str) -> Any:
    request = RequestFactory().get("/work/?state=unknown", headers=headers)
    request.user = SimpleNamespace(is_authenticated=user_id is not None, pk=user_id, get_username=lambda: "kim")  # type: ignore[assignment]
    return view(request)


@pytest.mark.usefixtures("work")
def test_a_view_runs_inside_its_persons_context() -> None:
    assert ask(names).content == b"kim 1"
    assert ask(names, user_id=NOBODY).content == b"kim 0"
    assert ask(names, user_id=EVERYBODY).content == b"kim 2"


def test_a_page_sends_a_signed_out_person_to_sign_in_and_back() -> None:
    answer = ask(names, user_id=None)
    assert (answer.status_code, answer["Location"]) == (302, "/sign-in/?next=/work/%3Fstate%3Dunknown")


def test_a_region_answers_a_signed_out_person_401_with_the_way_to_sign_in() -> None:
    answer = ask(names, user_id=None, HX_Request="true", HX_Current_URL="http://testserver/work/?state=queued")
    assert (answer.status_code, answer["HX-Redirect"]) == (401, "/sign-in/?next=/work/%3Fstate%3Dqueued")
    assert b"<" not in answer.content


def test_the_way_back_never_leaves_this_host() -> None:
    for said in (
        "http://elsewhere.example/work/",
        "//elsewhere.example/",
        "http://testserver//elsewhere.example",
        "javascript:x",
    ):
        answer = ask(names, user_id=None, HX_Request="true", HX_Current_URL=said)
        assert answer["HX-Redirect"] == "/sign-in/?next=/work/%3Fstate%3Dunknown"


@pytest.mark.usefixtures("work")
def test_a_streaming_answer_is_not_built_inside_a_context() -> None:
    @operator_view
    def stream(request: PersonRequest) -> StreamingHttpResponse:
        return StreamingHttpResponse(str(row.pk) for row in WorkItem.objects.all())

    with pytest.raises(TypeError, match="inside the generator"):
        ask(stream)
