"""The pages and the workers as real programs, as the other rooms' tests start them."""

import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from dashboard import servers
from tests.cluster import PASSWORDS, Database
from tests.processes import Pages, StartProcess, wait_until


def fetch(url: str, **headers: str) -> tuple[int, Any, bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:  # noqa: S310
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as answer:
        return answer.code, answer.headers, answer.read()


def test_gunicorn_serves_a_page_with_every_security_header(pages: Pages) -> None:
    status, headers, body = fetch(pages.url + "/sign-in/")
    assert status == 200, body
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'")
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Referrer-Policy"] == "same-origin"
    assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert headers["Cache-Control"]


def test_an_unknown_host_is_refused(pages: Pages) -> None:
    assert fetch(pages.url + "/sign-in/", Host="evil.example")[0] == 400


def test_a_log_line_is_json_and_has_no_query_string(start_pages: Callable[..., Pages]) -> None:
    pages = start_pages(FENCEWATCH_LOG_LEVEL="INFO")
    fetch(pages.url + "/sign-in/?operation=canary-4711")
    wait_until(lambda: b"request_finished" in pages.log.read_bytes(), what="the request was logged")
    lines = [json.loads(line) for line in pages.log.read_text().splitlines()]
    assert all("event" in line for line in lines)
    assert "canary-4711" not in pages.log.read_text()


@pytest.mark.browser
def test_a_console_error_is_noticed(page: Any, pages: Pages, complaints: Any) -> None:
    complaints.expect("404")
    page.goto(pages.url + "/no-such-page/")
    assert any("404" in line for line in complaints.found)


@pytest.mark.browser
def test_an_inline_script_violates_the_policy_and_is_noticed(page: Any, pages: Pages, complaints: Any) -> None:
    complaints.expect("violat|Content Security Policy")
    page.goto(pages.url + "/sign-in/")
    assert complaints.unexpected() == []
    page.evaluate("""() => {
        const script = document.createElement('script');
        script.textContent = 'window.inlineRan = true';
        document.body.append(script);
    }""")
    page.wait_for_function("() => true")
    assert page.evaluate("() => window.inlineRan") is None
    assert any("CSP violation: script-src" in line for line in complaints.found)


def test_below_a_sub_path_links_and_static_files_carry_it(start_pages: Callable[..., Pages]) -> None:
    pages = start_pages(FENCEWATCH_SCRIPT_NAME="/ops/board")
    # The proxy takes the prefix away, as the README's example does.
    _, _, body = fetch(pages.url + "/sign-in/")
    found = re.findall(r'(?:href|src|action)="([^"#]+)"', body.decode())
    assert found
    assert [link for link in found if not link.startswith("/ops/board/")] == []
    for link in found:
        if "/static/" in link:
            status, headers, _ = fetch(pages.url + link.removeprefix("/ops/board"))
            assert status == 200, link
            assert "immutable" in headers["Cache-Control"]


def test_a_command_that_reaches_no_database_says_so_in_one_sentence(
    start_process: StartProcess, database: Database
) -> None:
    owner = database.environment["OWNER_DATABASE_URL"]
    nobody = f"postgresql://fencewatch_migrator:secret@127.0.0.1:{servers.free_port()}/{database.name}"
    for url, said in {
        nobody: "Connection refused",
        owner.replace(":" + PASSWORDS["migrator"], ":wrong-secret"): "password authentication failed",
        owner + "_other": "does not exist",
    }.items():
        process, log = start_process("manage.py", "tenant", "list", OWNER_DATABASE_URL=url)
        assert process.wait(30) == 1
        assert re.fullmatch(rf"The database was not reached: .*{said}.*\n", log.read_text()), log.read_text()
        assert "secret" not in log.read_text()
