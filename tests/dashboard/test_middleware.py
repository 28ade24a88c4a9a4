from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth import get_user_model, login
from django.http import HttpRequest, HttpResponse
from django.test import Client, override_settings
from django.urls import path

from dashboard.access import PersonRequest, TooSlow, operator_view
from dashboard.middleware import POLL_HEADER, SEEN_AT, SIGNED_IN_AT, TOUCH_SECONDS

MINUTE, HOUR = 60, 3_600
REGION = {"HX-Request": "true"}
POLL = {**REGION, POLL_HEADER: "1"}


@operator_view
def page(request: PersonRequest) -> HttpResponse:
    """What a signed-in person asks for."""
    return HttpResponse("here")


@operator_view
def slow(request: PersonRequest) -> HttpResponse:
    """A read that ran out of its time."""
    raise TooSlow


def sign_in(request: HttpRequest) -> HttpResponse:
    """Signs the only user in."""
    login(request, get_user_model().objects.get())
    return HttpResponse("welcome")


def public(request: HttpRequest) -> HttpResponse:
    """Says how long it may be kept."""
    return HttpResponse("x", headers={"Cache-Control": "max-age=60"})


urlpatterns = [
    path("", page, name="overview"),
    path("slow/", slow),
    path("public/", public),
    path("sign-in/", sign_in, name="sign-in"),
    *(path(f"other/{name}/", public, name=name) for name in ("work", "find", "sign-out")),
]


@pytest.fixture
def client(database: Any) -> Iterator[Client]:
    """A browser whose person has just signed in."""
    get_user_model().objects.create_user("kim", password="correct horse battery")
    with override_settings(ROOT_URLCONF=__name__):
        browser = Client()
        assert browser.get("/sign-in/").status_code == 200
        yield browser


def back_date(client: Client, **seconds: float) -> dict[str, float]:
    session = client.session
    for name, by in seconds.items():
        session[{"seen": SEEN_AT, "signed_in": SIGNED_IN_AT}[name]] -= by
    session.save()
    return {name: session[name] for name in (SEEN_AT, SIGNED_IN_AT)}


def test_a_session_ends_after_fifteen_minutes_without_its_person(client: Client) -> None:
    back_date(client, seen=14 * MINUTE)
    assert client.get("/").content == b"here"
    back_date(client, seen=15 * MINUTE + 1)
    answer = client.get("/")
    assert (answer.status_code, answer["Location"]) == (302, "/sign-in/?next=/&ended=idle")
    assert client.get("/").status_code == 302


def test_a_session_ends_after_eight_hours_however_busy(client: Client) -> None:
    back_date(client, signed_in=8 * HOUR - MINUTE)
    assert client.get("/").status_code == 200
    back_date(client, signed_in=MINUTE + 1)
    answer = client.get("/")
    assert (answer.status_code, answer["Location"]) == (302, "/sign-in/?next=/&ended=too-long")


def test_a_poll_never_extends_a_session(client: Client) -> None:
    before = back_date(client, seen=10 * MINUTE)
    for _ in range(3):
        assert client.get("/", headers=POLL).status_code == 200
    assert client.session[SEEN_AT] == before[SEEN_AT]
    back_date(client, seen=5 * MINUTE + 1)
    assert client.get("/", headers=POLL).status_code == 401


def test_a_person_at_the_page_extends_it_without_a_write_for_every_request(client: Client) -> None:
    before = back_date(client, seen=TOUCH_SECONDS + 1)
    client.get("/", headers=REGION)
    touched = client.session[SEEN_AT]
    assert touched > before[SEEN_AT]
    client.get("/")
    assert client.session[SEEN_AT] == touched
    assert client.session[SIGNED_IN_AT] == before[SIGNED_IN_AT]


def test_a_poll_of_an_ended_session_gets_401_and_the_way_to_sign_in(client: Client) -> None:
    back_date(client, seen=HOUR)
    answer = client.get("/", headers={**POLL, "HX-Current-URL": "http://testserver/"})
    assert (answer.status_code, answer["HX-Redirect"]) == (401, "/sign-in/?next=/&ended=idle")


def test_a_session_that_began_without_its_stamps_gets_them(client: Client) -> None:
    session = client.session
    del session[SEEN_AT], session[SIGNED_IN_AT]
    session.save()
    assert client.get("/", headers=POLL).status_code == 200
    assert {SEEN_AT, SIGNED_IN_AT} <= set(client.session.keys())


def test_pages_are_kept_by_nobody_and_regions_never_taken_for_pages(client: Client) -> None:
    for url in ("/", "/slow/", "/nowhere/"):
        answer = client.get(url)
        assert answer["Cache-Control"] == "no-store"
        assert {"HX-Request", "Cookie"} <= {name.strip() for name in answer["Vary"].split(",")}
    assert client.get("/public/")["Cache-Control"] == "max-age=60"


@pytest.mark.parametrize("headers", [{}, REGION])
def test_a_slow_read_answers_503_with_the_next_step(client: Client, headers: dict[str, str]) -> None:
    answer = client.get("/slow/", headers=headers)
    assert answer.status_code == 503
    assert b"narrow the filter" in answer.content
    assert (b"<html" in answer.content) <= (not headers)
