"""A table of the article's shape becomes ours while an old worker goes on with it."""

import random
import time

import psycopg
import pytest
from django.core.management import CommandError, call_command

from tests.adoption.conftest import MakeOld
from tests.adoption.stage import PUT_RIGHT, STATES_AFTER, Old, OldWorker
from tests.processes import StartProcess, wait_until
from tests.protocol.stage import HASH
from workitems import adoption, protocol
from workitems.guards import drift, install
from workitems.states import State

ROWS = 20_000


def adopt(old: Old) -> adoption.Report:
    return adoption.adopt(workers=[old.role], say=lambda line: None)


def check(old: Old, worker: OldWorker, *, rows: int) -> None:
    """Nothing is lost, no number was given out twice, every row is in one of its states, and the rules are a fresh database's."""
    assert worker.error is None
    assert worker.lost == 0  # nobody took a claim that ran
    with old.superuser() as superuser:
        found = {
            (tenant, operation): (state, fence, attempts)
            for tenant, operation, state, fence, attempts in superuser.execute(
                "SELECT tenant_id, operation_id, state, fence, attempts FROM work_item WHERE operation_id LIKE 'live-%'"
            ).fetchall()
        }
        assert found.keys() == worker.inserted
        for key, fence in worker.completed.items():
            assert found[key][:2] == ("succeeded", fence)
        for key, fences in worker.fences.items():
            assert fences == sorted(set(fences))
            assert len(fences) == found[key][2]
        states = superuser.execute(
            "SELECT state, count(*) FROM work_item WHERE operation_id LIKE 'op-%' GROUP BY state"
        ).fetchall()
        assert dict(states) == {state: count * rows // 20 for state, count in STATES_AFTER.items()}
        undigested = superuser.execute(
            "SELECT count(*) FROM work_item w JOIN tenant t USING (tenant_id) JOIN fencewatch.tenant_key k USING (tenant_id)"
            " WHERE w.op_digest <> fencewatch.item_digest(k.inner_pad, k.outer_pad, w.tenant_id, w.operation_id)"
            "    OR w.op_digest IS NULL OR w.tenant_digest <> t.tenant_digest OR w.item_id IS NULL"
        ).fetchone()
        assert undigested == (0,)
        numbers = superuser.execute("SELECT count(*), count(DISTINCT item_id) FROM work_item").fetchone() or (0, 1)
        assert numbers[0] == numbers[1]
    assert [difference.sentence for difference in drift.differences()] == []


def test_rows_in_every_state_are_carried_over_while_the_old_worker_goes_on(make_old: MakeOld) -> None:
    old = make_old(ROWS)
    worker = OldWorker(old.address)
    with worker.at_work():
        old.ask_dba()
        report = adopt(old)
        after_flip = len(worker.completed)
        wait_until(lambda: worker.error or len(worker.completed) > after_flip + 50, what="the old worker goes on")
    check(old, worker, rows=ROWS)
    assert report.normalised == {what: count * ROWS // 20 for what, count in PUT_RIGHT.items()}
    assert report.finished_at is not None
    with old.superuser() as superuser:
        events = superuser.execute(
            "SELECT state_before, state_after, count(*) FROM work_event WHERE verb = 'adopt' GROUP BY 1, 2 ORDER BY 1"
        ).fetchall()
        assert events == [("claimed", "unknown", ROWS // 20), ("queued", "unknown", ROWS // 20)]
        verbs = {verb for (verb,) in superuser.execute("SELECT DISTINCT verb FROM work_event").fetchall()}
    assert {"enqueue", "claim", "complete"} <= verbs  # of the old worker, once the guard was laid


def test_a_second_run_and_a_migration_change_nothing(make_old: MakeOld) -> None:
    old = make_old(200)
    old.ask_dba()
    report = adopt(old)
    with old.superuser() as superuser:
        before = superuser.execute(
            "SELECT to_jsonb(w), xmin::text, ctid::text FROM work_item w ORDER BY item_id"
        ).fetchall()
        assert adopt(old) == report
        call_command("migrate", database="owner", verbosity=0, interactive=False)
        after = superuser.execute(
            "SELECT to_jsonb(w), xmin::text, ctid::text FROM work_item w ORDER BY item_id"
        ).fetchall()
    assert before == after
    old.ask_dba()
    assert drift.differences() == ()


def test_ours_work_on_an_adopted_table_and_the_old_worker_is_bound(make_old: MakeOld) -> None:
    old = make_old(200)
    old.ask_dba()
    adopt(old)
    made = protocol.enqueue(
        tenant_id="tenant-0", operation_id="op-1", payload_hash=HASH, payload_ref="ref", job_type="legacy"
    )
    assert (made.outcome, made.state) == ("replay", State.QUEUED)
    with psycopg.connect(old.address, autocommit=True) as worker:
        for statement, sqlstate in {
            "UPDATE work_item SET fence = 99 WHERE state = 'claimed'": "FW002",
            "UPDATE work_item SET state = 'queued' WHERE state = 'succeeded'": "FW002",
            "UPDATE work_item SET tenant_id = 'x'": "42501",
            "DELETE FROM work_item": "42501",
            "TRUNCATE work_item": "42501",
            "ALTER TABLE work_item DISABLE TRIGGER guard": "42501",
            "INSERT INTO work_item (tenant_id, operation_id, payload_hash, payload_ref) VALUES ('new', 'x', 'x', 'x')": "FW001",
        }.items():
            with pytest.raises(psycopg.Error) as refused:
                worker.execute(statement.encode())
            assert refused.value.sqlstate == sqlstate, statement


@pytest.mark.timeout(300)
def test_an_adoption_that_is_killed_at_any_moment_is_finished_by_the_next_run(
    make_old: MakeOld, start_process: StartProcess
) -> None:
    rows = 6_000
    old = make_old(rows)
    old.ask_dba()
    worker = OldWorker(old.address)
    chance = random.Random(7)
    killed = 0
    with worker.at_work():
        for _ in range(40):
            process, log = start_process("manage.py", "adopt", "--worker", old.role, **old.environment)
            time.sleep(0.6 + chance.random() * (1.5 + killed * 0.2))
            if process.poll() is None:
                process.kill()
                process.wait(10)
                killed += 1
                continue
            assert process.returncode == 0, log.read_text()
            break
        else:
            pytest.fail("no run came to its end")
        after_flip = len(worker.completed)
        wait_until(lambda: worker.error or len(worker.completed) > after_flip + 20, what="the old worker goes on")
    assert killed >= 3
    check(old, worker, rows=rows)
    report = adoption.report()
    assert report is not None
    assert report.normalised == {what: count * rows // 20 for what, count in PUT_RIGHT.items()}


def test_a_transaction_that_holds_the_table_is_waited_for_and_named(make_old: MakeOld) -> None:
    old = make_old(100)
    old.ask_dba()
    said: list[str] = []
    with psycopg.connect(old.address) as holder, psycopg.connect(old.address, options="-c lock_timeout=1s") as other:
        holder.execute("SELECT count(*) FROM work_item")
        pid = holder.info.backend_pid

        def say(line: str) -> None:
            said.append(line)
            if "waiting" in line:
                other.execute("UPDATE work_item SET updated_at = updated_at WHERE operation_id = 'op-1'")
                other.commit()
                holder.rollback()

        report = adoption.adopt(workers=[old.role], say=say)
    assert report.finished_at is not None
    assert any(f"pid {pid} of {old.role}" in line for line in said)


def test_a_row_that_somebody_holds_is_waited_for(make_old: MakeOld) -> None:
    old = make_old(100)
    old.ask_dba()
    said: list[str] = []
    with psycopg.connect(old.address) as holder:
        holder.execute("SELECT 1 FROM work_item WHERE operation_id = 'op-1' FOR UPDATE")

        def say(line: str) -> None:
            said.append(line)
            if "columns" in line:  # the row is held from here on
                holder.execute("SELECT 1 FROM work_item WHERE operation_id = 'op-1' FOR UPDATE")
            elif "waiting" in line:
                holder.rollback()

        assert adoption.adopt(workers=[old.role], say=say).rows == 100
    assert sum("waiting for rows" in line for line in said) == 1


def test_two_runs_at_once_are_one_adoption(make_old: MakeOld, start_process: StartProcess) -> None:
    old = make_old(2_000)
    old.ask_dba()
    runs = [start_process("manage.py", "adopt", "--worker", old.role, **old.environment) for _ in range(2)]
    for process, log in runs:
        assert process.wait(60) == 0, log.read_text()
        assert "2,000 rows carried over" in log.read_text()
    assert drift.differences() == ()


def test_a_plain_migration_stops_before_a_table_of_somebody_else(make_old: MakeOld) -> None:
    old = make_old(20)
    old.ask_dba()
    with pytest.raises(CommandError, match=r"manage\.py adopt"):
        call_command("migrate", database="owner", verbosity=0, interactive=False)
    with old.superuser() as superuser:
        assert superuser.execute("SELECT count(*) FROM work_item").fetchone() == (20,)
    adopt(old)


REFUSED = {
    "ALTER TABLE work_item DROP CONSTRAINT work_item_pkey": "the primary key is not",
    "ALTER TABLE work_item ALTER fence TYPE int": "column fence is integer: change it to bigint first",
    "ALTER TABLE work_item DROP COLUMN outcome_code": "column outcome_code is missing",
    "ALTER TABLE work_item ALTER payload_ref DROP NOT NULL": "column payload_ref may be null",
    "CREATE FUNCTION mine() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';"
    "CREATE TRIGGER mine BEFORE UPDATE ON work_item FOR EACH ROW EXECUTE FUNCTION mine()": "trigger mine is on",
    "CREATE RULE quiet AS ON DELETE TO work_item DO INSTEAD NOTHING": "rule quiet is on",
    "ALTER TABLE work_item ENABLE ROW LEVEL SECURITY": "row security of its own",
    "GRANT UPDATE ON work_item TO PUBLIC": "PUBLIC may write the table too",
    "ALTER TABLE work_item ADD COLUMN team text NOT NULL DEFAULT 'x'; ALTER TABLE work_item ALTER team DROP DEFAULT": (
        "column team is NOT NULL without a default"
    ),
    "CREATE TABLE tenant (id int)": "taken in schema public: tenant",
    "UPDATE work_item SET payload_hash = '' WHERE operation_id IN ('op-1', 'op-2')": "2 rows, whose payload_hash is not",
    "UPDATE work_item SET operation_id = repeat('x', 2000) WHERE operation_id = 'op-3'": "1 rows, whose operation_id is not",
    "ALTER TABLE work_item DROP CONSTRAINT work_item_state_check; UPDATE work_item SET state = 'paused' WHERE operation_id = 'op-1'": (
        "1 rows, whose state is none of"
    ),
}


@pytest.mark.parametrize("changed", REFUSED)
def test_what_cannot_be_adopted_is_said_before_anything_is_changed(changed: str, make_old: MakeOld) -> None:
    old = make_old(20)
    old.ask_dba()
    with old.superuser() as superuser:
        superuser.execute(changed.encode())
        with pytest.raises(adoption.CannotAdopt) as refused:
            adopt(old)
        assert REFUSED[changed] in str(refused.value)
        assert superuser.execute("SELECT to_regnamespace('fencewatch')").fetchone() == (None,)


def test_without_the_dbas_part_it_says_what_to_run(make_old: MakeOld) -> None:
    old = make_old(20)
    with pytest.raises(adoption.CannotAdopt) as refused:
        adopt(old)
    assert f"belongs to {old.role}" in str(refused.value)
    assert "adopt --script" in str(refused.value)


def test_a_worker_that_no_rule_would_bind_is_refused(make_old: MakeOld) -> None:
    old = make_old(20)
    old.ask_dba()
    for named, sentence in {"postgres": "is a superuser", "nobody_at_all": "there is no role nobody_at_all"}.items():
        with pytest.raises(adoption.CannotAdopt, match=sentence):
            adoption.adopt(workers=[named], say=lambda line: None)
    with pytest.raises(CommandError, match="--worker NAME"):
        call_command("adopt")


@pytest.mark.usefixtures("database")
def test_a_table_that_we_made_is_not_adopted() -> None:
    assert adoption.report() is None
    with pytest.raises(CommandError, match="already"):
        call_command("adopt", worker=["somebody"])
    with pytest.raises(CommandError, match="not an adopted one"):
        call_command("adopt", report=True)


def test_names_that_others_chose_are_taken_as_names(make_old: MakeOld) -> None:
    old = make_old(20)
    with old.superuser() as superuser:
        superuser.execute(
            'ALTER TABLE work_item RENAME CONSTRAINT work_item_state_check TO "x; DROP TABLE work_item; --"'
        )
        superuser.execute("""ALTER TABLE work_item RENAME CONSTRAINT work_item_pkey TO "the ""key"" 'of' it" """)
    old.ask_dba()
    adopt(old)
    assert drift.differences() == ()


def test_an_index_of_the_old_application_is_kept_and_named(
    make_old: MakeOld, capsys: pytest.CaptureFixture[str]
) -> None:
    old = make_old(40)
    with old.superuser() as superuser:
        superuser.execute(
            "CREATE INDEX old_leases ON work_item (lease_expires_at); ALTER TABLE work_item ADD COLUMN note text"
        )
    old.ask_dba()
    call_command("adopt", worker=[old.role])
    printed = capsys.readouterr()
    assert "index old_leases on work_item" in printed.out
    assert "40 rows carried over" in printed.out
    assert "note" in printed.err
    assert [difference.object for difference in drift.differences()] == [
        "column work_item.note",
        "index old_leases on work_item",
    ]
    assert install.is_current()


@pytest.mark.long
def test_a_million_rows(make_old: MakeOld) -> None:
    rows = 1_000_000
    old = make_old(rows)
    worker = OldWorker(old.address)
    with worker.at_work():
        old.ask_dba()
        started = time.monotonic()
        report = adopt(old)
        seconds = time.monotonic() - started
        after_flip = len(worker.completed)
        wait_until(lambda: worker.error or len(worker.completed) > after_flip + 50, what="the old worker goes on")
    check(old, worker, rows=rows)
    assert report.normalised == {what: count * rows // 20 for what, count in PUT_RIGHT.items()}
    print(
        f"{rows:,} rows in {seconds:.0f} s beside {len(worker.completed):,} operations of the old worker",
    )
