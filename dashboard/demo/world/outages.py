"""Outages that the fault driver plans at a server of the outside world, and that the next requests then meet."""

import threading
import time
from collections import deque
from dataclasses import asdict, dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """A request whose effect is on record and whose answer is being held back."""

    tenant: str
    operation: str
    kind: str


class Outages:
    """Planned outages by kind, each met once, in the order in which they were planned."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._planned: dict[str, deque[float]] = {}
        self._held: list[Held] = []
        self._cleared = 0

    def plan(self, *, kind: str, times: int, seconds: float) -> None:
        """Let the next `times` requests that ask for `kind` meet it for `seconds`."""
        with self._changed:
            self._planned.setdefault(kind, deque()).extend([seconds] * times)

    def take(self, *, kind: str) -> float | None:
        """The seconds of the next planned outage of this kind, which is used up by that; None when none is planned."""
        with self._changed:
            planned = self._planned.get(kind)
            return planned.popleft() if planned else None

    def hold(self, *, seconds: float, held: Held) -> None:
        """Keep one answer back for `seconds`, or until the outages are cleared."""
        until = time.monotonic() + seconds
        with self._changed:
            self._held.append(held)
            cleared = self._cleared
            self._changed.wait_for(lambda: self._cleared != cleared, timeout=max(0.0, until - time.monotonic()))
            self._held.remove(held)

    def clear(self) -> None:
        """Drop what is planned and let every held answer go."""
        with self._changed:
            self._planned.clear()
            self._cleared += 1
            self._changed.notify_all()

    def report(self) -> dict[str, object]:
        """What is planned and which answers are held back, for the fault driver."""
        with self._changed:
            return {
                "planned": {kind: len(planned) for kind, planned in self._planned.items() if planned},
                "held": [asdict(held) for held in self._held],
            }
