"""Revoke: acts on what the page showed and on nothing else, leaves one entry whatever the answer, and never guesses."""

import threading
from typing import Any

import psycopg
import pytest
from django.db import connections, transaction

from dashboard.access import operator_context
from tests.dashboard.stage import add_person
from tests.protocol.stage import add_job_type, claim_one, enqueue, make, row
from workitems import protocol
from workitems.errors import OwnershipLost
from workitems.operations import actions
from workitems.protocol import Claim
from workitems.states import State

WHY = "the host is gone"


@pytest.fixture
def ada(tenants: tuple[str, str]) -> Any:
    return add_person("ada", tenants[0])


@pytest.fixture
def claim(tenants: tuple[str, str]) -> Claim:
    add_job_type()
    enqueue(tenants[0])
    return claim_one()


def revoke(person: Any, claim: Claim, **given: Any) -> actions.Acted:
    seen = {"seen_state": "claimed", "seen_fence": claim.fence, "reason": WHY, **given}
    with operator_context(person.pk, writes=True):
        return actions.revoke(claim.op_digest, **seen)


def entries(superuser: Any) -> list[tuple[Any, ...]]:
    found = superuser.execute(
        "SELECT e.actor, e.verb, e.outcome, e.outcome_reason, e.state_before, e.state_after, t.reason"
        " FROM audit_entry e LEFT JOIN audit_text t USING (entry_id) WHERE e.verb = 'revoke' ORDER BY entry_id"
    )
    return list(found.fetchall())


def test_what_never_began_goes_back_to_the_queue_under_a_new_fence(ada: Any, claim: Claim, superuser: Any) -> None:
    answer = revoke(ada, claim)
    assert (answer.outcome, answer.state_now, answer.because) == ("applied", "queued", None)
    assert (answer.fence_now or 0) > claim.fence
    for write in (protocol.begin, lambda c: protocol.complete(c, outcome_code="done"), protocol.release):
        with pytest.raises(OwnershipLost):
            write(claim)
    assert row(claim.tenant_id)["attempts"] == 1  # never reset
    assert entries(superuser) == [(ada.pk, "revoke", "applied", None, "claimed", "queued", WHY)]
    history = superuser.execute(
        "SELECT verb, state_before, state_after, worker FROM work_event ORDER BY event_id DESC LIMIT 1"
    )
    assert history.fetchone() == ("revoke", "claimed", "queued", claim.worker)
    assert claim_one().fence > (answer.fence_now or 0)


def test_what_began_becomes_unknown(ada: Any, claim: Claim) -> None:
    protocol.begin(claim)
    answer = revoke(ada, claim)
    assert (answer.outcome, answer.state_now) == ("applied", "unknown")
    assert row(claim.tenant_id)["outcome_code"] == "revoked"


def test_a_claim_of_a_worker_that_does_not_stamp_becomes_unknown(
    ada: Any, tenants: tuple[str, str], foreign: Any
) -> None:
    add_job_type(foreign_claims=True)
    digest = enqueue(tenants[0]).op_digest
    foreign.execute(
        "UPDATE work_item SET state = 'claimed', fence = fence + 1, lease_owner = 'old', attempts = attempts + 1,"
        " lease_expires_at = clock_timestamp() + interval '60 seconds'"
    )
    with operator_context(ada.pk, writes=True):
        answer = actions.revoke(digest, seen_state="claimed", seen_fence=row(tenants[0])["fence"], reason=WHY)
    assert (answer.outcome, answer.state_now) == ("applied", "unknown")


def test_type_a_goes_back_to_the_queue_and_its_open_transaction_commits_nothing(
    ada: Any, tenants: tuple[str, str]
) -> None:
    add_job_type(target="A")
    enqueue(tenants[0])
    claim = claim_one()
    assert revoke(ada, claim).state_now == "queued"
    with pytest.raises(OwnershipLost), transaction.atomic(using="worker"):
        protocol.hold(claim)


def test_at_the_ceiling_it_waits_for_a_person(ada: Any, tenants: tuple[str, str]) -> None:
    add_job_type(max_attempts=1, ceiling=1)
    enqueue(tenants[0])
    assert revoke(ada, claim_one()).state_now == "unknown"


def test_a_double_click_and_the_back_button_change_nothing_more(ada: Any, claim: Claim, superuser: Any) -> None:
    first = revoke(ada, claim)
    second = revoke(ada, claim)
    assert (second.outcome, second.because) == ("changed", "changed_meanwhile")
    assert (second.state_now, second.fence_now) == (first.state_now, first.fence_now)
    taken = claim_one()  # somebody else's claim by now
    assert revoke(ada, claim).outcome == "changed"
    assert row(claim.tenant_id)["fence"] == taken.fence
    assert [entry[2] for entry in entries(superuser)] == ["applied", "changed", "changed"]


def test_two_at_once_are_one_change(ada: Any, claim: Claim, superuser: Any) -> None:
    answers: list[str] = []
    barrier = threading.Barrier(4)

    def click() -> None:
        barrier.wait()
        answers.append(revoke(ada, claim).outcome)
        connections.close_all()

    threads = [threading.Thread(target=click) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == ["applied", "changed", "changed", "changed"]
    assert len(entries(superuser)) == 4


def test_another_tenants_item_and_none_at_all_are_one_answer(
    claim: Claim, tenants: tuple[str, str], superuser: Any
) -> None:
    ben = add_person("ben", tenants[1])
    foreign = revoke(ben, claim)
    with operator_context(ben.pk, writes=True):
        absent = actions.revoke(b"\0" * 32, seen_state="claimed", seen_fence=claim.fence, reason=WHY)
    assert foreign == absent == actions.Acted(outcome="refused", because="no_such_item", state_now=None, fence_now=None)
    assert row(claim.tenant_id)["fence"] == claim.fence
    assert [entry[:4] for entry in entries(superuser)] == [(ben.pk, "revoke", "refused", "no_such_item")] * 2


@pytest.mark.parametrize("role", ["viewer", "approver", "auditor"])
def test_only_a_role_with_the_right_may(claim: Claim, tenants: tuple[str, str], superuser: Any, role: str) -> None:
    assert revoke(add_person("cyd", tenants[0], role=role), claim).because == "not_permitted"
    assert row(claim.tenant_id)["fence"] == claim.fence


@pytest.mark.parametrize(
    ("reason", "because"), [("", "reason_missing"), (" \n", "reason_missing"), ("x" * 2001, "reason_missing"),
                            ("about OP-1-canary again", "reason_names_the_item")]
)  # fmt: skip
def test_a_reason_is_given_and_names_no_identifier(
    ada: Any, tenants: tuple[str, str], superuser: Any, reason: str, because: str
) -> None:
    add_job_type()
    enqueue(tenants[0], "op-1-canary")
    claim = claim_one()
    assert revoke(ada, claim, reason=reason).because == because
    assert row(tenants[0], "op-1-canary")["fence"] == claim.fence
    assert superuser.execute("SELECT count(*) FROM audit_text WHERE reason <> ''").fetchone() == (0,)


@pytest.mark.parametrize("state", [state for state in State if state is not State.CLAIMED])
def test_nothing_but_a_claim_is_revoked(ada: Any, tenants: tuple[str, str], state: State) -> None:
    add_job_type()
    claim = make(state, tenants[0])
    before = row(tenants[0])
    assert revoke(ada, claim, seen_state=str(state), seen_fence=before["fence"]).outcome == "changed"
    assert row(tenants[0]) == before


def test_while_the_row_is_locked_the_answer_is_busy(ada: Any, claim: Claim, superuser: Any) -> None:
    with transaction.atomic(using="worker"):
        protocol.hold(claim)
        assert revoke(ada, claim).outcome == "busy"
    assert [entry[2:4] for entry in entries(superuser)] == [("busy", "locked")]
    assert revoke(ada, claim).outcome == "applied"


def test_without_a_context_nobody_may(claim: Claim, superuser: Any) -> None:
    answer = actions.revoke(claim.op_digest, seen_state="claimed", seen_fence=claim.fence, reason=WHY)
    assert answer.because == "no_such_item"
    assert entries(superuser)[0][0] is None


@pytest.mark.parametrize("target", ["queued", "claimed", "succeeded", "failed_terminal"])
def test_the_operators_role_itself_takes_no_arrow_out_of_unknown(
    tenants: tuple[str, str], superuser: Any, target: str
) -> None:
    add_job_type()
    make(State.UNKNOWN, tenants[0])
    superuser.execute("GRANT UPDATE ON work_item TO fencewatch_actions")
    superuser.execute("CREATE POLICY broken_open ON work_item TO fencewatch_actions USING (true) WITH CHECK (true)")
    superuser.execute("SET ROLE fencewatch_actions")
    superuser.execute("SELECT set_config('fencewatch.action', '{\"verb\": \"redrive\"}', false)")
    with pytest.raises(psycopg.Error, match=r"no arrow|only a claim|a claim takes"):
        superuser.execute("UPDATE work_item SET state = %s, fence = fence + 1", [target])


def test_an_operators_change_without_its_action_is_refused(claim: Claim, superuser: Any) -> None:
    superuser.execute("CREATE POLICY broken_open ON work_item TO fencewatch_actions USING (true) WITH CHECK (true)")
    superuser.execute("SET ROLE fencewatch_actions")
    with pytest.raises(psycopg.Error, match="says its verb and its reason"):
        superuser.execute("UPDATE work_item SET state = 'unknown', fence = fence + 1")
