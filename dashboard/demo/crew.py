"""The programs that the demo runs: started with their own group, started again when they end, and gone at the end."""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dashboard import servers
from dashboard.demo.family import census, descendants

ROOT = Path(__file__).resolve().parent.parent.parent
PR_SET_CHILD_SUBREAPER = 36
END_SECONDS = 6.0


@dataclass(frozen=True, kw_only=True)
class Program:
    """One program: this Python with `arguments`. `rests` is how many seconds pass before it is started again."""

    name: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    rests: float = 2.0
    ending: signal.Signals = signal.SIGTERM


class Crew:
    """The running programs. Their pids stand in `pids.json` below the folder, for the fault driver."""

    def __init__(self, *, folder: Path) -> None:
        self._folder = folder
        self._programs: dict[str, Program] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._due: dict[str, float] = {}
        become_subreaper()

    def start(self, program: Program) -> None:
        """Start a program; its output goes to log/<name>.log."""
        self._programs[program.name] = program
        self._processes[program.name] = servers.spawn(
            [sys.executable, *program.arguments],
            log=self.log_of(program.name),
            environment=program.environment,
            folder=ROOT,
            ending=program.ending,
        )
        self._note_pids()

    def log_of(self, name: str) -> Path:
        return self._folder / "log" / f"{name.replace(' ', '-')}.log"

    def process(self, name: str) -> subprocess.Popen[bytes]:
        return self._processes[name]

    def mind(self) -> list[str]:
        """Start again what ended, after its rest. Returns the names of those that ended just now."""
        now = time.monotonic()
        ended = []
        for name, process in self._processes.items():
            if process.poll() is None:
                continue
            if name not in self._due:
                ended.append(name)
                self._due[name] = now + self._programs[name].rests
        for name in [name for name, due in self._due.items() if now >= due]:
            del self._due[name]
            self.start(self._programs[name])
        reap_strangers(known={process.pid for process in self._processes.values()})
        return ended

    def stop(self) -> None:
        """End every program and whatever they left behind: first all are asked, then each one is waited for."""
        for process in self._processes.values():
            if process.poll() is None:
                signal_group(process.pid, signal.SIGCONT)
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()
        until = time.monotonic() + END_SECONDS
        for process in self._processes.values():
            servers.end(process, seconds=max(0.1, until - time.monotonic()))

    def _note_pids(self) -> None:
        noted = {name: process.pid for name, process in self._processes.items()}
        new = self._folder / "pids.json.new"
        new.write_text(json.dumps(noted))
        new.replace(self._folder / "pids.json")


def become_subreaper() -> None:
    """Let orphans below this process come to it instead of to init, so that none is missed at the end (Linux only)."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_strangers(*, known: set[int]) -> None:
    """Collect orphans that ended. Those started here belong to their Popen objects and are left alone."""
    for one in census().values():
        if one.parent == os.getpid() and one.is_zombie and one.pid not in known:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(one.pid, os.WNOHANG)


def kill_descendants(*, spare: set[int]) -> None:
    """Kill whatever still runs below this process, apart from `spare`."""
    until = time.monotonic() + 3
    while left := [pid for pid in descendants(os.getpid()) if pid not in spare]:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        reap_strangers(known=spare)
        if time.monotonic() > until:
            return
        time.sleep(0.05)


def signal_group(pid: int, how: signal.Signals) -> None:
    """Send a signal to a program and those of its children that stayed in its group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, how)
