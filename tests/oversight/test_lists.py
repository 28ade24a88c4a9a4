import datetime
from typing import Any

import pytest
from django.db import connections
from django.db.models import Q
from django.test.utils import CaptureQueriesContext

from tests.oversight.stage import BOTH, EVERYBODY, NOBODY, NORTH, SOUTH, fill, looking
from tests.protocol.stage import HASH, JOB_TYPE, add_job_type, claim_one, enqueue, guard_off, make
from workitems import protocol
from workitems.models import WorkItem
from workitems.oversight import lists
from workitems.oversight.cursors import BadCursor
from workitems.oversight.figures import BadFilter, Filters, Page, Scope, items
from workitems.oversight.scope import UNREGISTERED
from workitems.states import State

UNKNOWN = Filters(states=(State.UNKNOWN,))


def walk(user_id: int, filters: Filters, *, size: int) -> tuple[list[bytes], list[Page]]:
    """Every digest of a list and its pages, by following it to its end."""
    digests: list[bytes] = []
    pages: list[Page] = []
    cursor: str | None = None
    while True:
        with looking(user_id) as person:
            page = items(person.scope, filters, cursor, size)
        digests += [row.digest for row in page.rows]
        pages.append(page)
        if page.next_cursor is None:
            return digests, pages
        cursor = page.next_cursor


def thousand_at_one_time(superuser: Any, tenants: tuple[str, str], state: str) -> None:
    protocol.enqueue_many(
        [
            protocol.NewItem(
                tenant_id=tenants[n % 2], operation_id=f"op-{n}", payload_hash=HASH, payload_ref="r", job_type=JOB_TYPE
            )
            for n in range(1000)
        ]
    )
    leased = "'h/1/x', clock_timestamp() + interval '1 hour'" if state == "claimed" else "NULL, NULL"
    with guard_off(superuser):
        superuser.execute(
            f"UPDATE work_item SET state = '{state}', updated_at = '2026-01-01',"
            " available_at = '2026-01-01', claimed_at = '2026-01-01',"
            f" progress_at = clock_timestamp(), attempts = {0 if state == 'queued' else 1},"
            f" (lease_owner, lease_expires_at) = ROW ({leased})"
        )


@pytest.mark.parametrize("state", [State.UNKNOWN, State.CLAIMED, State.QUEUED])
@pytest.mark.parametrize("order", ["newest", "oldest"])
@pytest.mark.parametrize("user_id", [EVERYBODY, BOTH])
def test_a_thousand_rows_of_one_time_are_each_listed_once(
    superuser: Any, people: tuple[str, str], state: State, order: Any, user_id: int
) -> None:
    thousand_at_one_time(superuser, people, state)
    digests, pages = walk(user_id, Filters(states=(state,), order=order), size=97)
    assert len(digests) == len(set(digests)) == 1000
    assert digests == sorted(digests, reverse=order == "newest")
    assert {page.count for page in pages} == {1000}


def test_going_back_shows_the_pages_that_were_passed(superuser: Any, people: tuple[str, str]) -> None:
    thousand_at_one_time(superuser, people, "unknown")
    _, pages = walk(BOTH, UNKNOWN, size=300)
    cursor = pages[-1].previous_cursor
    for passed in reversed(pages[:-1]):
        with looking(BOTH) as person:
            page = items(person.scope, UNKNOWN, cursor, 300)
        assert [row.digest for row in page.rows] == [row.digest for row in passed.rows]
        assert page.next_cursor is not None
        cursor = page.previous_cursor
    assert cursor is None


def test_states_with_times_of_their_own_merge_into_one_order(superuser: Any, people: tuple[str, str]) -> None:
    fill(superuser, rows=2_000, types=(JOB_TYPE, "strange.job"))
    for user_id in (EVERYBODY, BOTH):
        for order in ("newest", "oldest"):
            digests, pages = walk(user_id, Filters(order=order), size=33)
            times = [row.since for page in pages for row in page.rows]
            assert times == sorted(times, reverse=order == "newest")
            assert len(digests) == len(set(digests)) == pages[0].count == 160


def test_two_tenants_with_equal_ids_see_their_own_only(people: tuple[str, str]) -> None:
    for tenant_id in people:
        make(State.UNKNOWN, tenant_id)
    seen = {user_id: walk(user_id, UNKNOWN, size=10)[0] for user_id in (NORTH, SOUTH, BOTH, EVERYBODY, NOBODY)}
    assert len(seen[NORTH]) == len(seen[SOUTH]) == 1
    assert seen[NORTH] != seen[SOUTH]
    assert set(seen[BOTH]) == set(seen[EVERYBODY]) == {*seen[NORTH], *seen[SOUTH]}
    assert seen[NOBODY] == []


def test_naming_a_foreign_tenant_in_the_filter_shows_nothing(people: tuple[str, str]) -> None:
    make(State.UNKNOWN, people[1])
    with looking(EVERYBODY) as person:
        south = next(tenant.digest for tenant in person.tenants if tenant.label == "South")
    with looking(NORTH) as person:
        page = items(person.scope, Filters(tenant=south))
        assert (page.rows, page.count) == ((), 0)
        # and row security stands behind it, should a scope ever be wrong
        assert items(Scope(tenants=(south,)), UNKNOWN).rows == ()
        assert items(Scope(sees_all=True), UNKNOWN).rows == ()
    with looking(EVERYBODY) as person:
        assert len(items(person.scope, Filters(tenant=south)).rows) == 1


FILTERS = {
    "everything": Filters(),
    "unknown": UNKNOWN,
    "unknown and quarantined": Filters(states=(State.UNKNOWN, State.QUARANTINED)),
    "failed": Filters(states=(State.FAILED_TERMINAL,)),
    "queued": Filters(states=(State.QUEUED,)),
    "claimed": Filters(states=(State.CLAIMED,)),
    "stalled": Filters(stalled=True),
    "lying": Filters(lying=True),
    "stalled and begun": Filters(stalled=True, begun=True),
    "never begun": Filters(begun=False),
    "of a type": Filters(job_types=("other.job",)),
    "of a target": Filters(targets=("A",)),
    "of two targets": Filters(targets=("A", "C")),
    "unregistered": Filters(targets=(UNREGISTERED,)),
    "unregistered or A": Filters(targets=(UNREGISTERED, "A")),
    "a type of another target": Filters(job_types=("other.job",), targets=("C",)),
    "an unregistered type as such": Filters(job_types=("strange.job",), targets=(UNREGISTERED,)),
    "succeeded of a day": Filters(states=(State.SUCCEEDED,), window_hours=24),
    "succeeded of a type": Filters(states=(State.SUCCEEDED,), window_hours=24, job_types=("other.job",)),
}


@pytest.fixture
def varied(superuser: Any, people: tuple[str, str]) -> None:
    """2,000 items of three job types, of which one is not registered."""
    add_job_type("other.job", target="A")
    fill(superuser, rows=2_000, types=(JOB_TYPE, "other.job", "strange.job"))


def expected(filters: Filters, scope: Scope, at: datetime.datetime) -> int:
    """The same filters said in the ORM."""
    whose = WorkItem.objects.for_all() if scope.sees_all else WorkItem.objects.for_tenants(scope.tenants)
    found = whose.in_state(*filters.wanted)
    if filters.stalled:
        found = found.stalled(at=at)
    if filters.lying:
        found = found.lying(at=at)
    if filters.begun is not None:
        found = found.begun() if filters.begun else found.never_begun()
    if filters.job_types:
        found = found.of_type(*filters.job_types)
    if filters.targets:
        if UNREGISTERED in filters.targets:
            found = found.filter(Q(registered__target__isnull=True) | Q(registered__target__in=filters.targets))
        else:
            found = found.of_target(*filters.targets)
    if State.SUCCEEDED in filters.wanted:
        found = found.filter(updated_at__gt=filters.window_start(at))
    return found.count()


@pytest.mark.usefixtures("varied")
def test_list_count_and_the_orms_own_words_agree_for_every_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    for user_id in (EVERYBODY, NORTH, BOTH):
        with looking(user_id) as person:
            at = lists.database_clock()
            monkeypatch.setattr(lists, "database_clock", lambda at=at: at)
            for name, filters in FILTERS.items():
                page = items(person.scope, filters, size=3_000)
                wanted = expected(filters, person.scope, at)
                assert (name, len(page.rows), page.count) == (name, wanted, wanted)
            assert expected(FILTERS["stalled and begun"], person.scope, at) > 0
            assert expected(FILTERS["lying"], person.scope, at) > 0
            monkeypatch.undo()


@pytest.mark.usefixtures("varied")
def test_a_page_takes_few_queries_however_many_rows_it_has() -> None:
    for user_id in (EVERYBODY, BOTH):
        numbers = []
        for size in (5, 200):
            with CaptureQueriesContext(connections["default"]) as asked, looking(user_id) as person:
                items(person.scope, Filters(), size=size)
            numbers.append(len(asked))
        assert numbers[0] == numbers[1]
        assert numbers[0] <= 18, [query["sql"][:80] for query in asked.captured_queries]


def test_a_cursor_opens_no_other_list(superuser: Any, people: tuple[str, str]) -> None:
    thousand_at_one_time(superuser, people, "unknown")
    with looking(NORTH) as person:
        cursor = items(person.scope, UNKNOWN, size=10).next_cursor
        assert cursor is not None
        for other in (
            Filters(),
            Filters(states=(State.UNKNOWN,), order="oldest"),
            Filters(states=(State.UNKNOWN,), begun=True),
        ):
            with pytest.raises(BadCursor):
                items(person.scope, other, cursor)


@pytest.mark.parametrize("cursor", ["", "x", "a:b:c", "é" * 100, "x" * 10_000])
def test_a_cursor_that_is_not_ours_is_refused_with_the_next_step(people: tuple[str, str], cursor: str) -> None:
    with looking(NORTH) as person, pytest.raises(BadCursor, match="start from the first page"):
        items(person.scope, UNKNOWN, cursor)


def test_somebody_elses_cursor_still_shows_ones_own_rows_only(superuser: Any, people: tuple[str, str]) -> None:
    thousand_at_one_time(superuser, people, "unknown")
    with looking(SOUTH) as person:
        cursor = items(person.scope, UNKNOWN, size=10).next_cursor
    with looking(NORTH) as person:
        seen = items(person.scope, UNKNOWN, cursor, 2_000)
        assert {row.tenant_digest for row in seen.rows} == set(person.scope.tenants)


def test_a_number_above_the_cap_says_so(
    superuser: Any, people: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    thousand_at_one_time(superuser, people, "unknown")
    with looking(BOTH) as person:
        monkeypatch.setattr(lists, "CAP", 400)
        page = items(person.scope, UNKNOWN)
        assert (page.count, page.capped, page.count_text) == (400, True, "400+")


def test_a_count_that_takes_too_long_is_left_out_and_the_list_stays(
    superuser: Any, people: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    thousand_at_one_time(superuser, people, "unknown")
    real = lists.count_arm
    endless = "SELECT 1 AS one FROM generate_series(1, 1000000000000) n WHERE n < 0"
    monkeypatch.setattr(lists, "count_arm", lambda lane, conditions: f"{real(lane, conditions)} UNION ALL {endless}")
    monkeypatch.setattr(lists, "COUNT_MILLISECONDS", 50)
    with looking(BOTH) as person:
        page = items(person.scope, UNKNOWN)
        limit = lists.run("SELECT current_setting('statement_timeout')", {})[0][0]
    assert (len(page.rows), page.count, page.count_text) == (50, None, "not counted in time")
    assert limit == "5s"


def test_finished_work_is_looked_at_within_a_window_that_the_page_names(
    superuser: Any, people: tuple[str, str]
) -> None:
    make(State.SUCCEEDED, people[0], "old")
    with guard_off(superuser):
        superuser.execute("UPDATE work_item SET updated_at = clock_timestamp() - interval '3 hours'")
    make(State.SUCCEEDED, people[0], "new")
    done = (State.SUCCEEDED,)
    with looking(NORTH) as person:
        narrow, wide = (
            items(person.scope, Filters(states=done)),
            items(person.scope, Filters(states=done, window_hours=24)),
        )
        unfinished = items(person.scope, Filters())
    assert (len(narrow.rows), narrow.count, len(wide.rows), wide.count, unfinished.count) == (1, 1, 2, 2, 0)
    assert "last 1 h" in narrow.note
    assert "last 24 h" in wide.note
    assert "Finished work is listed when its state is chosen" in unfinished.note


def test_a_combination_that_cannot_be_is_refused_with_the_part_to_change() -> None:
    with pytest.raises(BadFilter, match="only claimed work can be stalled"):
        Filters(states=(State.UNKNOWN,), stalled=True)
    with pytest.raises(BadFilter, match="1, 24 or 168 hours"):
        Filters(window_hours=720)


def test_durations_are_the_databases_whatever_this_host_believes(
    people: tuple[str, str], superuser: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue(people[0], available_at=datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=2))
    make(State.UNKNOWN, people[0], "op-2")
    with guard_off(superuser):
        superuser.execute(
            "UPDATE work_item SET updated_at = clock_timestamp() - interval '90 minutes' WHERE state = 'unknown'"
        )
    monkeypatch.setattr("django.utils.timezone.now", lambda: datetime.datetime(1999, 1, 1, tzinfo=datetime.UTC))
    monkeypatch.setattr("time.time", lambda: 0.0)
    with looking(NORTH) as person:
        (waiting,) = items(person.scope, Filters(states=(State.QUEUED,))).rows
        (unknown,) = items(person.scope, UNKNOWN).rows
    assert 5_400 <= unknown.age_seconds < 5_430
    assert waiting.due_in_seconds is not None
    assert 7_100 < waiting.due_in_seconds <= 7_200
    assert (waiting.age_seconds, waiting.condition) == (0.0, "not due")


def test_rows_say_who_owns_the_next_step_and_whether_they_may_have_acted(people: tuple[str, str]) -> None:
    enqueue(people[0])
    claim = claim_one()
    protocol.begin(claim)
    protocol.park(claim, outcome_code="timeout")
    enqueue(people[0], "op-2", job_type="strange.job")
    with looking(NORTH) as person:
        (unknown,) = items(person.scope, UNKNOWN).rows
        (strange,) = items(person.scope, Filters(states=(State.QUEUED,))).rows
    assert (unknown.begun, unknown.next_owner) == (True, "on-call, with payments")
    assert "may have acted since" in unknown.reason
    assert (strange.begun, strange.condition, strange.facts.registered) == (False, "unregistered", False)
    assert strange.next_owner.startswith("on-call")


def test_the_stamp_moves_with_what_is_shown_and_stays_while_nothing_does(
    people: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make(State.UNKNOWN, people[0])
    with looking(NORTH):
        at = lists.database_clock()
    monkeypatch.setattr(lists, "database_clock", lambda: at)

    def stamp() -> str:
        with looking(NORTH) as person:
            return items(person.scope, Filters()).stamp

    before = stamp()
    assert stamp() == before
    make(State.UNKNOWN, people[1])
    assert stamp() == before
    make(State.QUARANTINED, people[0], "op-2")
    assert stamp() != before
