"""With synchronous replication, a cancelled wait answers success with a warning: committed here, perhaps nowhere else."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connections

from tests.processes import wait_until
from tests.protocol.stage import add_job_type, claim_one, enqueue, row
from workitems import protocol
from workitems.errors import OwnershipLost


@pytest.fixture
def cancelled_wait(superuser: Any) -> Iterator[Callable[[Callable[[], object]], list[object]]]:
    """Run a write in a thread while no standby answers, and cancel its wait for one."""

    def run(write: Callable[[], object]) -> list[object]:
        found: list[object] = []

        def attempt() -> None:
            try:
                found.append(write())
            except OwnershipLost as lost:
                found.append(lost)
            finally:
                connections.close_all()

        superuser.execute("ALTER SYSTEM SET synchronous_standby_names = 'ghost'")
        superuser.execute("SELECT pg_reload_conf()")
        wait_until(
            lambda: superuser.execute("SHOW synchronous_standby_names").fetchone() == ("ghost",), what="the setting"
        )
        thread = threading.Thread(target=attempt)
        thread.start()
        waiting = "FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND datname = current_database()"
        wait_until(
            lambda: superuser.execute(f"SELECT count(*) {waiting}").fetchone() == (1,), what="the wait for a standby"
        )
        superuser.execute(f"SELECT pg_cancel_backend(pid) {waiting}")
        thread.join(timeout=60)
        return found

    yield run
    superuser.execute("SET synchronous_commit = local")
    superuser.execute("ALTER SYSTEM RESET synchronous_standby_names")
    superuser.execute("SELECT pg_reload_conf()")
    wait_until(lambda: superuser.execute("SHOW synchronous_standby_names").fetchone() == ("",), what="the setting")


def test_a_claim_whose_wait_for_the_standby_was_cancelled_is_not_owned(
    database: Any, superuser: Any, tenants: tuple[str, str], cancelled_wait: Any
) -> None:
    add_job_type()
    enqueue(tenants[0])
    assert cancelled_wait(lambda: protocol.claim(job_type="test.job", worker="w")) == [[]]
    assert row(tenants[0])["state"] == "claimed"  # it stands on this server, and is left to run out


def test_a_stamp_whose_wait_for_the_standby_was_cancelled_forbids_the_effect(
    database: Any, superuser: Any, tenants: tuple[str, str], cancelled_wait: Any
) -> None:
    add_job_type()
    enqueue(tenants[0])
    claim = claim_one()
    (answer,) = cancelled_wait(lambda: protocol.begin(claim))
    assert isinstance(answer, OwnershipLost)
