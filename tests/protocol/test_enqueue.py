import hashlib
import threading
from typing import Any

import pytest
from django.db import connections, transaction

from tests.protocol.stage import HASH, JOB_TYPE, add_job_type, claim_one, enqueue, row
from workitems import protocol
from workitems.errors import BadIdentifier, BadItem, UnknownTenant
from workitems.protocol.enqueue import Answer
from workitems.states import State

OTHER_HASH = hashlib.sha256(b"other").digest()


def item(tenant_id: str, operation_id: str, payload_hash: bytes = HASH) -> protocol.NewItem:
    return protocol.NewItem(
        tenant_id=tenant_id, operation_id=operation_id, payload_hash=payload_hash, payload_ref="ref", job_type=JOB_TYPE
    )


def test_the_same_key_and_hash_is_a_replay_that_returns_the_stored_outcome(
    database: Any, tenants: tuple[str, str]
) -> None:
    add_job_type()
    first = enqueue(tenants[0])
    protocol.complete(claim_one(), outcome_code="refunded")
    before = row(tenants[0])
    again = enqueue(tenants[0])
    assert (first.outcome, first.state) == (Answer.ENQUEUED, State.QUEUED)
    assert (again.outcome, again.state, again.outcome_code) == (Answer.REPLAY, State.SUCCEEDED, "refunded")
    assert again.op_digest == first.op_digest
    assert row(tenants[0]) == before


def test_the_same_key_with_another_hash_is_a_conflict_and_changes_nothing(
    database: Any, tenants: tuple[str, str]
) -> None:
    add_job_type()
    enqueue(tenants[0])
    before = row(tenants[0])
    assert enqueue(tenants[0], payload_hash=OTHER_HASH, payload_ref="elsewhere").outcome is Answer.CONFLICT
    assert row(tenants[0]) == before


def test_a_replay_writes_no_event(database: Any, tenants: tuple[str, str], verbs_of: Any) -> None:
    add_job_type()
    for _ in range(3):
        enqueue(tenants[0])
    assert verbs_of(tenants[0]) == ["enqueue"]


def test_equal_operation_ids_of_two_tenants_are_two_operations(database: Any, tenants: tuple[str, str]) -> None:
    add_job_type()
    answers = [
        enqueue(tenant, payload_hash=payload) for tenant, payload in zip(tenants, (HASH, OTHER_HASH), strict=True)
    ]
    assert [answer.outcome for answer in answers] == [Answer.ENQUEUED, Answer.ENQUEUED]
    assert answers[0].op_digest != answers[1].op_digest


def test_many_answer_in_their_order_and_a_key_that_stands_twice_is_made_once(
    database: Any, tenants: tuple[str, str]
) -> None:
    add_job_type()
    enqueue(tenants[0], "old")
    answers = protocol.enqueue_many(
        [
            item(tenants[0], "z"),
            item(tenants[0], "old"),
            item(tenants[0], "a"),
            item(tenants[0], "z"),
            item(tenants[0], "a", OTHER_HASH),
            item(tenants[1], "z"),
            item(tenants[0], "old", OTHER_HASH),
        ]
    )
    assert [a.outcome for a in answers] == [
        "enqueued",
        "replay",
        "enqueued",
        "replay",
        "conflict",
        "enqueued",
        "conflict",
    ]
    assert protocol.enqueue_many([]) == []


def test_sixteen_producers_of_one_key_make_one_row(database: Any, tenants: tuple[str, str]) -> None:
    add_job_type()
    answers: list[Answer] = []
    start = threading.Barrier(16)

    def produce() -> None:
        connections["worker"].ensure_connection()
        start.wait(timeout=60)
        answers.append(enqueue(tenants[0]).outcome)
        connections.close_all()

    threads = [threading.Thread(target=produce) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert sorted(answers) == ["enqueued"] + ["replay"] * 15


def test_producers_that_race_for_many_keys_get_answers_and_never_an_error(
    database: Any, tenants: tuple[str, str]
) -> None:
    """A concurrent duplicate passes the key's first look and must be stopped by the key alone, not by another index."""
    add_job_type()
    keys, producers = 300, 8
    answers: list[Answer] = []
    errors: list[Exception] = []
    start = threading.Barrier(producers)

    def produce() -> None:
        try:
            for number in range(keys):
                start.wait(timeout=60)
                answers.append(enqueue(tenants[0], f"op-{number}").outcome)
        except Exception as error:  # noqa: BLE001 a thread's failure must fail the test
            errors.append(error)
            start.abort()
        finally:
            connections.close_all()

    threads = [threading.Thread(target=produce) for _ in range(producers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=100)
    assert errors == []
    assert answers.count(Answer.ENQUEUED) == keys
    assert answers.count(Answer.REPLAY) == keys * (producers - 1)


def test_the_row_commits_with_the_callers_transaction_or_not_at_all(database: Any, tenants: tuple[str, str]) -> None:
    add_job_type()
    with transaction.atomic(using="worker"):
        enqueue(tenants[0], "rolled-back")
        transaction.set_rollback(True, using="worker")
    with transaction.atomic(using="worker"):
        enqueue(tenants[0], "committed")
    assert enqueue(tenants[0], "rolled-back").outcome is Answer.ENQUEUED
    assert enqueue(tenants[0], "committed").outcome is Answer.REPLAY


def test_producers_in_other_languages_call_one_sql_function(database: Any, tenants: tuple[str, str]) -> None:
    add_job_type()
    with connections["worker"].cursor() as cursor:
        for expected, payload in (("enqueued", HASH), ("replay", HASH), ("conflict", OTHER_HASH)):
            cursor.execute(
                "SELECT outcome, state FROM fencewatch.enqueue(%s, %s, %s, %s, %s)",
                [tenants[0], "sql", payload, "ref", JOB_TYPE],
            )
            assert cursor.fetchone() == (expected, "queued")
        cursor.execute("SELECT max_attempts FROM work_item WHERE operation_id = 'sql'")
        assert cursor.fetchone() == (3,)


def test_an_unregistered_job_type_is_kept_and_claimed_by_nobody(database: Any, tenants: tuple[str, str]) -> None:
    assert enqueue(tenants[0], job_type="nobody.knows").outcome is Answer.ENQUEUED
    assert protocol.claim(job_type="nobody.knows", worker="w") == []


ODD_IDS = [
    "a/b/../c",
    "100%",
    "%(x)s",
    "🎉🎈",
    "x" * 1_000,
    "é" * 1_000,
    "'; DROP TABLE work_item; --",
    "=HYPERLINK()",
    "a\nb\tc",
    "üu\u0308",
    " ",
]


@pytest.mark.parametrize("operation_id", ODD_IDS, ids=range(len(ODD_IDS)))
def test_any_free_text_is_an_operation_id(operation_id: str, database: Any, tenants: tuple[str, str]) -> None:
    add_job_type()
    enqueue(tenants[0], operation_id)
    claim = claim_one()
    assert claim.operation_id == operation_id
    protocol.complete(claim, outcome_code="done")
    assert row(tenants[0], operation_id)["state"] == "succeeded"


BAD_IDS = {
    "": "empty",
    "a\x00b": "NUL",
    "x" * 1_001: "1,001 characters",
    "🎉" * 700: "2,800 bytes",
    "\ud800": "surrogate",
}


@pytest.mark.parametrize("operation_id", BAD_IDS, ids=list(BAD_IDS.values()))
def test_what_no_row_could_hold_is_refused_before_the_database_and_the_message_never_repeats_it(
    operation_id: str,
) -> None:
    with pytest.raises(BadIdentifier, match=BAD_IDS[operation_id]) as refusal:
        protocol.enqueue(
            tenant_id="t",
            operation_id=operation_id,
            payload_hash=HASH,
            payload_ref="r",
            job_type=JOB_TYPE,
            using="no such alias",
        )
    assert not operation_id or operation_id not in str(refusal.value)


def test_other_bad_input_is_named_with_its_place() -> None:
    with pytest.raises(BadItem, match=r"payload_hash.*item 2 of 2"):
        protocol.enqueue_many([item("t", "a"), item("t", "b", b"short")], using="no such alias")
    with pytest.raises(BadIdentifier, match="tenant_id is empty"):
        protocol.enqueue_many([item("", "a")], using="no such alias")
    with pytest.raises(BadIdentifier, match="must be text, not int"):
        protocol.enqueue_many([item("t", 7)], using="no such alias")  # type: ignore[arg-type]


def test_an_unknown_tenant_is_refused_and_says_what_to_do(database: Any) -> None:
    with pytest.raises(UnknownTenant, match=r"manage\.py tenant"):
        enqueue("nobody")
