"""Rotating a tenant's key while everything runs: old and new rows found, old links lead on, nothing lost, the old key's end."""

import threading
from io import StringIO
from typing import Any

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command
from django.db import connections
from django.urls import reverse

from dashboard.access import operator_context
from tests.dashboard.stage import add_person, digest_of, signed_in
from tests.protocol.stage import add_job_type, claim_one, enqueue, make, row
from workitems import protocol
from workitems.errors import UnknownTenant
from workitems.operations.rotation import redigest, retire_tenant_key, rotate_tenant_key, rows_left
from workitems.operations.search import search
from workitems.states import State


@pytest.fixture
def ada(tenants: tuple[str, str]) -> Any:
    add_job_type()
    return add_person("ada", tenants[0])


def rotate(tenant: str, **given: Any) -> int:
    rotate_tenant_key(tenant_id=tenant, reason="test")
    return sum(batch.changed for batch in redigest(tenant_id=tenant, reason="test", **given))


def link(digest: str) -> str:
    return reverse("item", args=[digest])


def test_old_and_new_rows_are_found_while_a_rotation_is_half_done(ada: Any, tenants: tuple[str, str]) -> None:
    for number in range(6):
        enqueue(tenants[0], f"before-{number}")
    rotate_tenant_key(tenant_id=tenants[0])
    batches = redigest(tenant_id=tenants[0], batch=3)
    next(batches)
    enqueue(tenants[0], "after")
    assert {row(tenants[0], f"before-{n}")["digest_key_version"] for n in range(6)} == {1, 2}
    client = signed_in(ada)
    for operation in (*(f"before-{number}" for number in range(6)), "after"):
        assert client.get(link(digest_of(tenants[0], operation))).status_code == 200
        with operator_context(ada.pk, writes=True):
            found = search(operation, key=settings.CONTEXT_KEY).digests
        assert [digest.hex() for digest in found] == [digest_of(tenants[0], operation)]
    for number in range(6):
        assert enqueue(tenants[0], f"before-{number}").outcome == "replay"
    assert sum(batch.changed for batch in batches) == 3
    assert not rows_left(tenant_id=tenants[0])


def test_an_old_link_leads_to_the_item_until_it_expires_and_for_nobody_else(
    ada: Any, tenants: tuple[str, str], superuser: Any
) -> None:
    enqueue(tenants[0])
    old = digest_of(tenants[0])
    assert rotate(tenants[0]) == 1
    new = digest_of(tenants[0])
    assert new != old
    stranger = add_person("stranger", tenants[1])
    assert signed_in(ada).get(link(old))["Location"] == link(new)
    assert signed_in(ada).post(reverse("find"), {"q": old})["Location"] == link(new)
    foreign, absent = (signed_in(stranger).get(link(digest)) for digest in (old, "0" * 64))
    assert (foreign.status_code, absent.status_code) == (404, 404)
    superuser.execute("UPDATE former_digest SET resolves_until = clock_timestamp() - interval '1 second'")
    assert signed_in(ada).get(link(old)).status_code == 404
    assert signed_in(ada).get(link(new)).status_code == 200


def test_a_link_from_two_keys_ago_leads_to_the_item(ada: Any, tenants: tuple[str, str]) -> None:
    enqueue(tenants[0])
    first = digest_of(tenants[0])
    rotate(tenants[0])
    second = digest_of(tenants[0])
    rotate(tenants[0])
    for old in (first, second):
        assert signed_in(ada).get(link(old))["Location"] == link(digest_of(tenants[0]))


@pytest.mark.parametrize("state", ["queued", "claimed", "succeeded", "failed_terminal", "unknown", "quarantined"])
def test_digesting_anew_changes_nothing_but_the_digest(
    state: str, ada: Any, tenants: tuple[str, str], superuser: Any
) -> None:
    make(State(state), tenants[0])
    if state == "claimed":  # a lease that ran out days ago
        superuser.execute("ALTER TABLE work_item DISABLE TRIGGER ALL")
        superuser.execute("UPDATE work_item SET lease_expires_at = lease_expires_at - interval '9 days'")
        for trigger in ("guard", "identify", "never_again", "record_changed", "record_enqueued"):
            superuser.execute(f"ALTER TABLE work_item ENABLE ALWAYS TRIGGER {trigger}")
    enqueue(tenants[1])
    before = [row(tenant) for tenant in tenants]
    events = superuser.execute("SELECT count(*) FROM work_event").fetchone()
    assert rotate(tenants[0]) == 1
    after = [row(tenant) for tenant in tenants]
    changed = {name for name in after[0] if after[0][name] != before[0][name]}
    assert changed == {"op_digest", "digest_key_version"}
    assert after[1] == before[1]
    assert superuser.execute("SELECT count(*) FROM work_event").fetchone() == events


def test_a_worker_goes_on_with_its_claim_while_its_item_is_digested_anew(ada: Any, tenants: tuple[str, str]) -> None:
    enqueue(tenants[0])
    claim = claim_one()
    protocol.begin(claim)
    rotate(tenants[0])
    protocol.heartbeat(claim, progress=1)
    protocol.complete(claim, outcome_code="done")
    assert row(tenants[0])["state"] == "succeeded"


def test_a_locked_row_is_passed_over_and_found_by_the_next_run(
    ada: Any, tenants: tuple[str, str], superuser: Any
) -> None:
    for number in range(3):
        enqueue(tenants[0], f"op-{number}")
    rotate_tenant_key(tenant_id=tenants[0])
    with superuser.transaction():
        superuser.execute("SELECT FROM work_item WHERE operation_id = 'op-1' FOR UPDATE")
        with pytest.raises(CommandError, match="run it again"):
            call_command("tenant", "redigest", tenants[0], "--reason", "test", stdout=StringIO())
    assert [row(tenants[0], f"op-{n}")["digest_key_version"] for n in range(3)] == [2, 1, 2]
    answer = retire_tenant_key(tenant_id=tenants[0], version=1)
    assert answer is not None
    assert (answer.retired, answer.rows_left) == (False, True)
    out = StringIO()
    call_command("tenant", "redigest", tenants[0], "--reason", "test", stdout=out)
    assert "1 rows digested anew" in out.getvalue()


def test_producers_and_a_rotation_at_once_lose_nothing(ada: Any, tenants: tuple[str, str], superuser: Any) -> None:
    failures: list[Exception] = []

    def produce(thread: int) -> None:
        try:
            for number in range(60):
                enqueue(tenants[0], f"{thread}-{number}")
        except Exception as error:  # noqa: BLE001 - told below
            failures.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=produce, args=[number]) for number in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        rotate(tenants[0], batch=7)
    for thread in threads:
        thread.join()
    rotate(tenants[0])
    assert failures == []
    assert not rows_left(tenant_id=tenants[0])
    wrong = superuser.execute(
        "SELECT count(*) FROM work_item w JOIN fencewatch.tenant_key k ON k.tenant_id = w.tenant_id AND k.version = w.digest_key_version"
        " WHERE w.op_digest <> fencewatch.item_digest(k.inner_pad, k.outer_pad, w.tenant_id, w.operation_id)"
    )
    assert wrong.fetchone() == (0,)
    assert superuser.execute("SELECT count(*), count(DISTINCT op_digest) FROM work_item").fetchone() == (180, 180)


def test_a_key_ends_only_when_no_row_and_no_tombstone_needs_it(
    ada: Any, tenants: tuple[str, str], superuser: Any
) -> None:
    enqueue(tenants[0])
    with pytest.raises(CommandError, match="newest key"):
        call_command("tenant", "retire-key", tenants[0], "1", "--reason", "test")
    rotate_tenant_key(tenant_id=tenants[0])
    with pytest.raises(CommandError, match="still carry this key"):
        call_command("tenant", "retire-key", tenants[0], "1", "--reason", "test")
    superuser.execute(
        "INSERT INTO tombstone (op_digest, tenant_digest, digest_key_version, item_id, job_type, payload_hash, state, fence, ended_at)"
        " SELECT sha256('gone'), tenant_digest, 1, -1, job_type, payload_hash, 'succeeded', 7, clock_timestamp() FROM work_item"
    )
    sum(batch.changed for batch in redigest(tenant_id=tenants[0]))
    with pytest.raises(CommandError, match="1 tombstones carry this key"):
        call_command("tenant", "retire-key", tenants[0], "1", "--reason", "test")
    superuser.execute("ALTER TABLE tombstone DISABLE TRIGGER ALL")
    superuser.execute("DELETE FROM tombstone")
    call_command("tenant", "retire-key", tenants[0], "1", "--reason", "leaked", stdout=StringIO())
    left = superuser.execute("SELECT version FROM fencewatch.tenant_key WHERE tenant_id = %s", [tenants[0]])
    assert left.fetchall() == [(2,)]
    entries = superuser.execute(
        "SELECT e.verb, e.outcome, e.outcome_reason, t.reason FROM audit_entry e LEFT JOIN audit_text t USING (entry_id)"
        " WHERE e.verb ~ 'key|redigest' ORDER BY e.entry_id"
    )
    assert entries.fetchall() == [
        ("retire_key", "refused", "newest", "test"),
        ("rotate_key", "applied", None, None),
        ("retire_key", "refused", "rows_left", "test"),
        ("redigest", "applied", None, None),
        ("retire_key", "refused", "tombstones_left", "test"),
        ("retire_key", "applied", None, "leaked"),
    ]
    assert signed_in(ada).get(link(digest_of(tenants[0]))).status_code == 200


def test_a_row_about_to_be_retired_takes_its_tombstone_along(
    ada: Any, tenants: tuple[str, str], superuser: Any
) -> None:
    make(State.SUCCEEDED, tenants[0])
    superuser.execute("ALTER TABLE work_item DISABLE TRIGGER ALL")
    superuser.execute("UPDATE work_item SET updated_at = updated_at - interval '9 days'")
    superuser.execute(
        "ALTER TABLE work_item ENABLE ALWAYS TRIGGER only_buried, ENABLE ALWAYS TRIGGER guard, ENABLE ALWAYS TRIGGER never_again"
    )

    def retire() -> tuple[int, int]:
        with connections["keeper"].cursor() as cursor:
            cursor.execute("SELECT buried, removed FROM fencewatch.retire(1, 10)")
            return cursor.fetchone()  # type: ignore[no-any-return]

    assert retire() == (1, 0)
    rotate(tenants[0])
    superuser.execute("UPDATE tombstone SET written_at = written_at - interval '2 hours'")
    assert retire() == (0, 1)
    assert enqueue(tenants[0]).outcome == "replay"
    assert superuser.execute("SELECT digest_key_version FROM tombstone").fetchall() == [(2,)]


@pytest.mark.parametrize("command", ["rotate-key", "redigest"])
def test_a_tenant_that_does_not_exist_is_named_as_such(command: str, database: Any) -> None:
    with pytest.raises(CommandError, match="No such tenant"):
        call_command("tenant", command, "nobody", "--reason", "test")
    with pytest.raises(UnknownTenant):
        rotate_tenant_key(tenant_id="nobody")


@pytest.mark.parametrize("reason", ["", " \t"])
def test_a_rotation_without_a_reason_is_refused(reason: str, tenants: tuple[str, str]) -> None:
    with pytest.raises(CommandError, match="reason is empty"):
        call_command("tenant", "rotate-key", tenants[0], "--reason", reason)


@pytest.mark.parametrize("alias", ["default", "accounts", "worker", "keeper"])
def test_no_role_at_run_time_can_rotate(alias: str, tenants: tuple[str, str]) -> None:
    with connections[alias].cursor() as cursor:
        cursor.execute(
            "SELECT bool_or(has_function_privilege(p.oid, 'EXECUTE')) FROM pg_proc p"
            " WHERE p.proname IN ('rotate_tenant_key', 'redigest', 'retire_tenant_key', 'item_digest')"
        )
        assert cursor.fetchone() == (False,)
