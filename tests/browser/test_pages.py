"""The pages in a browser. A console error or a violation of the content policy fails any of these; see tests/chromium.py."""

import re
from collections.abc import Callable

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.contrib.sessions.models import Session
from playwright.sync_api import Page, expect

from tests.browser.conftest import Shown
from tests.chromium import Complaints
from tests.processes import Pages
from tests.protocol.stage import make
from workitems.states import State

pytestmark = pytest.mark.browser

type Enter = Callable[[Page], None]
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
POLL_MS = 5_000
WIDTHS = (320, 390, 1440, 3840)


def places(pages: Pages, unknown: Shown) -> tuple[str, ...]:
    return ("/", "/work/", "/work/?state=succeeded", f"/work/{unknown.full}/", f"/work/{'0' * 64}/")


def test_somebody_finds_an_unknown_item_and_opens_it(page: Page, enter: Enter, unknown: Shown) -> None:
    enter(page)
    page.click(".tile:has-text('Unknown')")
    page.select_option("select[name=type]", "test.job")
    page.wait_for_url("**state=unknown*type=test.job*")
    page.click(f"text={unknown.short}")
    expect(page.locator("h1")).to_have_text(unknown.short)
    expect(page.locator(".verdict")).to_contain_text("it may have acted since")
    expect(page.locator(".claims li")).to_have_count(2)
    expect(page.locator(".claims")).to_contain_text("lease ran out, taken over")


def test_the_keyboard_alone_finds_opens_and_comes_back(page: Page, enter: Enter, unknown: Shown) -> None:
    enter(page)
    page.keyboard.press("?")
    expect(page.locator("#help")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("w")
    page.wait_for_url("**/work/")
    rows = page.locator("[data-row]")
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(rows.nth(1)).to_be_focused()
    page.keyboard.press("k")
    expect(rows.nth(0)).to_be_focused()
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("/work/[0-9a-f]{64}/$"))
    page.keyboard.press("/")
    page.keyboard.type(unknown.short)
    page.keyboard.press("Enter")
    page.wait_for_url("**/work/find/?q=op_*")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/work/{unknown.full}/")


def test_pages_fit_every_width_in_both_themes_and_have_no_serious_fault(
    page: Page, enter: Enter, pages: Pages, unknown: Shown, complaints: Complaints
) -> None:
    complaints.expect("404")
    enter(page)
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
        for place in places(pages, unknown):
            page.goto(pages.url + place)
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": 900})
                assert page.evaluate(OVERFLOW) <= 0, f"{place} is wider than {width} pixels"
            for width in (390, 1440):
                page.set_viewport_size({"width": width, "height": 900})
                found = Axe().run(page).response["violations"]
                serious = [fault for fault in found if fault["impact"] in {"serious", "critical"}]
                assert [(fault["id"], fault["nodes"][0]["html"]) for fault in serious] == [], (place, theme, width)


def test_without_script_everything_can_be_read_and_filtered(
    new_page: Callable[..., Page], enter: Enter, unknown: Shown
) -> None:
    page = new_page(java_script_enabled=False)
    enter(page)
    expect(page.locator("#live")).to_be_hidden()
    page.click("text=Refresh")
    page.click("nav >> text=Work")
    page.click(".chip:has-text('Unknown')")
    page.select_option("select[name=type]", "test.job")
    page.click("button:has-text('Apply')")
    page.click(f"text={unknown.short}")
    expect(page.locator(".verdict")).to_contain_text("on-call")
    page.fill("#find", unknown.full)
    page.press("#find", "Enter")
    page.wait_for_url(f"**/work/{unknown.full}/")
    page.click(".me summary")
    page.click("button:has-text('Sign out')")
    expect(page.locator("main")).to_contain_text("You are signed out.")


def test_a_region_follows_the_table_pauses_and_leaves_when_the_session_ends(
    page: Page, enter: Enter, unknown: Shown, tenants: tuple[str, str], complaints: Complaints
) -> None:
    page.clock.install()
    enter(page)
    tile = page.locator(".tile:has-text('Unknown') strong")
    expect(tile).to_have_text("3")
    row = page.locator(f"[data-row]:has-text('{unknown.short}')")
    row.focus()
    make(State.UNKNOWN, tenants[0], "newer")
    page.clock.run_for(POLL_MS)
    expect(tile).to_have_text("4")
    expect(row).to_be_focused()

    page.click("#live")
    expect(page.locator("#live")).to_have_text("Paused")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.clock.run_for(3 * POLL_MS)
    assert asked == []

    complaints.expect("401")
    Session.objects.all().delete()
    page.click("#live")
    page.wait_for_url("**/sign-in/?next=/**")


def test_a_chosen_theme_stays_and_is_there_before_the_page(page: Page, enter: Enter) -> None:
    enter(page)
    for chosen in ("light", "dark", None):
        page.click("#theme")
        page.reload()
        assert page.evaluate("document.documentElement.dataset.theme ?? null") == chosen
