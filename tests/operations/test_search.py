"""Search by a raw id: finds what the person may see, never tells of anything else, is entered, limited, and leaves no raw id."""

import threading
import unicodedata
from typing import Any

import pytest
from django.conf import settings
from django.db import connection, connections
from django.urls import reverse

from dashboard.access import operator_context
from tests.dashboard.stage import add_person, signed_in
from tests.protocol.stage import add_job_type, enqueue
from workitems.identifiers import full, item_digest, show
from workitems.operations.search import MOST, Searched, mask, search
from workitems.tenancy import add_tenant, take_right

RAW = "invoice-4711/jane.doe"


@pytest.fixture
def ada(tenants: tuple[str, str]) -> Any:
    return add_person("ada", tenants[0])


@pytest.fixture
def digests(tenants: tuple[str, str]) -> tuple[bytes, bytes]:
    add_job_type()
    north, south = (enqueue(tenant, RAW).op_digest for tenant in tenants)
    return north, south


def look(person: Any, text: str = RAW) -> Searched:
    with operator_context(person.pk, writes=True):
        return search(text, key=settings.CONTEXT_KEY)


def entries(superuser: Any) -> list[tuple[Any, ...]]:
    found = superuser.execute(
        "SELECT e.actor, e.outcome, e.outcome_reason, e.op_digest FROM audit_entry e WHERE e.verb = 'search'"
        " ORDER BY e.entry_id"
    )
    return list(found.fetchall())


def test_a_raw_id_finds_the_item_of_ones_own_tenant_only(
    ada: Any, digests: tuple[bytes, bytes], superuser: Any
) -> None:
    answer = look(ada)
    assert (answer.outcome, answer.digests, answer.more) == ("applied", (digests[0],), False)
    assert entries(superuser) == [(ada.pk, "applied", None, digests[0])]


def test_what_belongs_to_others_and_what_never_was_are_one_answer(
    ada: Any, digests: tuple[bytes, bytes], tenants: tuple[str, str], superuser: Any
) -> None:
    enqueue(tenants[1], "only-south")
    assert look(ada, "only-south") == look(ada, "never-was")
    assert [entry[1:] for entry in entries(superuser)] == [("applied", "nothing_found", None)] * 2


def test_whoever_sees_every_tenant_gets_the_item_of_each(
    tenants: tuple[str, str], digests: tuple[bytes, bytes], superuser: Any
) -> None:
    answer = look(add_person("sam", None))
    assert answer.digests == tuple(sorted(digests))
    assert {entry[3] for entry in entries(superuser)} == set(digests)  # each tenant's auditors read of it


@pytest.mark.parametrize("asked", [f"  {RAW}\t", RAW])
def test_spaces_around_what_was_pasted_do_not_matter(ada: Any, digests: tuple[bytes, bytes], asked: str) -> None:
    assert look(ada, asked).digests == (digests[0],)


@pytest.mark.parametrize(("stored", "asked"), [("NFC", "NFD"), ("NFD", "NFC"), ("NFC", "NFC")])
def test_an_id_is_found_in_either_normal_form(ada: Any, tenants: tuple[str, str], stored: str, asked: str) -> None:
    add_job_type()
    digest = enqueue(tenants[0], unicodedata.normalize(stored, "café-7")).op_digest  # type: ignore[arg-type]
    assert look(ada, unicodedata.normalize(asked, "café-7")).digests == (digest,)  # type: ignore[arg-type]


@pytest.mark.parametrize("raw", ["x" * 1_000, "🎉" * 600, "'; --", "a|b,c", "=HYPERLINK()", "\\x41"])
def test_every_id_that_can_be_stored_can_be_found(ada: Any, tenants: tuple[str, str], raw: str) -> None:
    add_job_type()
    digest = enqueue(tenants[0], raw).op_digest
    assert look(ada, raw).digests == (digest,)


def test_a_thousand_guesses_find_thirty_answers_and_leave_one_refusal_a_minute(
    ada: Any, digests: tuple[bytes, bytes], superuser: Any
) -> None:
    for guess in range(30):
        assert look(ada, f"guess-{guess}").outcome == "applied"
    for _ in range(1_000 - 30):
        refused = look(ada)
        assert (refused.outcome, refused.because, refused.digests) == ("refused", "too_many", ())
    assert [entry[1] for entry in entries(superuser)].count("applied") == 30
    assert [entry[1] for entry in entries(superuser)].count("refused") == 1
    with connections["owner"].cursor() as cursor:  # another person is not held up
        cursor.execute("SELECT 1")
    assert look(add_person("eve", "tenant-north")).digests == (digests[0],)
    superuser.execute("SET session_replication_role = replica")
    superuser.execute("ALTER TABLE audit_entry DISABLE TRIGGER USER")
    superuser.execute("UPDATE audit_entry SET at = at - interval '1 minute'")
    assert look(ada).digests == (digests[0],)


def test_searches_of_one_person_at_once_do_not_pass_the_limit(
    ada: Any, digests: tuple[bytes, bytes], superuser: Any
) -> None:
    for guess in range(28):
        look(ada, f"guess-{guess}")
    answers: list[str] = []

    def try_some() -> None:
        try:
            answers.extend(look(ada).outcome for _ in range(6))
        finally:
            connection.close()

    threads = [threading.Thread(target=try_some) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 36
    assert answers.count("applied") <= 2
    applied = superuser.execute("SELECT count(*) FROM audit_entry WHERE verb = 'search' AND outcome = 'applied'")
    assert applied.fetchone()[0] <= 30


def test_a_role_without_the_right_finds_nothing_and_is_entered(
    ada: Any, digests: tuple[bytes, bytes], superuser: Any
) -> None:
    for role in ("viewer", "operator", "approver", "auditor"):
        take_right(role=role, verb="search", reason="test")
    answer = look(ada)
    assert (answer.outcome, answer.because) == ("refused", "not_permitted")
    assert entries(superuser) == [(ada.pk, "refused", "not_permitted", None)]


def test_without_a_context_nothing_is_found(database: Any, digests: tuple[bytes, bytes]) -> None:
    answer = search(RAW, key=settings.CONTEXT_KEY)
    assert (answer.outcome, answer.because) == ("refused", "not_permitted")


@pytest.mark.parametrize("masked", [[], [b""] * 5, None])
def test_what_no_page_sends_is_refused(ada: Any, masked: Any) -> None:
    with operator_context(ada.pk, writes=True), connection.cursor() as cursor:
        cursor.execute("SELECT outcome, because FROM fencewatch.search(%s::bytea[], %s)", [masked, b"\x00" * 16])
        assert cursor.fetchone() == ("refused", "not_understood")


def test_bytes_that_are_no_text_find_nothing_and_raise_nothing(ada: Any, digests: tuple[bytes, bytes]) -> None:
    with operator_context(ada.pk, writes=True), connection.cursor() as cursor:
        for junk in (b"\xff" * 8, b"", b"\x00"):
            masked = bytes(
                a ^ b
                for a, b in zip(
                    junk, mask("\x00" * 8, key=settings.CONTEXT_KEY, nonce=b"n" * 16, place=1), strict=False
                )
            )
            cursor.execute("SELECT outcome, hits FROM fencewatch.search(%s::bytea[], %s)", [[masked], b"n" * 16])
            assert cursor.fetchone() == ("applied", [])


def test_the_web_role_can_neither_unmask_nor_hash(ada: Any, digests: tuple[bytes, bytes]) -> None:
    for call in (
        "fencewatch.unmask('\\x00', '\\x00', 1)",
        "fencewatch.digests_of(ARRAY['\\x00'::bytea], '\\x00', '{}')",
        "fencewatch.entered_in_a_minute(1, 'search', 'applied')",
    ):
        with operator_context(ada.pk, writes=True), connection.cursor() as cursor:
            cursor.execute(
                "SELECT has_function_privilege(p.oid, 'EXECUTE') FROM pg_proc p WHERE p.proname = %s",
                [call.split(".")[1].split("(")[0]],
            )
            assert cursor.fetchone() == (False,)


def test_no_raw_id_stands_in_what_the_server_shows_of_a_search(
    ada: Any, digests: tuple[bytes, bytes], superuser: Any
) -> None:
    with operator_context(ada.pk, writes=True), connection.cursor() as cursor:
        search(RAW, key=settings.CONTEXT_KEY)
        cursor.execute("SELECT pg_backend_pid()")
        (pid,) = cursor.fetchone() or (0,)
        sent = [query["sql"] for query in connection.queries_log]
        shown = superuser.execute("SELECT query FROM pg_stat_activity WHERE pid = %s", [pid]).fetchone()
        assert RAW not in str(shown)
        assert not any(RAW in sql or RAW.encode().hex() in sql for sql in sent)
    two = [mask(RAW, key=settings.CONTEXT_KEY, nonce=nonce, place=1) for nonce in (b"a" * 16, b"b" * 16)]
    assert two[0] != two[1]
    assert RAW.encode() not in two


def test_work_that_retention_removed_says_how_it_ended(
    ada: Any, digests: tuple[bytes, bytes], tenants: tuple[str, str], superuser: Any
) -> None:
    superuser.execute(
        "INSERT INTO tombstone (op_digest, tenant_digest, digest_key_version, item_id, job_type, payload_hash, state, fence, ended_at)"
        " SELECT op_digest, tenant_digest, 1, item_id, job_type, payload_hash, 'succeeded', 7, clock_timestamp() FROM work_item"
    )
    superuser.execute("ALTER TABLE work_item DISABLE TRIGGER ALL")
    superuser.execute("DELETE FROM work_item")
    answer = look(ada)
    assert (answer.outcome, answer.digests, answer.ended_state) == ("applied", (), "succeeded")
    assert answer.ended_at is not None
    body = signed_in(ada).post(reverse("find"), {"q": RAW}).content.decode()
    assert "This work is over and was removed" in body


# ---------------------------------------------------------------------------------------------------------------
# The page
# ---------------------------------------------------------------------------------------------------------------
def test_the_box_takes_a_raw_id_and_leads_to_the_digest(ada: Any, digests: tuple[bytes, bytes], superuser: Any) -> None:
    answer = signed_in(ada).post(reverse("find"), {"q": RAW})
    assert answer.status_code == 302
    assert answer["Location"] == reverse("item", args=[full(digests[0])])
    kept = superuser.execute("SELECT request_id, software_version FROM audit_entry WHERE verb = 'search'").fetchone()
    assert all(kept), "the entry names neither the request nor the software"


@pytest.mark.parametrize("raw", ["ACME", "op_abcd", "PAYOUT7", "ab" * 32])
def test_a_raw_id_that_looks_like_a_digest_is_found_and_never_stands_in_an_address(
    ada: Any, tenants: tuple[str, str], raw: str
) -> None:
    add_job_type()
    digest = enqueue(tenants[0], raw).op_digest
    answer = signed_in(ada).post(reverse("find"), {"q": raw})
    assert answer["Location"] == reverse("item", args=[full(digest)])
    unknown = signed_in(ada).post(reverse("find"), {"q": raw[::-1] if raw != "ab" * 32 else "ba" * 32})
    assert unknown.status_code == 200
    assert "Location" not in unknown


def test_more_than_a_page_of_tenants_is_cut_and_said(database: Any, superuser: Any) -> None:
    add_job_type()
    for number in range(MOST + 2):
        add_tenant(tenant_id=f"tenant-{number}", label=f"T{number}")
        enqueue(f"tenant-{number}", RAW)
    sam = add_person("sam", None)
    body = signed_in(sam).post(reverse("find"), {"q": RAW}).content.decode()
    assert f"{MOST}+ items by what you pasted" in body
    assert RAW not in body


def test_haste_is_answered_with_when_to_go_on(ada: Any, digests: tuple[bytes, bytes]) -> None:
    for guess in range(30):
        look(ada, f"guess-{guess}")
    answer = signed_in(ada).post(reverse("find"), {"q": RAW})
    assert answer.status_code == 429
    assert "thirty times within a minute" in answer.content.decode()


def test_digests_that_begin_alike_are_listed_and_a_short_form_opens_nothing(
    ada: Any, digests: tuple[bytes, bytes], tenants: tuple[str, str], superuser: Any
) -> None:
    enqueue(tenants[0], "other")
    superuser.execute("ALTER TABLE work_item DISABLE TRIGGER ALL")
    superuser.execute(
        "UPDATE work_item SET op_digest = substr(%s::bytea, 1, 10) || substr(op_digest, 11) WHERE operation_id = 'other'",
        [digests[0]],
    )
    twin = superuser.execute("SELECT op_digest FROM work_item WHERE operation_id = 'other'").fetchone()[0]
    assert show(bytes(twin)) == show(digests[0])
    assert bytes(twin) != digests[0]
    answer = signed_in(ada).post(reverse("find"), {"q": show(digests[0])}, follow=True)
    body = answer.content.decode()
    assert "2 items begin with" in body
    for digest in (bytes(twin), digests[0]):
        assert reverse("item", args=[full(digest)]) in body
    assert signed_in(ada).get(f"/work/{show(digests[0])}/").status_code == 404


def test_the_database_hashes_as_python_does(tenants: tuple[str, str], superuser: Any) -> None:
    inner = superuser.execute(
        "SELECT inner_pad FROM fencewatch.tenant_key WHERE tenant_id = %s", [tenants[0]]
    ).fetchone()[0]
    key = bytes(byte ^ 0x36 for byte in inner[:32])
    add_job_type()
    assert enqueue(tenants[0], RAW).op_digest == item_digest(key, tenant_id=tenants[0], operation_id=RAW)
