"""What a worker does with a claim, whatever its target: doubt by default, ownership checked, nothing repeated."""

import hashlib
import logging
from typing import Any

import pytest
from django.db import connections, transaction

from tests.jobs.stage import BODY, defined, enqueue, let_leases_run_out, notes, row, standing
from workitems import protocol
from workitems.errors import FencewatchError, OwnershipLost, Terminal
from workitems.jobs import Answer, Target, Work, cannot_tell, happened
from workitems.jobs.worker import Ended, Ran, run_one, work_until_idle, worker_name


def ended(ran: Ran | None) -> Ended:
    assert ran is not None
    return ran.ended


def acts(work: Work) -> str:
    with work.effect():
        return "acted"


def breaks_after_begin(work: Work) -> str:
    with work.effect():
        raise TimeoutError("the text of an exception may quote op-1")


@pytest.mark.parametrize(
    ("body", "given_hash", "keep", "reason"),
    [
        (BODY, None, False, "payload_missing"),
        (BODY, hashlib.sha256(b"other").digest(), True, "hash_mismatch"),
        (BODY[:-1], None, True, "unparseable"),
        (b'{"version": 9, "amount": 1}', None, True, "unknown_version"),
        (b'{"version": 1, "amount": 0}', None, True, "schema_invalid"),
    ],
)
@pytest.mark.parametrize("target", [Target.A, Target.B, Target.D])
def test_input_that_is_not_understood_is_quarantined_and_never_acted_on(
    tenants: tuple[str, str],
    superuser: Any,
    target: Target,
    body: bytes,
    given_hash: bytes | None,
    keep: bool,
    reason: str,
) -> None:
    called: list[Work] = []

    def handler(work: Work) -> str:
        called.append(work)
        return acts(work)

    job = defined(target, handler)
    enqueue(tenants[0], job=job, body=body, payload_hash=given_hash, keep=keep)

    assert ended(run_one(job)) == Ended.QUARANTINED

    assert called == []
    assert standing(tenants[0]) == ("quarantined", reason)
    (note,) = notes(superuser)
    assert note[:2] == ("check", reason)
    assert "250" not in str(note[2])


def test_a_confirmed_failure_fails(tenants: tuple[str, str]) -> None:
    def refuses(work: Work) -> str:
        with work.effect():
            raise Terminal("account_closed")

    job = defined(Target.C, refuses)
    enqueue(tenants[0], job=job)

    assert ended(run_one(job)) == Ended.FAILED
    assert standing(tenants[0]) == ("failed_terminal", "account_closed")


def test_an_exception_before_the_stamp_releases_and_stops_at_the_ceiling(
    tenants: tuple[str, str], superuser: Any
) -> None:
    def fails(work: Work) -> str:
        raise ValueError

    job = defined(Target.B, fails, max_attempts=1, attempts_ceiling=2, backoff=0)
    enqueue(tenants[0], job=job)

    assert [ended(run_one(job)) for _ in range(2)] == [Ended.RELEASED] * 2
    assert standing(tenants[0]) == ("failed_terminal", "attempts_used_up")
    assert run_one(job) is None


def test_an_exception_after_the_stamp_without_a_reconciler_parks(tenants: tuple[str, str]) -> None:
    job = defined(Target.B, breaks_after_begin, reconcile=None, no_reconciler_because="no consistent read")
    enqueue(tenants[0], job=job)

    assert ended(run_one(job)) == Ended.PARKED
    assert standing(tenants[0]) == ("unknown", "ambiguous:TimeoutError")


def test_a_takeover_without_a_reconciler_parks_and_does_not_act(tenants: tuple[str, str], superuser: Any) -> None:
    called: list[Work] = []

    def handler(work: Work) -> str:
        called.append(work)
        return acts(work)

    job = defined(Target.B, handler, reconcile=None, no_reconciler_because="no consistent read")
    enqueue(tenants[0], job=job)
    (claim,) = protocol.claim(job_type=job.name, worker="first")
    protocol.begin(claim)
    let_leases_run_out(superuser)

    assert ended(run_one(job)) == Ended.PARKED
    assert called == []
    assert standing(tenants[0]) == ("unknown", "no_reconciler")


def _raises(work: Work) -> Answer:
    raise ConnectionError


@pytest.mark.parametrize(
    ("reconcile", "evidence"),
    [
        (lambda work: cannot_tell(status=503), {"status": 503}),
        (_raises, {"error": "ConnectionError"}),
        (lambda work: None, {"error": "reconciler returned no Answer"}),
        (lambda work: happened("two words"), {"error": "reconciler named no outcome code"}),
        (lambda work: cannot_tell(who=work.operation_id), {"withheld": "the evidence held an identifier"}),
        (lambda work: cannot_tell(text="x" * 5_000), {"withheld": "the evidence is too long"}),
        (lambda work: cannot_tell(odd=object()), {"withheld": "the evidence is no plain JSON"}),
    ],
)
def test_a_reconciler_without_a_confident_answer_parks_the_item(
    tenants: tuple[str, str], superuser: Any, reconcile: Any, evidence: dict[str, Any]
) -> None:
    called: list[Work] = []
    job = defined(Target.C, lambda work: called.append(work) or "acted", reconcile=reconcile)
    enqueue(tenants[0], job=job)
    (claim,) = protocol.claim(job_type=job.name, worker="first")
    protocol.begin(claim)
    let_leases_run_out(superuser)

    assert ended(run_one(job)) == Ended.PARKED
    assert called == []
    assert standing(tenants[0]) == ("unknown", "cannot_tell")
    assert notes(superuser) == [("reconcile", "cannot_tell", evidence)]


def test_a_takeover_of_a_claim_that_never_began_acts_without_asking(tenants: tuple[str, str], superuser: Any) -> None:
    job = defined(Target.C, acts)
    enqueue(tenants[0], job=job)
    protocol.claim(job_type=job.name, worker="first")
    let_leases_run_out(superuser)

    assert ended(run_one(job)) == Ended.COMPLETED
    assert notes(superuser) == []


def test_a_stale_worker_stops_at_its_stamp_and_changes_nothing(tenants: tuple[str, str], superuser: Any) -> None:
    acted: list[str] = []

    def handler(work: Work) -> str:
        if work.claim.worker == "first":
            let_leases_run_out(superuser)
            assert ended(run_one(job, worker="second")) == Ended.COMPLETED
        with work.effect():
            acted.append(work.claim.worker)
            return "acted"

    job = defined(Target.C, handler)
    enqueue(tenants[0], job=job)

    assert ended(run_one(job, worker="first")) == Ended.LOST
    assert acted == ["second"]
    assert standing(tenants[0]) == ("succeeded", "acted")
    assert row(tenants[0])["attempts"] == 2
    assert late(superuser) == [("rejected", "begin", "first", None)]


def test_a_handler_that_swallows_the_loss_of_its_claim_still_changes_nothing(
    tenants: tuple[str, str], superuser: Any
) -> None:
    def handler(work: Work) -> str:
        if work.claim.worker == "second":
            return acts(work)
        let_leases_run_out(superuser)
        assert ended(run_one(job, worker="second")) == Ended.COMPLETED
        for verb in (work.begin, lambda: work.heartbeat(1), work.begin):
            with pytest.raises(OwnershipLost):
                verb()
        return "first"

    job = defined(Target.C, handler)
    enqueue(tenants[0], job=job)

    assert ended(run_one(job, worker="first")) == Ended.LOST
    assert standing(tenants[0]) == ("succeeded", "acted")
    assert late(superuser) == [("late_outcome", "complete", "first", "first")]


def test_an_effect_under_a_claim_that_was_lost_is_kept_as_evidence(tenants: tuple[str, str], superuser: Any) -> None:
    def handler(work: Work) -> str:
        if work.claim.worker == "second":
            raise Terminal("refused")
        with work.effect():
            let_leases_run_out(superuser)
            assert ended(run_one(job, worker="second")) in (Ended.FAILED, Ended.PARKED, Ended.COMPLETED)
        return "paid"

    job = defined(Target.C, handler)
    enqueue(tenants[0], job=job)
    assert ended(run_one(job, worker="first")) == Ended.LOST
    assert late(superuser) == [("late_outcome", "complete", "first", "paid")]


def late(superuser: Any) -> list[tuple[Any, ...]]:
    found = superuser.execute(
        "SELECT verb, detail ->> 'tried', worker, outcome_code FROM work_event WHERE verb IN ('rejected', 'late_outcome')"
    )
    return list(found.fetchall())


def test_an_exception_of_a_worker_that_lost_its_claim_parks_nothing(tenants: tuple[str, str], superuser: Any) -> None:
    def handler(work: Work) -> str:
        if work.claim.worker == "second":
            return acts(work)
        work.begin()
        let_leases_run_out(superuser)
        assert ended(run_one(job, worker="second")) == Ended.COMPLETED
        raise TimeoutError

    job = defined(Target.C, handler)
    enqueue(tenants[0], job=job)

    assert ended(run_one(job, worker="first")) == Ended.LOST
    assert standing(tenants[0]) == ("succeeded", "acted")


def test_past_its_own_deadline_a_worker_does_not_even_ask_the_database(
    tenants: tuple[str, str], statements_of: Any
) -> None:
    def handler(work: Work) -> str:
        work._deadline = 0.0

        def begin() -> None:
            with pytest.raises(OwnershipLost):
                work.begin()

        assert statements_of(begin) == []
        return "never"

    job = defined(Target.C, handler)
    enqueue(tenants[0], job=job)

    assert ended(run_one(job)) == Ended.LOST
    assert row(tenants[0])["state"] == "claimed"


def test_a_heartbeat_extends_the_lease_only_as_work_moves_on(tenants: tuple[str, str], superuser: Any) -> None:
    def expires() -> Any:
        return row(tenants[0])["lease_expires_at"]

    def handler(work: Work) -> str:
        first = expires()
        assert work.heartbeat(1) is True
        second = expires()
        assert second > first
        assert work.heartbeat(1) is False
        assert expires() == second
        assert work.heartbeat(5) is True
        assert row(tenants[0])["progress"] == 5
        assert work.seconds_left() > 59
        return "done"

    job = defined(Target.C, handler)
    enqueue(tenants[0], job=job)

    assert ended(run_one(job)) == Ended.COMPLETED


def test_a_heartbeat_of_a_claim_that_was_taken_over_stops_the_handler(tenants: tuple[str, str], superuser: Any) -> None:
    def handler(work: Work) -> str:
        if work.claim.worker == "second":
            return acts(work)
        let_leases_run_out(superuser)
        run_one(job, worker="second")
        work.heartbeat(1)
        raise AssertionError

    job = defined(Target.C, handler)
    enqueue(tenants[0], job=job)

    assert ended(run_one(job, worker="first")) == Ended.LOST


def test_no_outside_effect_starts_inside_a_transaction(tenants: tuple[str, str]) -> None:
    def handler(work: Work) -> str:
        with transaction.atomic(using=work.using):
            return acts(work)

    job = defined(Target.C, handler)
    enqueue(tenants[0], job=job)

    assert ended(run_one(job)) == Ended.RELEASED
    assert row(tenants[0])["effect_at"] is None


def test_a_worker_does_not_claim_inside_a_transaction(tenants: tuple[str, str]) -> None:
    job = defined(Target.C, acts)

    with transaction.atomic(using="worker"), pytest.raises(RuntimeError, match="inside a transaction"):
        run_one(job)


def test_an_outcome_is_written_once_more_on_a_new_connection_when_the_old_one_broke(
    tenants: tuple[str, str], superuser: Any
) -> None:
    def is_cut_off(work: Work) -> str:
        with work.effect(), connections[work.using].cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            pid = cursor.fetchone()
        superuser.execute("SELECT pg_terminate_backend(%s, 5000)", pid)
        return "acted"

    job = defined(Target.D, is_cut_off)
    enqueue(tenants[0], job=job)

    assert ended(run_one(job)) == Ended.COMPLETED
    assert standing(tenants[0]) == ("succeeded", "acted")


def test_logs_hold_digests_and_no_identifiers(
    tenants: tuple[str, str], caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    job = defined(Target.B, breaks_after_begin, reconcile=None, no_reconciler_because="none")
    enqueue(tenants[0], job=job)
    capsys.readouterr()

    run_one(job)

    assert "op_" in "".join(record.getMessage() for record in caplog.records)
    printed = capsys.readouterr().err
    for secret in (tenants[0], "op-1", "payload of"):
        assert secret not in printed
        assert all(secret not in record.getMessage() for record in caplog.records)


def test_a_loop_takes_turns_between_job_types_until_nothing_is_due(tenants: tuple[str, str]) -> None:
    order: list[str] = []

    def handler(work: Work) -> str:
        order.append(work.job.name)
        return "done"

    jobs = [defined(Target.A, handler, name=name) for name in ("first.job", "second.job")]
    for number in range(3):
        enqueue(tenants[0], f"one-{number}", job=jobs[0])
    enqueue(tenants[0], "two-0", job=jobs[1])

    assert work_until_idle(jobs, seconds=30) == {Ended.COMPLETED: 4}
    assert order == ["first.job", "second.job", "first.job", "first.job"]


def test_a_loop_ends_when_its_time_is_over(tenants: tuple[str, str]) -> None:
    job = defined(Target.A)
    enqueue(tenants[0], job=job)

    assert work_until_idle([job], seconds=0) == {}
    assert work_until_idle([job], seconds=30, stop=lambda: True) == {}
    assert standing(tenants[0]) == ("queued", None)


def test_a_worker_names_itself_by_host_process_and_a_number_of_its_own() -> None:
    host, pid, own = worker_name().rsplit("/", 2)

    assert host
    assert pid.isdigit()
    assert len(own) == 8
    assert worker_name() == worker_name()


def test_errors_of_this_package_have_one_base() -> None:
    from workitems.jobs.work import BadHandler, InDoubt, PayloadRefused

    assert all(issubclass(kind, FencewatchError) for kind in (BadHandler, InDoubt, PayloadRefused))
