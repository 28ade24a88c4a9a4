"""Which processes descend from which: the demo touches none but its own."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Relative:
    """A process, its parent, and whether it has ended and waits to be collected."""

    pid: int
    parent: int
    is_zombie: bool


def census() -> dict[int, Relative]:
    """Every process that can be seen right now, by pid."""
    found = _from_proc() if sys.platform.startswith("linux") else _from_ps()
    return {one.pid: one for one in found}


def descendants(of: int) -> list[int]:
    """The pids below a process, parents before their children."""
    everybody = census()
    below = [of]
    for pid in below:  # grows while it is walked
        below += [one.pid for one in everybody.values() if one.parent == pid]
    return below[1:]


def descends(pid: int, *, from_pid: int) -> bool:
    """Whether a process is below another one."""
    everybody = census()
    while (relative := everybody.get(pid)) is not None and relative.parent > 1:
        pid = relative.parent
        if pid == from_pid:
            return True
    return False


def _from_proc() -> list[Relative]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name in parentheses may hold spaces and parentheses itself.
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
        except (OSError, ValueError):
            continue  # it ended meanwhile
        found.append(Relative(pid=int(path.parent.name), parent=int(parent), is_zombie=state == "Z"))
    return found


def _from_ps() -> list[Relative]:
    shown = subprocess.run(["ps", "-axo", "pid=,ppid=,stat="], capture_output=True, text=True, check=True)
    rows = [line.split() for line in shown.stdout.splitlines()]
    return [Relative(pid=int(pid), parent=int(parent), is_zombie=state.startswith("Z")) for pid, parent, state in rows]
