"""Every filter goes by an index, in a table where a whole scan would be seen at once."""

from typing import Any

import pytest

from tests.oversight.stage import BOTH, EVERYBODY, NORTH, fill, looking, nodes, plans
from tests.protocol.stage import JOB_TYPE, add_job_type
from workitems.oversight.figures import Filters, item, items, overview
from workitems.oversight.scope import UNREGISTERED
from workitems.states import State

ROWS = 120_000
BY_DIGEST, QUEUED, IN_FLIGHT = "work_item_by_digest", "work_item_queued", "work_item_in_flight"
WAITING, OF_TENANT = "work_item_attention", "work_item_attention_of_tenant"
OPEN, RECENT = "work_item_open_of_tenant", "work_item_recent"

CASES: list[tuple[str, Filters, set[str], set[str]]] = [
    # name, filters, indexes for people who see everything, indexes for people of some tenants
    ("everything", Filters(), {WAITING, QUEUED, IN_FLIGHT}, {OF_TENANT, OPEN}),
    ("unknown", Filters(states=(State.UNKNOWN,)), {WAITING}, {OF_TENANT}),
    ("unknown, oldest first", Filters(states=(State.UNKNOWN,), order="oldest"), {WAITING}, {OF_TENANT}),
    ("two waiting states", Filters(states=(State.QUARANTINED, State.FAILED_TERMINAL)), {WAITING}, {OF_TENANT}),
    ("unknown that may have acted", Filters(states=(State.UNKNOWN,), begun=True), {WAITING}, {OF_TENANT}),
    ("unknown of a job type", Filters(states=(State.UNKNOWN,), job_types=("other.job",)), {WAITING}, {OF_TENANT}),
    ("queued", Filters(states=(State.QUEUED,)), {QUEUED, IN_FLIGHT}, {OPEN}),
    ("queued of a job type", Filters(states=(State.QUEUED,), job_types=("other.job",)), {QUEUED}, {OPEN}),
    ("queued, unregistered", Filters(states=(State.QUEUED,), targets=(UNREGISTERED,)), {QUEUED, IN_FLIGHT}, {OPEN}),
    ("claimed", Filters(states=(State.CLAIMED,)), {QUEUED, IN_FLIGHT}, {OPEN}),
    ("stalled", Filters(stalled=True), {QUEUED, IN_FLIGHT}, {OPEN}),
    ("lying", Filters(lying=True), {QUEUED, IN_FLIGHT}, {OPEN}),
    ("stalled, of a target, begun", Filters(stalled=True, targets=("A",), begun=True), {QUEUED, IN_FLIGHT}, {OPEN}),
    ("succeeded", Filters(states=(State.SUCCEEDED,)), {RECENT}, {RECENT}),
    ("succeeded of a job type", Filters(states=(State.SUCCEEDED,), job_types=("other.job",)), {RECENT}, {RECENT}),
]


def indexes_of(found: list[dict[str, Any]]) -> set[str]:
    """The indexes of work_item that these plans read; fails on one that reads the table itself."""
    read = set()
    for plan in found:
        for node in nodes(plan):
            if node.get("Relation Name") == "work_item":
                assert "Seq Scan" not in node["Node Type"], plan
            if node.get("Index Name", "").startswith("work_item"):
                read.add(node["Index Name"])
    return read


def test_every_filter_goes_by_an_index(superuser: Any, people: tuple[str, str]) -> None:
    add_job_type("other.job", target="A")
    fill(superuser, rows=ROWS, types=(JOB_TYPE, "other.job", "strange.job"))
    for user_id in (EVERYBODY, BOTH, NORTH):
        for name, filters, of_all, of_some in CASES:
            found: list[dict[str, Any]] = []
            with looking(user_id) as person, plans(found):
                page = items(person.scope, filters)
                assert page.next_cursor is not None
                items(person.scope, filters, page.next_cursor)
            assert page.rows, name
            # a count has no order, and one job type's open work may be the shorter way: other indexes serve these too
            wanted, served = (of_all, {OF_TENANT}) if user_id == EVERYBODY else (of_some, {QUEUED, IN_FLIGHT})
            read = indexes_of(found) - {BY_DIGEST}
            assert read, (user_id, name)
            assert read <= wanted | served, (user_id, name, read)


@pytest.mark.parametrize("user_id", [EVERYBODY, BOTH])
def test_the_overview_and_an_item_go_by_indexes(superuser: Any, people: tuple[str, str], user_id: int) -> None:
    fill(superuser, rows=ROWS, types=(JOB_TYPE, "strange.job"))
    found: list[dict[str, Any]] = []
    with looking(user_id) as person, plans(found):
        seen = overview(person.scope)
        assert item(person.scope, seen.first[0].digest) is not None
    assert indexes_of(found) >= ({WAITING, QUEUED, IN_FLIGHT} if user_id == EVERYBODY else {OF_TENANT, OPEN}) | {
        BY_DIGEST
    }
