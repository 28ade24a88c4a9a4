"""When the demo's programs do what: often at first, so that the pages fill, then at a pace for days."""

import random
import time
from dataclasses import dataclass, field

EASES_OFF_AFTER = 600.0  # seconds
EASED = 4.0


@dataclass(kw_only=True)
class Turn:
    """Something that is due `first` seconds after the start, and then about every `every` seconds."""

    first: float
    every: float
    _due: float = field(init=False)
    _started: float = field(init=False)

    def __post_init__(self) -> None:
        self._started = time.monotonic()
        self._due = self._started + self.first

    def is_due(self) -> bool:
        """Whether its time has come; asking uses the turn up."""
        now = time.monotonic()
        if now < self._due:
            return False
        slower = EASED if now - self._started > EASES_OFF_AFTER else 1.0
        self._due = now + self.every * slower * random.uniform(0.8, 1.2)
        return True
