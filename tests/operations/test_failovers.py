"""A failover that lost nothing: two persons, evidence, and doubt until both have said so."""

from typing import Any

import pytest
from django.core.management import CommandError, call_command

from dashboard.access import operator_context
from tests.dashboard.stage import PASSWORD, add_person
from tests.protocol.stage import add_job_type, claim_one, enqueue, let_leases_run_out
from workitems.models import WorkItem
from workitems.operations import failovers

EVIDENCE = "old primary stopped at 0/50000A0, replayed to 0/50000A0 before the promotion"


@pytest.fixture
def people(tenants: tuple[str, str]) -> tuple[Any, Any]:
    return add_person("ada", None), add_person("ben", None)


@pytest.fixture(autouse=True)
def third_timeline(superuser: Any, tenants: tuple[str, str]) -> None:
    """The server says that it was promoted twice since the item was enqueued."""
    add_job_type()
    enqueue(tenants[0])
    body = "CREATE OR REPLACE FUNCTION fencewatch.timeline() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE AS"
    (now,) = superuser.execute("SELECT fencewatch.timeline()").fetchone()
    superuser.execute(f"{body} $$ SELECT {now + 2}::bigint $$")


def propose(person: Any, since: int = 1, until: int = 2, **given: str) -> failovers.Answer:
    with operator_context(person.pk, writes=True):
        return failovers.propose(
            since=since, until=until, **{"reason": "checked by hand", "evidence": EVIDENCE, **given}
        )


def confirm(person: Any, failover_id: int | None) -> failovers.Answer:
    with operator_context(person.pk, writes=True):
        return failovers.confirm(failover_id or 0, reason="looked at both logs")


def lossless(people: tuple[Any, Any], since: int, until: int) -> int:
    made = propose(people[0], since, until).failover_id
    assert confirm(people[1], made).outcome == "applied"
    return made or 0


def entries(superuser: Any) -> list[tuple[Any, ...]]:
    found = superuser.execute(
        "SELECT verb, outcome, outcome_reason, actor FROM audit_entry WHERE verb LIKE '%lossless' ORDER BY 1, 2"
    )
    return list(found.fetchall())


def begun(person: Any) -> tuple[int, int]:
    """How many items the pages count as may have acted, by the ORM's words, and as cannot have."""
    with operator_context(person.pk):
        return WorkItem.objects.for_all().begun().count(), WorkItem.objects.for_all().never_begun().count()


def test_a_claim_reconciles_until_every_step_since_the_enqueue_is_confirmed(
    people: tuple[Any, Any], superuser: Any
) -> None:
    assert begun(people[0]) == (1, 0)
    assert claim_one().must_reconcile
    lossless(people, 1, 2)
    let_leases_run_out(superuser)
    assert claim_one().must_reconcile  # the second failover may have lost a claim
    lossless(people, 2, 3)
    let_leases_run_out(superuser)
    assert not claim_one().must_reconcile
    assert begun(people[0]) == (0, 1)


def test_a_proposal_alone_and_a_withdrawn_record_count_for_nothing(people: tuple[Any, Any], superuser: Any) -> None:
    propose(people[0], 1, 3)
    assert claim_one().must_reconcile
    made = lossless(people, 1, 3)
    with operator_context(people[1].pk, writes=True):
        assert failovers.withdraw(made, reason="a second look found a gap").outcome == "applied"
        assert failovers.withdraw(made, reason="again").outcome == "changed"
    let_leases_run_out(superuser)
    assert claim_one().must_reconcile


def test_one_human_with_two_accounts_is_one_person(people: tuple[Any, Any], superuser: Any) -> None:
    superuser.execute("UPDATE auth_user SET email = 'Ada@example.org' WHERE id = %s", [people[0].pk])
    superuser.execute("UPDATE auth_user SET email = ' ada@example.ORG' WHERE id = %s", [people[1].pk])
    made = propose(people[0]).failover_id
    assert confirm(people[0], made).because == "same_person"
    assert confirm(people[1], made).because == "same_person"
    assert confirm(add_person("cyd", None), made).outcome == "applied"
    assert [entry[:3] for entry in entries(superuser)] == [
        ("confirm_lossless", "applied", None),
        ("confirm_lossless", "refused", "same_person"),
        ("confirm_lossless", "refused", "same_person"),
        ("propose_lossless", "applied", None),
    ]


def test_it_is_decided_once_and_not_after_it_expired(people: tuple[Any, Any], superuser: Any) -> None:
    made = lossless(people, 1, 2)
    assert confirm(people[1], made).outcome == "changed"
    late = propose(people[0], 2, 3).failover_id
    superuser.execute("UPDATE lossless_failover SET expires_at = clock_timestamp() WHERE failover_id = %s", [late])
    assert confirm(people[1], late).because == "expired"


@pytest.mark.parametrize(
    ("given", "because"),
    [
        ({"reason": " "}, "reason_missing"),
        ({"evidence": ""}, "evidence_missing"),
        ({"since": 2, "until": 2}, "no_such_failover"),
        ({"since": 2, "until": 9}, "no_such_failover"),
    ],
)
def test_a_proposal_that_says_nothing_is_refused_and_entered(
    people: tuple[Any, Any], superuser: Any, given: dict[str, Any], because: str
) -> None:
    assert propose(people[0], **given).because == because
    assert entries(superuser) == [("propose_lossless", "refused", because, people[0].pk)]
    assert superuser.execute("SELECT count(*) FROM lossless_failover").fetchone() == (0,)


def test_whoever_sees_one_tenant_only_or_nobody_at_all_may_not(superuser: Any, tenants: tuple[str, str]) -> None:
    assert propose(add_person("one", tenants[0])).because == "not_permitted"
    assert propose(add_person("viewer", None, role="viewer")).because == "not_permitted"
    assert propose(add_person("none")).because == "not_permitted"
    assert superuser.execute("SELECT count(*) FROM lossless_failover").fetchone() == (0,)


def test_two_persons_do_it_from_the_command_line(
    people: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dashboard.management.commands.failover.getpass", lambda prompt: PASSWORD)
    why = "--reason=looked at both logs"
    call_command("failover", "propose", "ada", "1", "2", why, f"--evidence={EVIDENCE}")
    number = capsys.readouterr().out.split("number is ")[1].split(";")[0]
    with pytest.raises(CommandError, match="somebody else has to look"):
        call_command("failover", "confirm", "ada", number, why)
    call_command("failover", "confirm", "ben", number, why)
    call_command("failover", "list", "ben")
    assert "timeline 1 to 2  confirmed" in capsys.readouterr().out
    monkeypatch.setattr("dashboard.management.commands.failover.getpass", lambda prompt: "wrong")
    with pytest.raises(CommandError, match="do not go together"):
        call_command("failover", "list", "ben")
