"""The database's own refusals, by raw SQL, as the worker role and as the superuser."""

from typing import Any

import psycopg
import pytest
from django.db import DatabaseError, connections, transaction

from tests.protocol.stage import add_job_type, claim_one, enqueue, let_leases_run_out, make, row
from workitems import protocol
from workitems.states import State

ALLOWED_FROM_CLAIMED = set(State)


def as_worker(statement: str) -> int:
    with transaction.atomic(using="worker"), connections["worker"].cursor() as cursor:
        cursor.execute(statement)
        return int(cursor.rowcount)


LEASED = "lease_owner = 'w', lease_expires_at = clock_timestamp() + interval '1 minute'"


@pytest.mark.parametrize("after", list(State))
@pytest.mark.parametrize("before", [s for s in State if s is not State.CLAIMED])
def test_a_worker_cannot_draw_an_arrow_that_the_state_machine_does_not_have(
    before: State, after: State, database: Any, tenants: tuple[str, str]
) -> None:
    add_job_type()
    make(before, tenants[0])
    stands = row(tenants[0])
    leased = f", {LEASED}" if after is State.CLAIMED else ""
    with pytest.raises(DatabaseError):
        as_worker(f"UPDATE work_item SET state = '{after}', max_attempts = 9{leased}")
    assert row(tenants[0]) == stands


def test_a_claim_by_raw_sql_from_any_state_but_queued_is_refused(database: Any, tenants: tuple[str, str]) -> None:
    add_job_type()
    for number, state in enumerate(State):
        if state is State.QUEUED:
            continue
        make(state, tenants[0], f"op-{number}")
        with pytest.raises(DatabaseError):
            as_worker(
                f"UPDATE work_item SET state = 'claimed', fence = fence + 1, attempts = attempts + 1, {LEASED} WHERE operation_id = 'op-{number}'"
            )


BREACHES = {
    "identity": "operation_id = 'other'",
    "tenant": "tenant_id = 'other'",
    "payload hash": "payload_hash = '\\x00'",
    "payload reference": "payload_ref = 'other'",
    "job type": "job_type = 'legacy'",
    "first seen": "enqueued_at = now()",
    "digest": "op_digest = '\\x00'",
    "falling fence": "fence = fence - 1",
    "jumping fence": "fence = fence + 1000000",
    "attempts reset": "attempts = 0",
    "stolen lease": "lease_owner = 'thief'",
    "falling progress": "progress = progress - 1",
    "stamp of another fence": "effect_fence = 1, effect_at = now()",
    "erased stamp": "effect_fence = NULL, effect_at = NULL",
    "released after begin": "state = 'queued', max_attempts = 9",
    "more attempts while claimed": "max_attempts = 99",
    "negative fence": "fence = -1",
    "unleased claim": "lease_owner = NULL",
    "no such state": "state = 'done'",
}


@pytest.mark.parametrize("breach", BREACHES)
def test_what_the_guard_forbids_a_claims_holder(breach: str, database: Any, tenants: tuple[str, str]) -> None:
    add_job_type()
    enqueue(tenants[0])
    protocol.begin(claim_one())
    stands = row(tenants[0])
    with pytest.raises(DatabaseError):
        as_worker(f"UPDATE work_item SET {BREACHES[breach]}")
    assert row(tenants[0]) == stands


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM work_item",
        "TRUNCATE work_item",
        "DELETE FROM work_event",
        "UPDATE work_event SET verb = 'x'",
        "TRUNCATE work_event",
    ],
)
@pytest.mark.parametrize("replica", [False, True])
def test_rows_and_history_are_never_removed_not_even_by_the_superuser_in_replica_mode(
    statement: str, replica: bool, database: Any, superuser: Any, tenants: tuple[str, str]
) -> None:
    add_job_type()
    enqueue(tenants[0])
    superuser.execute(f"SET session_replication_role = {'replica' if replica else 'origin'}")
    with pytest.raises(psycopg.Error, match="never removed"):
        superuser.execute(statement)


def test_a_takeover_by_raw_sql_waits_for_the_lease(database: Any, superuser: Any, tenants: tuple[str, str]) -> None:
    add_job_type()
    enqueue(tenants[0])
    claim_one()
    takeover = f"UPDATE work_item SET fence = fence + 1, attempts = attempts + 1, {LEASED}"
    with pytest.raises(DatabaseError, match="still runs"):
        as_worker(takeover)
    let_leases_run_out(superuser)
    assert as_worker(takeover) == 1
    assert row(tenants[0])["foreign_held"]  # raw SQL that does not stamp: it may have acted


def test_a_new_row_takes_its_fence_times_and_digests_from_the_database(
    database: Any, superuser: Any, tenants: tuple[str, str]
) -> None:
    superuser.execute(
        "INSERT INTO work_item (tenant_id, operation_id, payload_hash, payload_ref, fence, enqueued_at, updated_at, op_digest, enqueue_timeline)"
        " VALUES (%s, 'op-1', '\\x01', 'r', 99, '2001-01-01', '2001-01-01', '\\x00', 7)",
        [tenants[0]],
    )
    made = row(tenants[0])
    assert made["fence"] == 0
    assert made["enqueued_at"].year > 2001
    assert made["updated_at"].year > 2001
    assert len(made["op_digest"]) == 32
    assert made["enqueue_timeline"] == superuser.execute("SELECT fencewatch.timeline()").fetchone()[0]
    with pytest.raises(psycopg.Error, match="queued or quarantined"):
        superuser.execute(
            "INSERT INTO work_item (tenant_id, operation_id, payload_hash, payload_ref, state) VALUES (%s, 'op-2', '\\x01', 'r', 'succeeded')",
            [tenants[0]],
        )


@pytest.mark.parametrize(
    ("alias", "statement"),
    [
        ("worker", "UPDATE job_type SET max_attempts = 9"),
        ("worker", "SELECT * FROM fencewatch.tenant_key"),
        ("worker", "SELECT * FROM fencewatch.context_key"),
        ("worker", "SELECT * FROM tenant"),
        ("worker", "SELECT * FROM membership"),
        (
            "worker",
            "INSERT INTO work_event (item_id, tenant_digest, verb, state_after, fence, attempts) VALUES (1, '', 'x', 'x', 1, 1)",
        ),
        ("worker", "SELECT * FROM work_event"),
        ("worker", "SELECT fencewatch.sweep(1)"),
        ("worker", "SELECT fencewatch.add_tenant('x', '', '', '')"),
        ("worker", "SELECT * FROM auth_user"),
        ("worker", "SET ROLE fencewatch_owner"),
        ("worker", "CREATE TEMP TABLE work_item (x int)"),
        ("worker", "CREATE TABLE public.mine (x int)"),
        ("keeper", "UPDATE work_item SET state = 'unknown'"),
        ("keeper", "SELECT * FROM work_item"),
        (
            "keeper",
            "INSERT INTO work_item (tenant_id, operation_id, payload_hash, payload_ref) VALUES ('t', 'o', '', 'r')",
        ),
        ("accounts", "SELECT * FROM work_item"),
        ("accounts", "SELECT * FROM membership"),
        ("accounts", "UPDATE membership SET role = 'operator'"),
    ],
)
def test_a_role_can_do_its_work_and_nothing_else(alias: str, statement: str, database: Any) -> None:
    with pytest.raises(DatabaseError) as refusal, connections[alias].cursor() as cursor:
        cursor.execute(statement)
    assert getattr(refusal.value.__cause__, "sqlstate", None) == "42501"


FORGERIES = {
    "a takeover that erases the stamp": "fence = fence + 1, stamping_fence = fence + 1, attempts = attempts + 1, effect_fence = NULL, effect_at = NULL",
    "a takeover that moves the stamp": "fence = fence + 1, attempts = attempts + 1, effect_at = clock_timestamp() + interval '1 year'",
    "a takeover with a lease of centuries": "fence = fence + 1, attempts = attempts + 1, lease_expires_at = 'infinity'",
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_takeover_leaves_the_stamps_of_earlier_claims_alone(
    forgery: str, database: Any, superuser: Any, tenants: tuple[str, str]
) -> None:
    add_job_type()
    enqueue(tenants[0])
    protocol.begin(claim_one())
    let_leases_run_out(superuser)
    change = FORGERIES[forgery]
    leased = "lease_owner = 'w'" if "lease_expires_at" in change else LEASED
    with pytest.raises(DatabaseError):
        as_worker(f"UPDATE work_item SET {change}, {leased}")
    assert claim_one("next").must_reconcile


HOLDERS_FORGERIES = {
    "a stamping fence": "stamping_fence = fence + 1",
    "a lease without end": "lease_expires_at = 'infinity'",
    "a due date": "available_at = now()",
    "an outcome before the end": "outcome_code = 'paid'",
    "room for attempts without end": "state = 'unknown', max_attempts = 2000000000",
    "an attempt back that was its turn": "state = 'queued', max_attempts = max_attempts + 1, unspent_attempts = 1",
    "a release to the end of time": "state = 'queued', max_attempts = max_attempts + 1, available_at = 'infinity'",
}


@pytest.mark.parametrize("forgery", HOLDERS_FORGERIES)
def test_a_claims_holder_cannot_make_an_item_that_nobody_can_move_or_trust(
    forgery: str, database: Any, tenants: tuple[str, str]
) -> None:
    add_job_type()
    enqueue(tenants[0])
    claim_one()
    stands = row(tenants[0])
    with pytest.raises(DatabaseError):
        as_worker(f"UPDATE work_item SET {HOLDERS_FORGERIES[forgery]}")
    assert row(tenants[0]) == stands


def test_the_moment_of_a_stamp_is_the_databases(database: Any, tenants: tuple[str, str]) -> None:
    add_job_type()
    enqueue(tenants[0])
    claim_one()
    as_worker("UPDATE work_item SET effect_fence = fence, effect_at = '2199-01-01', updated_at = '2199-01-01'")
    stamped = row(tenants[0])
    assert stamped["effect_at"].year < 2199
    assert stamped["first_effect_at"] == stamped["effect_at"]
    assert stamped["updated_at"].year < 2199


def test_a_producer_grants_neither_attempts_nor_outcomes(database: Any, tenants: tuple[str, str]) -> None:
    add_job_type(target="D", max_attempts=1, ceiling=1)
    as_worker(
        "INSERT INTO work_item (tenant_id, operation_id, payload_hash, payload_ref, job_type, max_attempts, outcome_code)"
        f" VALUES ('{tenants[0]}', 'op-1', '\\x01', 'r', 'test.job', 1000, 'paid')"
    )
    made = row(tenants[0])
    assert (made["max_attempts"], made["outcome_code"]) == (1, None)


@pytest.mark.parametrize("moment", ["-infinity", "0044-03-15 BC", "infinity", "12000-01-01"])
def test_a_due_date_that_no_program_can_read_is_refused(moment: str, database: Any, tenants: tuple[str, str]) -> None:
    add_job_type()
    with pytest.raises(DatabaseError, match="available_at_bounded"):
        as_worker(f"SELECT fencewatch.enqueue('{tenants[0]}', 'op-1', '\\x01', 'r', 'test.job', '{moment}')")


def test_the_owner_may_digest_anew_and_change_nothing_else_of_an_item_at_rest(
    database: Any, tenants: tuple[str, str]
) -> None:
    add_job_type()
    enqueue(tenants[0])
    with connections["owner"].cursor() as cursor:
        cursor.execute("UPDATE work_item SET digest_key_version = 2, op_digest = sha256('\\x01')")
        with pytest.raises(DatabaseError):
            cursor.execute("UPDATE work_item SET attempts = 0, cleared_for_attempt = 1, enqueue_timeline = 7")


@pytest.mark.parametrize("alias", ["default", "accounts", "worker"])
def test_no_login_role_can_stop_the_sweep_by_a_lock_of_its_own(
    alias: str, database: Any, superuser: Any, tenants: tuple[str, str]
) -> None:
    add_job_type(max_attempts=1)
    enqueue(tenants[0])
    protocol.begin(claim_one())
    let_leases_run_out(superuser)
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(hashtextextended('fencewatch.sweep', 0))")
        assert protocol.sweep().unknown == 1


def test_the_sweep_runs_with_the_rights_of_a_role_that_may_do_nothing_else(database: Any, superuser: Any) -> None:
    owner = superuser.execute("SELECT pg_get_userbyid(proowner) FROM pg_proc WHERE proname = 'sweep'").fetchone()
    assert owner == ("fencewatch_keeping",)
    owned = superuser.execute(
        "SELECT count(*) FROM pg_class WHERE pg_get_userbyid(relowner) = 'fencewatch_keeping'"
    ).fetchone()
    assert owned == (0,)
    assert superuser.execute(
        "SELECT has_schema_privilege('fencewatch_keeping', 'fencewatch', 'CREATE')"
    ).fetchone() == (False,)


def test_a_note_takes_a_code_and_no_prose(database: Any, tenants: tuple[str, str]) -> None:
    add_job_type()
    enqueue(tenants[0])
    claim = claim_one()
    for code in ("", "a b", "x" * 101, f"refund of {tenants[0]}"):
        with pytest.raises(DatabaseError):
            protocol.note_reconcile(claim, verdict=code, evidence={})  # type: ignore[arg-type]


@pytest.mark.parametrize("alias", ["default", "accounts", "worker", "keeper"])
def test_no_login_role_can_fill_the_disk_with_large_objects(alias: str, database: Any) -> None:
    with pytest.raises(DatabaseError), connections[alias].cursor() as cursor:
        cursor.execute("SELECT lo_from_bytea(0, '\\x01')")
