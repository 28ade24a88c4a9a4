"""What an earlier claim may still do: nothing final is said of an item while its effect can land."""

import time
from typing import Any

import psycopg
import pytest

from tests.jobs.servers import act_and_hang_up, answer, provider
from tests.jobs.stage import KEY, defined, enqueue, make_due, notes, standing
from tests.protocol.stage import guard_off, let_leases_run_out, row
from workitems.errors import Terminal
from workitems.jobs import Answer, Target, Work, agreement, did_not_happen, happened, registry
from workitems.jobs.targets.idempotent_api import http, idempotent_call, look_up
from workitems.jobs.work import BadHandler
from workitems.jobs.worker import Ended, run_one

FOREIGN_CLAIM = (
    "UPDATE work_item SET state = 'claimed', fence = fence + 1, attempts = attempts + 1, lease_owner = 'old',"
    " lease_expires_at = clock_timestamp() + interval '1 minute'"
)


def begun_and_gone(work: Work) -> None:
    """The first claim's call is under way when its worker dies."""
    if work.claim.attempts == 1:
        work.begin()
        raise RuntimeError("no answer")


def age(superuser: Any, hours: int) -> None:
    with guard_off(superuser):
        superuser.execute(
            "UPDATE work_item SET enqueued_at = enqueued_at - make_interval(hours => %s), first_effect_at = first_effect_at - make_interval(hours => %s)",
            [hours, hours],
        )


def test_a_key_window_counts_from_the_enqueue_where_a_foreign_worker_held_the_item(
    database: Any, superuser: Any, tenants: tuple[str, str], foreign: psycopg.Connection[Any]
) -> None:
    calls: list[int] = []

    def pay(work: Work) -> str:
        work.begin()
        calls.append(work.fence)
        return "paid"

    job = defined(Target.C, pay, foreign_claims=True)
    enqueue(tenants[0], job=job)
    foreign.execute(FOREIGN_CLAIM)
    age(superuser, 72)
    let_leases_run_out(superuser)
    ran = run_one(job)
    assert ran is not None
    assert ran.ended == Ended.PARKED
    assert calls == []
    assert notes(superuser)[-1][1] == "cannot_tell"


def test_an_earlier_claim_without_a_moment_to_count_from_leaves_the_key_window_unknown(
    database: Any, superuser: Any, tenants: tuple[str, str]
) -> None:
    calls: list[int] = []

    def pay(work: Work) -> str:
        begun_and_gone(work)
        calls.append(work.fence)
        return "paid"

    job = defined(Target.C, pay)
    enqueue(tenants[0], job=job)
    run_one(job)
    with guard_off(superuser):
        superuser.execute("UPDATE work_item SET first_effect_at = NULL")
    let_leases_run_out(superuser)
    run_one(job)
    assert calls == []
    assert standing(tenants[0]) == ("unknown", "cannot_tell")
    assert notes(superuser)[-1][1:] == ("cannot_tell", {"looked": "by key", "key_window": "unknown"})


def test_a_claim_that_outlived_the_key_window_after_its_look_up_does_not_call(
    database: Any, superuser: Any, tenants: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[float] = []
    refused: list[str] = []
    calls: list[int] = []

    def pay(work: Work) -> str:  # what it asserted would be one more failed handler, so it takes notes
        begun_and_gone(work)
        assert work.act_before is not None
        left.append(work.act_before - time.monotonic())
        work.heartbeat(1)
        monkeypatch.setattr(work, "act_before", time.monotonic())  # an hour of heartbeats later
        try:
            work.begin()
        except BadHandler as error:
            refused.append(str(error))
            raise
        calls.append(work.fence)
        return "paid"

    job = defined(Target.C, pay)
    enqueue(tenants[0], job=job)
    run_one(job)
    age(superuser, 23)
    let_leases_run_out(superuser)
    ran = run_one(job)
    assert ran is not None
    assert ran.ended == Ended.RELEASED
    assert left == [pytest.approx(KEY.window.total_seconds() - 23 * 3600, abs=30)]
    assert refused == ["the key's window went by since the look-up; the next claim asks again."]
    age(superuser, 1)
    make_due(superuser)
    run_one(job)
    assert calls == []
    assert standing(tenants[0]) == ("unknown", "cannot_tell")


def test_a_terminal_answer_does_not_end_an_item_whose_earlier_call_may_still_land(
    database: Any, superuser: Any, tenants: tuple[str, str]
) -> None:
    def pay(work: Work) -> str:
        begun_and_gone(work)
        raise Terminal("account_closed")

    job = defined(Target.C, pay)
    enqueue(tenants[0], job=job)
    run_one(job)
    let_leases_run_out(superuser)
    run_one(job)
    assert standing(tenants[0]) == ("unknown", "ambiguous:account_closed")


def test_a_refused_payload_does_not_send_to_the_producer_what_may_still_land(
    database: Any, superuser: Any, tenants: tuple[str, str]
) -> None:
    def pay(work: Work) -> str:
        begun_and_gone(work)
        return "paid"

    job = defined(Target.C, pay)
    enqueue(tenants[0], job=job)
    run_one(job)
    let_leases_run_out(superuser)
    superuser.execute("DELETE FROM payload")
    run_one(job)
    assert standing(tenants[0]) == ("unknown", "ambiguous:payload_missing")


def test_a_providers_mismatch_answer_is_not_called_a_failure_when_the_key_may_have_acted(
    database: Any, superuser: Any, tenants: tuple[str, str]
) -> None:
    """A body that differs between attempts gets the provider's mismatch answer, though the first one paid."""
    with provider() as bank, http(base_url=bank.url) as client:

        def pay(work: Work) -> str:
            idempotent_call(work, client=client, url="/payments", json={"fence": work.fence})
            return "paid"

        def ask(work: Work) -> Answer:
            found = look_up(client=client, url=f"/payments/{work.identity_key}")
            return did_not_happen() if found is None else happened("paid")

        job = defined(Target.C, pay, reconcile=ask)
        enqueue(tenants[0], job=job)
        bank.answers += [act_and_hang_up, answer(404), answer(404), answer(422)]  # the look-up lags behind the payment
        run_one(job)
        let_leases_run_out(superuser)
        run_one(job)
        assert standing(tenants[0]) == ("unknown", "ambiguous:refused_422")
        assert len(bank.effects) == 1


def test_a_job_type_that_became_type_a_does_not_repeat_what_began_before(
    database: Any, superuser: Any, tenants: tuple[str, str]
) -> None:
    calls: list[str] = []

    def call(work: Work) -> str:
        work.begin()
        calls.append("outside")
        raise SystemExit

    job = defined(Target.C, call)
    enqueue(tenants[0], job=job)
    with pytest.raises(SystemExit):
        run_one(job)
    let_leases_run_out(superuser)

    def write(work: Work) -> str:
        calls.append("inside")
        return "paid"

    with registry.isolated():
        job = defined(Target.A, write)
        agreement.forget()
        run_one(job)
    assert calls == ["outside"]
    assert standing(tenants[0]) == ("unknown", "no_reconciler")


@pytest.mark.parametrize("evidence", ["paid\x00", "half \ud800"])
def test_a_verdict_is_not_lost_with_evidence_that_the_record_cannot_hold(
    evidence: str, database: Any, superuser: Any, tenants: tuple[str, str]
) -> None:
    def pay(work: Work) -> str:
        begun_and_gone(work)
        raise AssertionError("acted again")

    job = defined(Target.C, pay, reconcile=lambda work: happened("paid", said=evidence))
    enqueue(tenants[0], job=job)
    run_one(job)
    let_leases_run_out(superuser)
    run_one(job)
    assert standing(tenants[0]) == ("succeeded", "paid")
    assert notes(superuser)[-1][2] == {"withheld": "the evidence is not text"}


@pytest.mark.parametrize("sqlstate", ["FW002", "FW009", "55P03"])
def test_a_refusal_of_the_database_is_not_taken_for_a_broken_connection(
    sqlstate: str, database: Any, superuser: Any, tenants: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    def work_on(work: Work) -> str:
        superuser.execute("CREATE SEQUENCE refusals")  # a rollback does not take back what it counted
        superuser.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN"
            " IF NEW.state = 'succeeded' THEN PERFORM nextval('public.refusals');"
            f" RAISE EXCEPTION 'no' USING ERRCODE = '{sqlstate}'; END IF; RETURN NEW; END $$"
        )
        superuser.execute("CREATE TRIGGER refuse BEFORE UPDATE ON work_item FOR EACH ROW EXECUTE FUNCTION refuse()")
        return "done"

    job = defined(Target.C, work_on)
    enqueue(tenants[0], job=job)
    ran = run_one(job)
    assert ran is not None
    assert ran.ended == Ended.LEFT
    assert row(tenants[0])["state"] == "claimed"
    assert superuser.execute("SELECT last_value FROM refusals").fetchone() == (1,)
    assert [record.levelname for record in caplog.records if "refused the outcome" in record.getMessage()] == ["ERROR"]
