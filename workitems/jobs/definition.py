"""Job type: what one kind of work is, who owns what becomes of it, and which limits it runs under."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from workitems.states import SideEffect, Target

if TYPE_CHECKING:
    from workitems.jobs.reconcile import Answer
    from workitems.jobs.work import Work

type Handler = Callable[[Work], str]
type Reconciler = Callable[[Work], Answer]
type JsonSchema = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyRecord:
    """What a type C provider promises about idempotency keys, who read it where, and until when that reading counts."""

    window: timedelta  # how long the provider remembers a key, from its first use
    scope: str  # within what a key is unique: account, endpoint, ...
    mismatch: str  # what another payload under the same key gets
    source: str  # where the provider says so
    verified_on: date
    verified_by: str
    expires_on: date  # read it again before this day


@dataclass(frozen=True, kw_only=True)
class JobType:
    """One job type as its decorator checked it. Calling it runs the handler, which is how handlers are unit-tested.

    All durations are whole seconds. `lease`: how long others keep off without a heartbeat. `progress`: the longest
    honest silence of the work loop; longer, and the item shows as lying. `backoff`: the first wait after a release; it
    doubles. `answer_valid`: how long a reconcile's answer may be acted on. `settle`: how long after the last effect
    stamp a person's verdict has to wait.
    """

    name: str
    target: Target
    side_effect: SideEffect
    owner: str
    producer_team: str
    system_owner: str
    lease: int
    progress: int
    max_attempts: int
    attempts_ceiling: int
    auto_redrives: int
    backoff: int
    answer_valid: int
    settle: int
    foreign_claims: bool
    batch: int
    no_reconciler_because: str
    schema: Mapping[int, JsonSchema]
    key: KeyRecord | None
    handler: Handler = field(repr=False)
    reconcile: Reconciler | None = field(repr=False)

    def __call__(self, work: "Work") -> str:
        return self.handler(work)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the definition as canonical JSON: of what it promises, not of the handler's code."""
        definition = {**self.row, "batch": self.batch, "schema": {str(v): self.schema[v] for v in self.schema}}
        canonical = json.dumps(
            definition, sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=date.isoformat
        )
        return hashlib.sha256(canonical.encode()).hexdigest()

    @cached_property
    def row(self) -> Mapping[str, Any]:
        """The columns of the job_type table that the definition decides, but for its fingerprint."""
        return {
            "name": self.name,
            "target": str(self.target),
            "side_effect": str(self.side_effect),
            "owner": self.owner,
            "producer_team": self.producer_team,
            "system_owner": self.system_owner,
            "lease_seconds": self.lease,
            "progress_seconds": self.progress,
            "max_attempts": self.max_attempts,
            "attempts_ceiling": self.attempts_ceiling,
            "auto_redrives": self.auto_redrives,
            "backoff_seconds": self.backoff,
            "answer_valid_seconds": self.answer_valid,
            "settle_seconds": self.settle,
            "reconciles": self.reconcile is not None,
            "no_reconciler_because": self.no_reconciler_because,
            "foreign_claims": self.foreign_claims,
            "key_window_seconds": int(self.key.window.total_seconds()) if self.key else None,
            "key_scope": self.key.scope if self.key else "",
            "key_mismatch": self.key.mismatch if self.key else "",
            "key_source": self.key.source if self.key else "",
            "key_verified_on": self.key.verified_on if self.key else None,
            "key_verified_by": self.key.verified_by if self.key else "",
            "key_expires_on": self.key.expires_on if self.key else None,
        }
