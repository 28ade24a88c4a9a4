"""Programs that this process starts and ends. Nothing else is ever signalled."""

import contextlib
import ctypes
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

START_SECONDS = 60
PR_SET_PDEATHSIG = 1


class ServerFailed(Exception):
    """A server did not start or stop; the message is one sentence for the person who asked for it."""


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def port_is_taken(port: int) -> bool:
    """Whether another program listens there, or something else keeps us from it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def _tied_to_parent(ending: signal.Signals) -> Callable[[], None] | None:
    if not sys.platform.startswith("linux"):
        return None
    parent = os.getpid()
    prctl = ctypes.CDLL(None).prctl

    def tie() -> None:
        prctl(PR_SET_PDEATHSIG, int(ending), 0, 0, 0)
        if os.getppid() != parent:  # the parent died between fork and prctl
            os._exit(1)

    return tie


def spawn(
    arguments: Sequence[str | Path],
    *,
    log: Path,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    os_user: str | None = None,
    ending: signal.Signals = signal.SIGTERM,
) -> subprocess.Popen[bytes]:
    """Start a program whose output goes to the file ``log``; it gets the signal ``ending`` when this process ends."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            [str(argument) for argument in arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment) if environment is not None else None,
            cwd=folder,
            start_new_session=True,
            preexec_fn=_tied_to_parent(ending),
            **as_user(os_user),
        )


def end(process: subprocess.Popen[bytes], *, how: signal.Signals = signal.SIGTERM, seconds: float = 20) -> None:
    """
    End a spawned program and, if it does not go in time, kill it; what is left of its process group is killed.

    Nothing happens where its end has been seen before: its number may belong to another program by now.
    """
    if process.returncode is not None:
        return
    # Popen's own methods reap; until it is reaped its number, which names the group too, is given to no other program.
    os.kill(process.pid, how)
    # A stopped process acts on nothing but SIGKILL until it is continued.
    os.kill(process.pid, signal.SIGCONT)
    if not _ended(process.pid, seconds=seconds):
        os.kill(process.pid, signal.SIGKILL)
        _ended(process.pid, seconds=5)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(5)


def _ended(pid: int, *, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def as_user(name: str | None) -> dict[str, Any]:
    """Arguments for subprocess that run the program as an OS user and in no group but its own."""
    if name is None:
        return {}
    import pwd

    return {"user": name, "group": pwd.getpwnam(name).pw_gid, "extra_groups": []}


def wheel(name: str) -> Path:
    """Where a wheel lies, without running its code: importing these two makes folders and registers exit handlers."""
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        raise ServerFailed(f"The package {name.replace('_', '-')} is missing; install requirements/demo.txt.")
    return Path(found.origin).parent


def await_answer(process: subprocess.Popen[bytes], answers: Callable[[], bool], *, name: str, log: Path) -> None:
    """Wait until a started server answers; end it and raise ServerFailed if it does not."""
    deadline = time.monotonic() + START_SECONDS
    try:
        while not answers():
            if process.poll() is not None:
                raise ServerFailed(f"{name} did not start: {last_lines(log)} (more in {log}).")
            if time.monotonic() > deadline:
                raise ServerFailed(f"{name} did not answer within {START_SECONDS} seconds; {log} may say why.")
            time.sleep(0.05)
    except BaseException:
        end(process)
        raise


def last_lines(log: Path, *, lines: int = 1) -> str:
    """The end of a log."""
    return "\n".join(log.read_text(errors="replace").strip().splitlines()[-lines:])
