"""What the demo prints: its set-up line by line, who may sign in, and how things stand every few seconds."""

import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

import psycopg

from dashboard.demo.company import PEOPLE, TENANTS
from dashboard.demo.effects import Effects


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """Items by state, and how many of the claimed ones are stalled or lying."""

    by_state: Mapping[str, int]
    stalled: int
    lying: int


def standing(connection: psycopg.Connection) -> Standing:
    """Count the work table. `connection` sees all of it."""
    by_state: dict[str, int] = dict(
        connection.execute("SELECT state, count(*) FROM work_item GROUP BY state").fetchall()
    )
    row = connection.execute(
        "SELECT count(*) FILTER (WHERE w.lease_expires_at < clock_timestamp()),"
        " count(*) FILTER (WHERE w.lease_expires_at >= clock_timestamp() AND NOT w.waiting_in_worker"
        "   AND w.progress_at + make_interval(secs => t.progress_seconds) < clock_timestamp())"
        " FROM work_item w JOIN job_type t ON t.name = w.job_type WHERE w.state = 'claimed' AND w.attempts > 0"
    ).fetchone()
    assert row is not None  # an aggregate always answers
    return Standing(by_state=by_state, stalled=row[0], lying=row[1])


class Console:
    """Writes to a terminal in place, and to anything else line by line."""

    def __init__(self, *, out: TextIO = sys.stdout) -> None:
        self._out = out
        self._is_terminal = out.isatty()
        self._lines_up = 0

    @property
    def every(self) -> float:
        """Seconds between two reports."""
        return 3.0 if self._is_terminal else 10.0

    def say(self, text: str = "") -> None:
        """A line that stays."""
        self._lines_up = 0
        print(text, file=self._out, flush=True)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Tell a step of the set-up and how long it took."""
        started = time.monotonic()
        self.begin(name)
        yield
        self.took(name, seconds=time.monotonic() - started)

    def begin(self, name: str) -> None:
        """Show, on a terminal, what is going on now; `took` ends the line."""
        if self._is_terminal:
            print(f"  {name:<34}", end="", file=self._out, flush=True)

    def took(self, name: str, *, seconds: float) -> None:
        """A step of the set-up is done."""
        start = "" if self._is_terminal else f"  {name:<34}"
        self.say(f"{start}{seconds:6.1f} s")

    def welcome(self, *, url: str, folder: str, passwords: Mapping[str, str]) -> None:
        """The address, and who may sign in."""
        labels = {tenant.tenant_id: tenant.label for tenant in TENANTS}
        rows = [("user", "role", "sees", "password")]
        for person in PEOPLE:
            sees = ", ".join(labels[tenant] for tenant in person.tenants) or "all tenants"
            rows.append((person.username, person.role, sees, passwords[person.username]))
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        self.say()
        self.say(f"Fencewatch runs at {url}")
        self.say()
        for row in rows:
            self.say("  " + "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        self.say()
        self.say(f"Shell exports are in {folder}/env, logs in {folder}/log. Ctrl-C ends it all; the data stays.")
        self.say()

    def report(self, *, now: Standing, effects: Effects) -> None:
        """How things stand: in place on a terminal, as new lines elsewhere."""
        lines = [time.strftime("%H:%M:%S"), *_items(now), _effects(effects), _texts(effects)]
        lines = [f"{lines[0]}  {lines[1]}", *(f"  {line}" for line in lines[2:])]
        if self._is_terminal:
            if self._lines_up:
                print(f"\x1b[{self._lines_up}A", end="", file=self._out)
            width = shutil.get_terminal_size().columns
            lines = [line[: width - 1] + "\x1b[K" for line in lines]
        print("\n".join(lines), file=self._out, flush=True)
        self._lines_up = len(lines)


def _items(now: Standing) -> tuple[str, str]:
    """Two lines: what machines are at, and what they are not at any more."""

    def of(*states: str) -> str:
        return "  ".join(f"{state.removesuffix('_terminal')} {now.by_state.get(state, 0)}" for state in states)

    in_hand = f"{of('queued', 'claimed')} ({now.stalled} stalled, {now.lying} lying)"
    return f"{in_hand}  {of('succeeded')}", of("failed_terminal", "unknown", "quarantined")


def _effects(effects: Effects) -> str:
    tallies = {"A": effects.refunds, "B": effects.postings, "C": effects.payouts}
    each = "  ".join(f"{target} {tally.effects}/{tally.identities}" for target, tally in tallies.items())
    verdict = f"duplicates {effects.duplicates}" + ("  <- MUST BE 0" if effects.duplicates else "")
    return f"effects/identities  {each}  {verdict}"


def _texts(effects: Effects) -> str:
    texts = effects.texts
    return f"D {texts.effects} texts for {texts.identities} identities; not fenced, at most one attempt per decision"
