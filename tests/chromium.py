"""Debian's chromium through playwright. A console error, an exception in the page or a CSP violation fails the test."""

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
REPORT_VIOLATIONS = """
document.addEventListener('securitypolicyviolation', event =>
    console.error('CSP violation: ' + event.effectiveDirective + ' ' + event.blockedURI));
"""
ACTION_MS = 10_000


def executable() -> str:
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.fail("No chromium here: install the Debian package chromium (apt-get install chromium).")
    return found


@dataclass(kw_only=True)
class Complaints:
    """What the browser complained of. A test that means to cause one says so with ``expect`` before."""

    found: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)

    def expect(self, pattern: str) -> None:
        self.expected.append(pattern)

    def unexpected(self) -> list[str]:
        return [line for line in self.found if not any(re.search(pattern, line) for pattern in self.expected)]

    def watch(self, page: Page) -> None:
        def console(message: ConsoleMessage) -> None:
            if message.type in {"error", "warning"}:
                self.found.append(f"{message.type}: {message.text} ({message.location.get('url', '')})")

        page.on("console", console)
        page.on("pageerror", lambda error: self.found.append(f"exception: {error}"))


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    path = executable()
    # The browser writes below HOME even when headless.
    with (
        tempfile.TemporaryDirectory(prefix="fencewatch-browser-") as home,
        pytest.MonkeyPatch.context() as patch,
        sync_playwright() as playwright,
    ):
        environment: dict[str, str | float | bool] = {**os.environ, "HOME": home}
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS, env=environment)
        # Playwright keeps an event loop running in this thread, in which Django would refuse its database connections.
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        yield browser
        browser.close()


@pytest.fixture
def complaints() -> Iterator[Complaints]:
    seen = Complaints()
    yield seen
    assert seen.unexpected() == [], "The browser complained."


@pytest.fixture
def new_page(chromium: Browser, complaints: Complaints) -> Iterator[Callable[..., Page]]:
    """``new_page(color_scheme="dark", viewport={...}, java_script_enabled=False)``: a page with a cookie jar of its own."""
    contexts: list[BrowserContext] = []

    def make(**options: object) -> Page:
        context = chromium.new_context(**options)  # type: ignore[arg-type]
        context.set_default_timeout(ACTION_MS)
        context.add_init_script(REPORT_VIOLATIONS)
        contexts.append(context)
        page = context.new_page()
        complaints.watch(page)
        return page

    yield make
    for context in contexts:
        context.close()


@pytest.fixture
def page(new_page: Callable[..., Page]) -> Page:
    return new_page(viewport={"width": 1440, "height": 900})
