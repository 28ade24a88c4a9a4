"""Work to look at, and people who do."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from playwright.sync_api import Page

from tests.dashboard.stage import PASSWORD, add_person, digest_of
from tests.processes import Pages
from tests.protocol.stage import add_job_type, claim_one, enqueue, guard_off
from workitems import identifiers, protocol
from workitems.states import QuarantineReason

LONG = "settlement." + "x" * 89


@dataclass(frozen=True, kw_only=True)
class Shown:
    """An unknown item that may have acted, by its digests."""

    full: str
    short: str


@pytest.fixture
def unknown(tenants: tuple[str, str], superuser: Any) -> Shown:
    """A takeover that ended unknown, beside work in other states with names as long as they may be."""
    north, south = tenants
    add_job_type()
    add_job_type(LONG, target="B", owner="o" * 200, producer_team="p" * 200, system_owner="s" * 200)
    enqueue(north, "lost")
    protocol.begin(claim_one())
    with guard_off(superuser):
        superuser.execute("UPDATE work_item SET lease_expires_at = clock_timestamp() - interval '9 min'")
    protocol.park(claim_one("host/2/bbbb"), outcome_code="timeout")
    for number, tenant in enumerate((north, south)):
        enqueue(tenant, "held", job_type=LONG)
        claim = claim_one("h" * 180 + f"/{number}/cccc", job_type=LONG)
        protocol.begin(claim)
        protocol.park(claim, outcome_code="c" * 100)
        enqueue(tenant, "strange")
        protocol.quarantine(claim_one(), reason=QuarantineReason.UNPARSEABLE)
        enqueue(tenant, "waits")
    full = digest_of(north, "lost")
    add_person("noor", north, south)
    return Shown(full=full, short=identifiers.show(bytes.fromhex(full)))


@pytest.fixture
def enter(pages: Pages, unknown: Shown) -> Callable[[Page], None]:
    """Sign in on a page and wait for the overview."""

    def signs_in(page: Page) -> None:
        page.goto(f"{pages.url}/")
        page.fill("input[name=username]", "noor")
        page.fill("input[name=password]", PASSWORD)
        page.click("button:has-text('Sign in')")
        page.wait_for_selector("#overview")
        page.wait_for_load_state()  # scripts have run

    return signs_in
