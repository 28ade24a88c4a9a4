"""The audit log: appended only, read by its auditors, and whatever is done to it shows by its seals."""

import contextlib
import threading
from io import StringIO
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connections

from dashboard.access import operator_context
from tests.dashboard.stage import add_person
from workitems.oversight import audit
from workitems.tenancy import add_tenant, give_right, take_right

TABLES = ("audit_entry", "audit_text", "audit_seal", "audit_leaf")


def decide(count: int = 1) -> None:
    """Leave `count` entries: a right that is given and taken again."""
    for number in range(count):
        change = take_right if number % 2 else give_right
        change(role="viewer", verb="test_verb", reason=f"because of {number}")


@pytest.fixture
def log(database: Any) -> list[audit.Checkpoint]:
    """Three seals over seven entries, and what was published of them."""
    published = []
    for count in (1, 2, 4):
        decide(count)
        if count == 1:
            take_right(role="viewer", verb="test_verb", reason="again")
            count += 1
        assert audit.seal() == count
        newest = audit.checkpoint()
        assert newest is not None
        published.append(newest)
    return published


def as_superuser_without_guards(superuser: Any, *statements: str) -> None:
    for table in (*TABLES, "audit_unsealed"):
        superuser.execute(f"ALTER TABLE {table} DISABLE TRIGGER ALL")
    for statement in statements:
        superuser.execute(statement)


def sentences(checkpoints: list[audit.Checkpoint] | None = None) -> list[str]:
    return [fault.sentence for fault in audit.verify(checkpoints=checkpoints or ()).faults]


def test_an_empty_log_is_whole_and_has_nothing_to_publish(database: Any) -> None:
    found = audit.verify()
    assert (found.is_whole, found.entries, found.seals, found.unsealed) == (True, 0, 0, 0)
    assert audit.checkpoint() is None
    assert audit.seal() == 0


def test_what_was_sealed_is_whole_and_fits_what_was_published(log: list[audit.Checkpoint]) -> None:
    found = audit.verify(checkpoints=log)
    assert (found.faults, found.entries, found.seals, found.unsealed, found.checkpoints) == ((), 8, 3, 0, 3)
    decide()
    found = audit.verify(checkpoints=log)
    assert (found.is_whole, found.unsealed) == (True, 1)
    assert found.lag_seconds >= 0


ALTERED = {
    "verb": "'other'",
    "outcome": "'refused'",
    "outcome_reason": "'why'",
    "actor": "7",
    "actor_rights": "'{auditor}'",
    "said_by": "'somebody'",
    "db_role": "'other'",
    "at": "at - interval '1 microsecond'",
    "xid": "'3'",
    "subject": "subject || '{\"x\": 1}'",
    "tenant_digest": "sha256('')",
    "op_digest": "sha256('')",
    "state_before": "'queued'",
    "state_after": "'queued'",
    "fence_before": "1",
    "fence_after": "1",
    "second_person": "2",
    "batch": "gen_random_uuid()",
    "request_id": "'r'",
    "software_version": "'v'",
    "text_hash": "sha256('')",
}


@pytest.mark.parametrize("column", ALTERED)
def test_an_altered_entry_is_named_with_its_seal(log: list[audit.Checkpoint], superuser: Any, column: str) -> None:
    as_superuser_without_guards(superuser, f"UPDATE audit_entry SET {column} = {ALTERED[column]} WHERE entry_id = 4")
    assert sentences() == ["entry 4 was altered after it was sealed by seal 2"]


def test_every_column_of_an_entry_is_part_of_its_leaf(superuser: Any) -> None:
    columns = superuser.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = 'audit_entry'::regclass AND attnum > 0 AND NOT attisdropped"
    ).fetchall()
    assert {name for (name,) in columns} == {*ALTERED, "entry_id"}


def test_the_owner_who_lifts_the_triggers_is_found_out(log: list[audit.Checkpoint], database: Any) -> None:
    with connections["owner"].cursor() as cursor:
        cursor.execute("UPDATE audit_entry SET outcome = 'refused' WHERE entry_id = 4")
        assert cursor.rowcount == 0
        cursor.execute("ALTER TABLE audit_entry DISABLE TRIGGER USER")
        cursor.execute("ALTER TABLE audit_entry NO FORCE ROW LEVEL SECURITY")
        cursor.execute("UPDATE audit_entry SET outcome = 'refused' WHERE entry_id = 4")
        assert cursor.rowcount == 1
    assert sentences() == ["entry 4 was altered after it was sealed by seal 2"]


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("DELETE FROM audit_entry WHERE entry_id = 4", "entry 4 was removed after it was sealed by seal 2"),
        (
            "UPDATE audit_entry SET entry_id = 9 - entry_id WHERE entry_id IN (4, 5)",
            "entry 4 was altered after it was sealed by seal 2",
        ),
        (
            "UPDATE audit_text SET reason = 'never' WHERE entry_id = 4",
            "the reason or the evidence of entry 4 was altered",
        ),
        (
            "UPDATE audit_text SET evidence = 'x' WHERE entry_id = 4",
            "the reason or the evidence of entry 4 was altered",
        ),
        ("DELETE FROM audit_leaf WHERE entry_id = 3", "a leaf of seal 2 is missing, before entry 4"),
        ("UPDATE audit_leaf SET place = 6 - place WHERE seal_id = 2", "leaves of seal 2 are not those"),
        ("DELETE FROM audit_seal WHERE seal_id = 2", "seal 2 is missing"),
        ("UPDATE audit_seal SET root = sha256('') WHERE seal_id = 2", "seal 2 does not follow"),
        ("UPDATE audit_seal SET entries_total = 9 WHERE seal_id = 2", "seal 2 does not follow"),
        (
            "DELETE FROM audit_leaf WHERE seal_id = 2",
            "the leaves of seal 2 are not those that it was made over: 0 of 2",
        ),
        (
            "INSERT INTO audit_entry (entry_id, verb, outcome) VALUES (99, 'x', 'applied')",
            "entry 99 is neither sealed nor waits for it",
        ),
    ],
)
def test_whatever_is_removed_moved_or_put_in_is_named(
    log: list[audit.Checkpoint], superuser: Any, statement: str, told: str
) -> None:
    as_superuser_without_guards(superuser, "ALTER TABLE audit_entry DROP CONSTRAINT audit_entry_pkey CASCADE")
    superuser.execute("ALTER TABLE audit_leaf DROP CONSTRAINT audit_leaf_place_once")
    superuser.execute("ALTER TABLE audit_entry ALTER entry_id DROP IDENTITY")
    superuser.execute(statement)
    assert any(told in sentence for sentence in sentences()), sentences()


def test_erased_text_is_no_fault(log: list[audit.Checkpoint], superuser: Any) -> None:
    as_superuser_without_guards(superuser, "DELETE FROM audit_text WHERE entry_id = 4")
    assert sentences(log) == []


def cut(superuser: Any) -> None:
    as_superuser_without_guards(
        superuser,
        "DELETE FROM audit_leaf WHERE seal_id = 3",
        "DELETE FROM audit_seal WHERE seal_id = 3",
        "DELETE FROM audit_text WHERE entry_id > 4",
        "DELETE FROM audit_entry WHERE entry_id > 4",
    )


def test_a_tail_that_was_cut_shows_by_a_published_checkpoint_alone(log: list[audit.Checkpoint], superuser: Any) -> None:
    cut(superuser)
    assert sentences() == []
    assert sentences(log[:2]) == []
    assert sentences(log) == ["seal 3 was published and is gone: the end of the log was cut"]


def test_a_tail_that_was_rewritten_to_its_length_shows_by_a_published_checkpoint(
    log: list[audit.Checkpoint], superuser: Any
) -> None:
    cut(superuser)
    for table in (*TABLES, "audit_unsealed"):
        superuser.execute(f"ALTER TABLE {table} ENABLE TRIGGER ALL")
    superuser.execute("ALTER TABLE audit_entry ALTER entry_id RESTART WITH 5")
    decide(4)
    assert audit.seal() == 4
    newest = audit.checkpoint()
    assert newest is not None
    assert (newest.seal_id, newest.entries_total) == (log[-1].seal_id, log[-1].entries_total)
    assert sentences() == []
    assert sentences(log) == ["seal 3 is another than was published: history was rewritten"]


def entry_of_an_open_transaction(superuser: Any, database: Any) -> Any:
    """A connection with an entry that is not committed; its number is lower than those of decisions from now on."""
    connection = psycopg.connect(database.url("OWNER_DATABASE_URL"))
    connection.execute("SET ROLE fencewatch_owner")
    connection.execute("SELECT fencewatch.enter('slow', 'applied')")
    return connection


def test_a_slow_transaction_that_commits_behind_the_cut_is_in_the_next_batch(superuser: Any, database: Any) -> None:
    slow = entry_of_an_open_transaction(superuser, database)
    decide(2)
    assert audit.seal() == 0  # nothing behind the horizon: later ones wait with it
    slow.commit()
    slow.close()
    decide(1)
    assert audit.seal() == 4
    early = entry_of_an_open_transaction(superuser, database)
    early.rollback()
    early.close()
    decide(2)  # the right is there already: one entry
    assert audit.seal() == 1
    found = audit.verify()
    assert (found.faults, found.entries, found.unsealed) == ((), 5, 0)


def test_four_writers_and_two_sealers_at_once_seal_every_entry_once(database: Any, superuser: Any) -> None:
    done = threading.Event()
    failures: list[Exception] = []

    def guarded(work: Any) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - told below
            failures.append(error)
        finally:
            connections.close_all()

    def write() -> None:
        for number in range(25):
            add_tenant(tenant_id=f"{threading.get_ident()}-{number}")
            with connections["owner"].cursor() as cursor:
                cursor.execute("SELECT fencewatch.enter('test', 'applied', why => 'x')")

    def sealing() -> None:
        while not done.is_set():
            audit.seal(limit=7)

    writers = [threading.Thread(target=guarded, args=[write]) for _ in range(4)]
    sealers = [threading.Thread(target=guarded, args=[sealing]) for _ in range(2)]
    for thread in (*writers, *sealers):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    for thread in sealers:
        thread.join()
    while audit.seal():
        pass
    assert failures == []
    found = audit.verify()
    (written,) = superuser.execute("SELECT count(*) FROM audit_entry").fetchone()
    assert written >= 100
    assert (found.faults, found.entries, found.unsealed) == ((), written, 0)


def test_entries_from_a_cluster_that_this_one_was_restored_from_are_sealed(superuser: Any) -> None:
    decide(3)
    as_superuser_without_guards(superuser, "UPDATE audit_entry SET xid = '99999999999' WHERE entry_id < 3")
    assert audit.seal() == 3
    assert sentences() == []


# ---------------------------------------------------------------------------------------------------------------
# The tree
# ---------------------------------------------------------------------------------------------------------------
def reference_root(leaves: list[bytes]) -> bytes:
    """RFC 6962, section 2.1, word for word: split at the largest power of two below the size."""
    import hashlib

    if len(leaves) == 1:
        return leaves[0]
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    return hashlib.sha256(b"\x01" + reference_root(leaves[:split]) + reference_root(leaves[split:])).digest()


def test_database_and_python_compute_the_root_of_rfc_6962(superuser: Any) -> None:
    for size in range(1, 41):
        leaves = [bytes([size, n]) * 16 for n in range(size)]
        tree = audit.Tree()
        for leaf in leaves:
            tree.add(leaf)
        (root,) = superuser.execute("SELECT fencewatch.merkle_root(%s)", [leaves]).fetchone()
        assert tree.root == bytes(root) == reference_root(leaves), size


@pytest.mark.parametrize("text", [None, "", "x", "é|,", "0" * 70_000])
def test_a_field_is_sealed_alike_on_both_sides(superuser: Any, text: str | None) -> None:
    (sealed,) = superuser.execute("SELECT fencewatch.sealed_field(%s)", [text]).fetchone()
    (whole,) = superuser.execute("SELECT sha256('\\x00'::bytea || 'fencewatch/entry/1' || %s)", [sealed]).fetchone()
    assert audit.leaf_of([text]) == bytes(whole)


# ---------------------------------------------------------------------------------------------------------------
# Who may do what
# ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("table", [*TABLES, "audit_unsealed"])
@pytest.mark.parametrize("alias", ["default", "accounts", "worker", "keeper", "owner"])
def test_nobody_changes_or_removes_what_was_entered(
    log: list[audit.Checkpoint], superuser: Any, alias: str, table: str
) -> None:
    before = superuser.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()
    for statement in (f"UPDATE {table} SET entry_id = entry_id", f"DELETE FROM {table}", f"TRUNCATE {table} CASCADE"):
        with connections[alias].cursor() as cursor, contextlib.suppress(DatabaseError):
            cursor.execute(statement.replace("entry_id", "seal_id") if table == "audit_seal" else statement)
    assert superuser.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall() == before


@pytest.mark.parametrize("alias", ["default", "accounts", "worker"])
def test_only_the_keeper_seals(alias: str, database: Any) -> None:
    with connections[alias].cursor() as cursor, pytest.raises(DatabaseError, match="permission denied"):
        cursor.execute("SELECT fencewatch.seal(1)")


def read_by(person: Any) -> list[tuple[Any, ...]]:
    with operator_context(person.pk), connections["default"].cursor() as cursor:
        cursor.execute(
            "SELECT e.verb, t.reason FROM audit_entry e LEFT JOIN audit_text t USING (entry_id)"
            " WHERE e.verb ~ '^test' ORDER BY e.entry_id"
        )
        return cursor.fetchall()


def test_an_auditor_reads_the_entries_of_their_own_tenants_and_nobody_else_any(tenants: tuple[str, str]) -> None:
    with connections["owner"].cursor() as cursor:
        cursor.execute(
            "SELECT fencewatch.enter('test_' || t.label, 'applied', of_tenant => t.tenant_digest, why => t.label) FROM tenant t"
            " ORDER BY t.label"
        )
        cursor.execute("SELECT fencewatch.enter('test_all', 'applied', why => 'all')")
    north = add_person("nora", tenants[0], role="auditor")
    every = add_person("eva", None, role="auditor")
    both = add_person("bo", tenants[0], role="operator")
    assert read_by(north) == [("test_North", "North")]
    assert read_by(every) == [("test_North", "North"), ("test_South", "South"), ("test_all", "all")]
    assert read_by(both) == []
    take_right(role="auditor", verb="read_audit", reason="test")
    assert read_by(every) == []


def test_without_a_context_nobody_reads_an_entry(log: list[audit.Checkpoint]) -> None:
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM audit_entry")
        assert cursor.fetchone() == (0,)
        cursor.execute("SELECT count(*) FROM audit_text")
        assert cursor.fetchone() == (0,)


# ---------------------------------------------------------------------------------------------------------------
# The command
# ---------------------------------------------------------------------------------------------------------------
def run(*arguments: str) -> str:
    out = StringIO()
    call_command("audit", *arguments, stdout=out, stderr=out)
    return out.getvalue()


def test_the_command_seals_publishes_and_checks(log: list[audit.Checkpoint], tmp_path: Path, superuser: Any) -> None:
    decide(2)
    assert run("seal") == "2 entries sealed\n"
    published = tmp_path / "published"
    published.write_text("\n".join(one.line for one in log) + "\n\n" + run("checkpoint"))
    said = run("verify", "--checkpoints", str(published))
    assert "10 entries in 4 seals: as they were sealed" in said
    assert "4 published checkpoints fit" in said
    assert "no checkpoint was given" in run("verify")
    as_superuser_without_guards(superuser, "UPDATE audit_entry SET verb = 'x' WHERE entry_id = 1")
    with pytest.raises(CommandError, match="not as it was sealed"):
        run("verify")


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "fencewatch-checkpoint 2 1 1 " + "0" * 64,
        "fencewatch-checkpoint 1 1 1 00",
        "fencewatch-checkpoint 1 x 1 " + "0" * 64,
    ],
)
def test_a_line_that_is_no_checkpoint_is_named(text: str, tmp_path: Path, database: Any) -> None:
    published = tmp_path / "published"
    published.write_text("\n" + text)
    with pytest.raises(CommandError, match="line 2 is no checkpoint"):
        run("verify", "--checkpoints", str(published))
    with pytest.raises(CommandError, match="cannot be read"):
        run("verify", "--checkpoints", str(tmp_path / "none"))
    with pytest.raises(CommandError, match="nothing is sealed yet"):
        run("checkpoint")


def test_the_keepers_task_seals_what_waits(database: Any) -> None:
    from workitems.oversight.tasks import seal

    decide(3)
    seal()
    assert audit.verify().unsealed == 0
