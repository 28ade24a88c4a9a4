import re
from collections.abc import Callable
from typing import Any
from urllib.request import urlopen

import pytest
from django.db import connections
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse, set_script_prefix

from dashboard import VERSION
from tests.cluster import Database
from tests.dashboard.stage import PASSWORD, add_person, digest_of, signed_in
from tests.oversight.stage import BOTH, EVERYBODY, add_people, fill, looking, nodes, plans
from tests.processes import Pages
from tests.protocol.stage import add_job_type, claim_one, enqueue, guard_off, make
from workitems import identifiers, protocol
from workitems.oversight.find import Wanted, find
from workitems.states import State

CANARY = "canary-7f3a-operation"
HOSTILE = "<script>alert(1)</script>\"'&{{ 1 }}"
TOKEN = re.compile(rb'name="csrfmiddlewaretoken" value="[^"]+"')
POLL = {"HX-Request": "true", "X-Fencewatch-Poll": "1"}


@pytest.fixture
def work(tenants: tuple[str, str]) -> tuple[str, str]:
    """An unknown item that began, under the same operation id in both tenants."""
    add_job_type()
    for tenant_id in tenants:
        enqueue(tenant_id, CANARY, payload_ref="canary-reference")
        claim = claim_one()
        protocol.begin(claim)
        protocol.park(claim, outcome_code="timeout")
    return tenants


@pytest.fixture
def north(work: tuple[str, str]) -> Client:
    """Somebody who may see one of the two tenants."""
    return signed_in(add_person("noor", work[0]))


def pages_of(tenant_id: str) -> list[str]:
    return [
        reverse("overview"),
        reverse("work"),
        reverse("work") + "?state=unknown&begun=yes&order=oldest",
        reverse("item", args=[digest_of(tenant_id, CANARY)]),
        reverse("find") + "?q=" + identifiers.show(bytes.fromhex(digest_of(tenant_id, CANARY))),
    ]


def test_every_page_asks_for_a_sign_in_first_and_leads_back(work: tuple[str, str]) -> None:
    for url in pages_of(work[0]):
        answer = Client().get(url)
        assert answer.status_code == 302
        assert answer["Location"].startswith(reverse("sign-in") + "?next=/")


def test_the_overview_counts_what_its_reader_may_see_and_links_to_the_list(north: Client) -> None:
    body = north.get(reverse("overview")).content.decode()
    assert "North" in body
    assert "South" not in body
    (count,) = re.findall(r'href="/work/\?state=unknown&amp;order=oldest".*?<strong>(.*?)</strong>', body, re.DOTALL)
    assert count == "1"
    assert "may have acted since" in body


def test_the_list_and_the_item_say_state_owner_claim_and_effect(work: tuple[str, str], north: Client) -> None:
    listed = north.get(reverse("work")).content.decode()
    assert re.search(r'<span class="badge s-unknown"><svg.*?</svg>Unknown</span>', listed)
    assert "1</span> item" in listed
    body = north.get(reverse("item", args=[digest_of(work[0], CANARY)])).content.decode()
    assert "on-call, with payments" in body
    assert "Duplicates are dropped as the provider defines it" in body
    assert "parked: outcome unknown" in body
    assert re.search(r'<time datetime="[^"]+\+00:00" title="[^"]+ UTC">\d\d:\d\d:\d\d UTC</time>', body)


def test_no_page_holds_a_raw_identifier(work: tuple[str, str], north: Client) -> None:
    for url in pages_of(work[0]):
        body = north.get(url, follow=True).content.decode()
        assert "op_" in body
        for raw in (CANARY, "canary-reference", "tenant-north", "tenant-south"):
            assert raw not in body, url


def test_a_foreign_item_and_one_that_never_was_get_the_same_answer(work: tuple[str, str], north: Client) -> None:
    foreign = north.get(reverse("item", args=[digest_of(work[1], CANARY)]))
    absent = north.get(reverse("item", args=["0" * 64]))
    assert (foreign.status_code, absent.status_code) == (404, 404)
    assert TOKEN.sub(b"", foreign.content) == TOKEN.sub(b"", absent.content)


def test_a_foreign_tenant_as_a_filter_finds_nothing(work: tuple[str, str], north: Client) -> None:
    with connections["owner"].cursor() as cursor:
        cursor.execute("SELECT encode(tenant_digest, 'hex') FROM tenant WHERE tenant_id = %s", [work[1]])
        (south,) = cursor.fetchone()
    body = north.get(reverse("work"), {"tenant": south}).content.decode()
    assert "Nothing matches" in body


def test_pages_refuse_to_be_written_to(work: tuple[str, str], north: Client) -> None:
    for url in (reverse("overview"), reverse("work"), reverse("item", args=[digest_of(work[0], CANARY)])):
        for method in (north.post, north.put, north.patch, north.delete):
            assert method(url).status_code == 405
    assert north.get(reverse("sign-out")).status_code == 405


def test_hostile_words_are_shown_as_words(tenants: tuple[str, str], superuser: Any) -> None:
    add_job_type(HOSTILE, owner=HOSTILE, producer_team=HOSTILE, system_owner=HOSTILE)
    enqueue(tenants[0], job_type=HOSTILE)
    protocol.park(claim_one(worker=HOSTILE, job_type=HOSTILE), outcome_code=HOSTILE)
    superuser.execute("UPDATE tenant SET label = %s WHERE tenant_id = %s", [HOSTILE, tenants[0]])
    client = signed_in(add_person(HOSTILE.replace('"', ""), *tenants))
    for url in (reverse("overview"), reverse("work"), reverse("item", args=[digest_of(tenants[0])])):
        body = client.get(url).content.decode()
        assert "<script>alert" not in body, url
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in body, url
        assert "{{ 1 }}" in body, url


@pytest.mark.parametrize(
    "query",
    [
        "state=nothing",
        "begun=perhaps",
        "tenant=short",
        "type=%00",
        "hours=5",
        "cursor=forged",
        "stalled=yes&state=queued",
    ],
)
def test_a_filter_that_is_not_understood_is_refused_and_never_widened(
    work: tuple[str, str], north: Client, query: str
) -> None:
    answer = north.get(reverse("work") + "?" + query)
    assert answer.status_code == 400
    body = answer.content.decode()
    assert "This list cannot be shown" in body
    assert "badge s-unknown" not in body


def test_a_chip_adds_a_state_keeps_the_filters_and_goes_to_the_first_page(work: tuple[str, str], north: Client) -> None:
    body = north.get(reverse("work"), {"state": "unknown", "begun": "yes"}).content.decode()
    hrefs = re.findall(r'class="chip s-(\w+)" href="([^"]*)"( aria-current="true")?', body)
    links = {key: (href.replace("&amp;", "&"), bool(chosen)) for key, href, chosen in hrefs}
    assert links["unknown"] == ("/work/?begun=yes", True)
    assert links["queued"] == ("/work/?state=unknown&state=queued&begun=yes", False)
    assert links["stalled"] == ("/work/?begun=yes&stalled=yes", False)


def test_newer_and_older_go_through_the_list_without_loss(tenants: tuple[str, str]) -> None:
    add_job_type()
    for number in range(120):
        enqueue(tenants[0], f"op-{number}")
    client = signed_in(add_person("noor", tenants[0]))
    url, seen, back = reverse("work"), [], ""
    while url:
        body = client.get(url).content.decode()
        seen += re.findall(r'href="/work/([0-9a-f]{64})/"', body)
        onward = re.search(r'rel="next" href="([^"]+)"', body)
        newer = re.search(r'rel="prev" href="([^"]+)"', body)
        back = newer[1].replace("&amp;", "&") if newer else ""
        url = onward[1].replace("&amp;", "&") if onward else ""
    assert len(seen) == len(set(seen)) == 120
    assert re.findall(r'href="/work/([0-9a-f]{64})/"', client.get(back).content.decode()) == seen[50:100]


def test_the_number_of_questions_does_not_grow_with_the_rows(tenants: tuple[str, str]) -> None:
    add_job_type()
    add_job_type("other.job", target="B")
    client = signed_in(add_person("noor", *tenants))
    counts: dict[str, set[int]] = {}
    for round_number in range(2):
        for number in range(1 + 15 * round_number):
            for job_type in ("test.job", "other.job"):
                make(State.UNKNOWN, tenants[number % 2], f"op-{round_number}-{number}-{job_type}", job_type=job_type)
        digest = digest_of(tenants[0], "op-0-0-test.job")
        for url in (reverse("overview"), reverse("work"), reverse("item", args=[digest])):
            with CaptureQueriesContext(connections["default"]) as queries:
                client.get(url)
            counts.setdefault(url, set()).add(len(queries))
    for url, different in counts.items():
        assert len(different) == 1, (url, different)
        assert max(different) <= 30, (url, different)


def test_a_poll_gets_the_region_alone_and_304_while_nothing_changed(work: tuple[str, str], north: Client) -> None:
    for url in pages_of(work[0])[:4]:
        page = north.get(url)
        poll = north.get(url, headers=POLL)
        assert poll.content.strip().startswith(b"<section id=")
        assert b"<html" not in poll.content
        assert "HX-Request" in poll["Vary"]
        assert poll["Fencewatch-Version"] == VERSION
        assert f'data-stamp="{poll["ETag"]}"' in poll.content.decode().replace("&quot;", '"')
        assert page["Cache-Control"] == "no-store"
    # the stamp steps with the clock: at the turn of a step one answer in between may differ
    answers = [north.get(url, headers=POLL | {"If-None-Match": poll["ETag"]}).status_code for _ in range(2)]
    poll = north.get(url, headers=POLL)
    answers.append(north.get(url, headers=POLL | {"If-None-Match": poll["ETag"]}).status_code)
    assert 304 in answers
    assert set(answers) <= {200, 304}


def test_an_expired_session_answers_a_poll_with_the_way_to_sign_in(work: tuple[str, str]) -> None:
    answer = Client().get(reverse("work"), headers=POLL)
    assert answer.status_code == 401
    assert answer["HX-Redirect"].startswith(reverse("sign-in"))
    assert b"<form" not in answer.content


@pytest.mark.parametrize("asked", ["{full}", " {full} ", "{FULL}"])
def test_a_full_digest_leads_to_its_item(work: tuple[str, str], north: Client, asked: str) -> None:
    full = digest_of(work[0], CANARY)
    answer = north.post(reverse("find"), {"q": asked.format(full=full, FULL=full.upper())})
    assert answer["Location"] == reverse("item", args=[full])


@pytest.mark.parametrize("length", [4, 9, 16])
def test_a_short_digest_lists_what_begins_so_and_opens_nothing(
    work: tuple[str, str], north: Client, length: int
) -> None:
    shown = identifiers.show(bytes.fromhex(digest_of(work[0], CANARY)))
    part = shown.removeprefix("op_").replace("-", "")[:length].lower()
    answer = north.post(reverse("find"), {"q": f" OP_{part} "}, follow=True)
    assert answer.status_code == 200
    assert shown in answer.content.decode()


def test_a_short_digest_never_finds_a_foreign_item(work: tuple[str, str], north: Client) -> None:
    foreign = identifiers.show(bytes.fromhex(digest_of(work[1], CANARY)))
    body = north.get(reverse("find"), {"q": foreign}).content.decode()
    assert "No item begins with" in body


@pytest.mark.parametrize(
    "asked", ["op_AB", "op_0189", "x" * 200, HOSTILE, "0" * 63, "0" * 64, "0" * 65, "PAY7", "é\u0301"]
)
def test_what_names_nothing_is_answered_with_what_to_paste_and_never_repeated(
    work: tuple[str, str], north: Client, asked: str
) -> None:
    answer = north.post(reverse("find"), {"q": asked})
    assert answer.status_code == 200
    body = answer.content.decode()
    assert "Nothing found" in body
    assert asked not in body


@pytest.mark.parametrize("asked", ["", "  ", "\x00", "x" * 1_001])
def test_what_can_be_no_identifier_is_refused_with_the_reason(north: Client, asked: str) -> None:
    answer = north.post(reverse("find"), {"q": asked})
    assert answer.status_code == 400
    assert "That is no digest and no operation id:" in answer.content.decode()


@pytest.mark.parametrize("asked", ["", "op_AB", CANARY, "x" * 200, "\x00"])
def test_an_address_never_searches_for_a_raw_id(work: tuple[str, str], north: Client, asked: str) -> None:
    answer = north.get(reverse("find"), {"q": asked})
    assert answer.status_code == 400
    body = answer.content.decode()
    assert "That is not a digest. Paste the name that begins with op_" in body
    if len(asked) > 5:
        assert asked not in body


def test_a_wrong_password_and_an_unknown_name_read_the_same(database: Database) -> None:
    add_person("noor")
    bodies = {
        TOKEN.sub(b"", Client().post(reverse("sign-in"), {"username": name, "password": "wrong"}).content).replace(
            name.encode(), b""
        )
        for name in ("noor", "nemo")
    }
    assert len(bodies) == 1
    assert b"do not match" in bodies.pop()


def test_signing_in_leads_back_but_never_to_another_host(database: Database) -> None:
    add_person("noor")
    given = {"username": "noor", "password": PASSWORD}
    back = Client().post(reverse("sign-in"), given | {"next": "/work/?state=unknown"})
    assert back["Location"] == "/work/?state=unknown"
    away = Client().post(reverse("sign-in"), given | {"next": "https://elsewhere.example/"})
    assert away["Location"] == reverse("overview")


def test_signing_out_ends_the_session_and_says_so(north: Client) -> None:
    answer = north.post(reverse("sign-out"), follow=True)
    assert "You are signed out." in answer.content.decode()
    assert north.get(reverse("overview")).status_code == 302


def test_somebody_without_a_membership_is_told_so_and_sees_nothing(work: tuple[str, str]) -> None:
    client = signed_in(add_person("nobody"))
    for url in (reverse("overview"), reverse("work")):
        body = client.get(url).content.decode()
        assert "Ask an administrator for a membership" in body
        assert "badge s-unknown" not in body


def test_a_form_without_its_token_changes_nothing_and_says_so(work: tuple[str, str]) -> None:
    strict = signed_in(add_person("noor", work[0]), enforce_csrf_checks=True)
    answer = strict.post(reverse("sign-out"))
    assert answer.status_code == 403
    assert "Nothing was done" in answer.content.decode()
    assert strict.get(reverse("overview")).status_code == 200


def test_below_a_sub_path_every_link_keeps_it(work: tuple[str, str]) -> None:
    client = signed_in(add_person("noor", work[0]))
    urls = pages_of(work[0])
    set_script_prefix("/ops/board/")  # a server does so for each request, the test client does not
    try:
        for url in urls:
            path, _, query = url.partition("?")
            answer = client.get(path, QUERY_STRING=query, SCRIPT_NAME="/ops/board")
            links = re.findall(r'(?:href|src|action|hx-get)="([^"]*)"', answer.content.decode())
            links = [link for link in links if not link.startswith("/static/")]  # a process knows one static address
            assert len(links) > 5
            assert [link for link in links if not link.startswith(("/ops/board/", "#"))] == []
    finally:
        set_script_prefix("/")


def test_below_a_sub_path_a_server_finds_its_own_style_sheets(start_pages: Callable[..., Pages]) -> None:
    server = start_pages(FENCEWATCH_SCRIPT_NAME="/ops/board")  # the proxy takes the prefix away
    with urlopen(f"{server.url}/sign-in/") as answer:  # noqa: S310  # loopback http
        links = re.findall(r'(?:href|src|action)="([^"]*)"', answer.read().decode())
    assert [link for link in links if not link.startswith(("/ops/board/", "#"))] == []
    sheet = next(link for link in links if link.endswith(".css"))
    with urlopen(server.url + sheet.removeprefix("/ops/board")) as answer:  # noqa: S310
        assert answer.status == 200


def test_a_page_that_breaks_asks_the_database_nothing_and_shows_no_detail(
    north: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*args: object) -> None:
        raise RuntimeError(CANARY)

    monkeypatch.setattr("workitems.oversight.figures.overview", breaks)
    north.raise_request_exception = False
    answer = north.get(reverse("overview"))
    assert answer.status_code == 500
    body = answer.content.decode()
    assert "This page broke" in body
    assert CANARY not in body


def test_a_stalled_and_a_lying_item_show_it_before_their_state(tenants: tuple[str, str], superuser: Any) -> None:
    add_job_type()
    for number in range(2):
        enqueue(tenants[0], f"op-{number}")
        claim_one()
    with guard_off(superuser):
        superuser.execute(
            "UPDATE work_item SET lease_expires_at = clock_timestamp() - interval '17 min' WHERE operation_id = 'op-0'"
        )
        superuser.execute(
            "UPDATE work_item SET claimed_at = clock_timestamp() - interval '9 min', progress_at = NULL,"
            " lease_expires_at = clock_timestamp() + interval '1 min' WHERE operation_id = 'op-1'"
        )
    client = signed_in(add_person("noor", tenants[0]))
    body = client.get(reverse("work"), {"stalled": "yes"}).content.decode()
    assert body.count('<span class="badge s-stalled">') == 1
    assert body.count('<span class="badge s-lying">') == 1
    assert "lease ran out <time" in body
    assert "17 min ago" in body
    assert "no progress for" in body


def test_a_short_digest_is_looked_up_by_the_index_on_digests(tenants: tuple[str, str], superuser: Any) -> None:
    add_people()
    add_job_type()
    fill(superuser, rows=20_000)
    for user_id in (EVERYBODY, BOTH):
        found: list[dict[str, Any]] = []
        with looking(user_id) as person, plans(found):
            assert len(find(person.scope, Wanted(short="op_ABCD")).rows) == 0
            assert find(person.scope, Wanted(short="op_A")).more
        read = {node.get("Index Name") for plan in found for node in nodes(plan)}
        assert {name for name in read if name and name.startswith("work_item")} == {"work_item_by_digest"}
