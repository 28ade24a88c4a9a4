"""Fault driver: pauses and kills workers at the moments that matter, and plans outages at the outside world.

Looks into the work table as superuser to see who holds what. It signals only processes that descend from this demo.
"""

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg

from dashboard.demo.company import address_of
from dashboard.demo.family import descendants, descends
from dashboard.demo.rota import Turn

LOOKS_SECONDS = 12.0  # how long a fault waits for an item in the right moment
MOST_UNKNOWN = 150  # nobody may be looking at the demo for days

AT_WORK = """
SELECT tenant_id, operation_id, fence, lease_owner FROM work_item
WHERE state = 'claimed' AND attempts > 0 AND job_type = %(job_type)s AND NOT waiting_in_worker
  AND lease_expires_at > clock_timestamp() + interval '2 seconds' AND effect_fence IS DISTINCT FROM fence
ORDER BY claimed_at DESC LIMIT 1
"""
STILL_HELD = """
SELECT 1 FROM work_item
WHERE tenant_id = %(tenant)s AND operation_id = %(operation)s AND fence = %(fence)s AND state = 'claimed'
"""
HOLDER = "SELECT lease_owner FROM work_item WHERE tenant_id = %(tenant)s AND operation_id = %(operation)s AND state = 'claimed'"


@dataclass(frozen=True, kw_only=True, slots=True)
class AtWork:
    """A claim whose handler runs right now, and the process that holds it."""

    tenant: str
    operation: str
    fence: int
    pid: int

    @property
    def condition(self) -> dict[str, object]:
        return {"tenant": self.tenant, "operation": self.operation, "fence": self.fence}


class FaultDriver:
    """Each kind of fault runs in a thread and at a pace of its own."""

    def __init__(self, *, database_url: str, demo_pid: int, pids: Path) -> None:
        self._database_url = database_url
        self._demo_pid = demo_pid
        self._pids = pids
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._paused: set[int] = set()
        self._faults: dict[Callable[[psycopg.Connection[Any]], None], Turn] = {
            self.pause_posting: Turn(first=5, every=25),
            self.pause_refund: Turn(first=9, every=35),
            self.pause_text: Turn(first=22, every=60),
            self.freeze_payouts: Turn(first=14, every=70),
            self.kill_after_payment: Turn(first=6, every=45),
            self.kill_after_text: Turn(first=11, every=70),
            self.silence_payments: Turn(first=4, every=55),
            self.slow_payments: Turn(first=30, every=50),
            self.drop_text: Turn(first=3, every=40),
            self.slow_posting: Turn(first=12, every=50),
            self.kill_old_worker: Turn(first=34, every=110),
        }

    def run(self) -> None:
        """Drive faults until SIGTERM; nobody is left paused."""
        signal.signal(signal.SIGTERM, lambda *_: self._stopping.set())
        threads = [threading.Thread(target=self._repeat, args=item, daemon=True) for item in self._faults.items()]
        for thread in threads:
            thread.start()
        while not self._stopping.wait(0.5):
            pass
        for pid in list(self._paused):
            self._signal(pid, signal.SIGCONT)

    def _repeat(self, fault: Callable[[psycopg.Connection[Any]], None], turn: Turn) -> None:
        while not self._stopping.wait(0.3):
            if not turn.is_due():
                continue
            # The database or a server may be on its way down or up; the fault comes round again.
            with (
                contextlib.suppress(psycopg.Error, httpx.HTTPError, OSError),
                psycopg.connect(self._database_url, autocommit=True) as connection,
            ):
                fault(connection)

    # -- pauses -------------------------------------------------------------------------------------------------------
    def pause_posting(self, connection: psycopg.Connection[Any]) -> None:
        """Type B: past its lease, until another claim has taken over and finished; then it wakes up and is refused."""
        self._pause(connection, job_type="ledger.post", seconds=25)

    def pause_refund(self, connection: psycopg.Connection[Any]) -> None:
        """Type A: the sleeping transaction's row lock keeps everybody off, so the item stalls until it wakes up."""
        self._pause(connection, job_type="billing.refund", seconds=22)

    def pause_text(self, connection: psycopg.Connection[Any]) -> None:
        """Type D, before its one call: the sweep puts it back, for it never began."""
        self._pause(connection, job_type="sms.notify", seconds=16)

    def _pause(self, connection: psycopg.Connection[Any], *, job_type: str, seconds: float) -> None:
        until = time.monotonic() + LOOKS_SECONDS
        while time.monotonic() < until and not self._stopping.wait(0.03):
            found = self._at_work(connection, job_type=job_type)
            if found is None or not self._stop_process(found.pid):
                continue
            if connection.execute(STILL_HELD, found.condition).fetchone() is not None:
                self._stopping.wait(seconds)
                self._continue_process(found.pid)
                return
            self._continue_process(found.pid)

    def _at_work(self, connection: psycopg.Connection[Any], *, job_type: str) -> AtWork | None:
        row = connection.execute(AT_WORK, {"job_type": job_type}).fetchone()
        pid = self._pid_of(row[3]) if row is not None else None
        if row is None or pid is None:
            return None
        return AtWork(tenant=row[0], operation=row[1], fence=row[2], pid=pid)

    def freeze_payouts(self, connection: psycopg.Connection[Any]) -> None:
        """The machine under the payout workers stands still: claimed payouts outlive their leases, and nobody takes over."""
        main = json.loads(self._pids.read_text())["payout workers"]
        until = time.monotonic() + LOOKS_SECONDS
        while time.monotonic() < until and not self._stopping.wait(0.03):
            if self._at_work(connection, job_type="payout.send") is None or not self._is_ours(main):
                continue
            frozen = [main, *descendants(main)]
            for pid in frozen:
                self._stop_process(pid)
            self._stopping.wait(32)
            for pid in reversed(frozen):
                self._continue_process(pid)
            return

    # -- kills --------------------------------------------------------------------------------------------------------
    def kill_after_payment(self, connection: psycopg.Connection[Any]) -> None:
        """Type C: the payment is made, its answer never arrives, the worker dies: the next claim has to ask."""
        self._kill_after_effect(connection, server="payments")

    def kill_after_text(self, connection: psycopg.Connection[Any]) -> None:
        """Type D: the text is sent, and the only one who could tell dies."""
        if not self._has_enough_unknown(connection):
            self._kill_after_effect(connection, server="gateway")

    def _kill_after_effect(self, connection: psycopg.Connection[Any], *, server: str) -> None:
        self._plan(server=server, kind="stall", seconds=3)
        until = time.monotonic() + LOOKS_SECONDS
        while time.monotonic() < until and not self._stopping.wait(0.05):
            held = httpx.get(f"{address_of(server)}/control", timeout=2).json()["held"]
            for one in [one for one in held if one["kind"] == "stall"]:
                row = connection.execute(HOLDER, {"tenant": one["tenant"], "operation": one["operation"]}).fetchone()
                pid = self._pid_of(row[0]) if row is not None else None
                if pid is not None:
                    self._signal(pid, signal.SIGKILL)
                    return

    def kill_old_worker(self, connection: psycopg.Connection[Any]) -> None:
        """The old program crashes with items in hand, and is away for a while."""
        pid = json.loads(self._pids.read_text())["old worker"]
        if self._is_ours(pid):
            self._signal(pid, signal.SIGKILL)

    # -- outages ------------------------------------------------------------------------------------------------------
    def silence_payments(self, connection: psycopg.Connection[Any]) -> None:
        """Type C: the call gets no answer and neither does the look-up: unknown, until somebody asks again."""
        if not self._has_enough_unknown(connection):
            self._plan(server="payments", kind="stall", seconds=4)
            self._plan(server="payments", kind="silent", seconds=4)

    def slow_payments(self, connection: psycopg.Connection[Any]) -> None:
        """Type C: the answer comes after the client gave up, while the first call is still under way."""
        self._plan(server="payments", kind="slow", seconds=5)

    def drop_text(self, connection: psycopg.Connection[Any]) -> None:
        """Type D: the text is sent, then the connection breaks: unknown, may have acted."""
        if not self._has_enough_unknown(connection):
            self._plan(server="gateway", kind="drop", seconds=0)

    def slow_posting(self, connection: psycopg.Connection[Any]) -> None:
        """Type B: a posting is under way for longer than its lease; the next claim shuts the door before it."""
        self._plan(server="ledger", kind="slow", seconds=16)

    def _plan(self, *, server: str, kind: str, seconds: float) -> None:
        wanted = {"kind": kind, "times": 1, "seconds": seconds}
        httpx.post(f"{address_of(server)}/control", json=wanted, timeout=2).raise_for_status()

    def _has_enough_unknown(self, connection: psycopg.Connection[Any]) -> bool:
        row = connection.execute("SELECT count(*) FROM work_item WHERE state = 'unknown'").fetchone()
        return row is not None and int(row[0]) >= MOST_UNKNOWN

    # -- processes ----------------------------------------------------------------------------------------------------
    def _pid_of(self, lease_owner: str) -> int | None:
        host, _, rest = lease_owner.partition("/")
        pid = rest.partition("/")[0]
        if host != socket.gethostname() or not pid.isdecimal():
            return None
        return int(pid) if self._is_ours(int(pid)) else None

    def _is_ours(self, pid: int) -> bool:
        return descends(pid, from_pid=self._demo_pid)

    def _stop_process(self, pid: int) -> bool:
        """Pause a process that nobody else of the driver has paused."""
        with self._lock:
            if pid in self._paused or not self._is_ours(pid):
                return False
            self._paused.add(pid)
        self._signal(pid, signal.SIGSTOP)
        return True

    def _continue_process(self, pid: int) -> None:
        self._signal(pid, signal.SIGCONT)
        with self._lock:
            self._paused.discard(pid)

    def _signal(self, pid: int, how: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, how)


def main() -> None:
    FaultDriver(
        database_url=os.environ["FENCEWATCH_SUPERUSER_URL"],
        demo_pid=int(os.environ["FENCEWATCH_DEMO_PID"]),
        pids=Path(os.environ["FENCEWATCH_DEMO_DIR"]) / "pids.json",
    ).run()


if __name__ == "__main__":
    main()
