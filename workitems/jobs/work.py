"""Work: what a handler holds while it works on one claim. It knows whether the claim is still its own, and whether it began."""

import hashlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from django.db import connections

from workitems import protocol
from workitems.errors import FencewatchError, OwnershipLost, Terminal
from workitems.jobs import payloads
from workitems.jobs.definition import JobType
from workitems.jobs.payloads import NotUnderstood, PayloadStore
from workitems.protocol import Claim
from workitems.states import Target

KEY_LABEL = b"fencewatch/key/1"
_KIND = re.compile(r"[^A-Za-z0-9_.:-]")
_CODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}")


class InDoubt(FencewatchError):
    """The target's answer does not say whether the effect happened: reconcile, else park. Never retried blindly."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"in doubt: {kind}")
        self.kind = kind


class BadHandler(FencewatchError):
    """A handler broke a rule of its target type; the message says which. After `begin` this leaves the outcome in doubt."""


class PayloadRefused(FencewatchError):
    """The payload was not understood with confidence; the worker quarantines the item."""

    def __init__(self, fault: NotUnderstood) -> None:
        super().__init__(f"payload refused: {fault.reason}")
        self.fault = fault


class Work:
    """One claim, as its handler and its reconciler see it.

    Whoever holds a `Work` must treat `OwnershipLost` as the end: stop at once, retry nothing.
    """

    def __init__(
        self,
        claim: Claim,
        job: JobType,
        *,
        store: PayloadStore,
        using: str = "worker",
        deadline: float | None = None,
        moved_on: Callable[[], None] | None = None,
    ) -> None:
        self.claim = claim
        self.job = job
        self.using = using
        self.has_begun = False
        self.is_lost = False
        self.lost_at = ""  # the verb whose write found no row; empty while none did
        # On this host's monotonic clock: from when on the provider may have forgotten the key that was looked up.
        self.act_before: float | None = None
        self._store = store
        self._deadline = claim.deadline if deadline is None else deadline
        self._mark = self._first_mark = 0
        self._moved_on = moved_on
        self._payload: Mapping[str, Any] | NotUnderstood | None = None

    def __repr__(self) -> str:
        return f"<Work {self.claim!r}>"

    @property
    def tenant_id(self) -> str:
        """The raw tenant id: for the target, never for a log."""
        return self.claim.tenant_id

    @property
    def operation_id(self) -> str:
        """The raw operation id: for the target, never for a log."""
        return self.claim.operation_id

    @property
    def fence(self) -> int:
        """The number that every write at the target has to carry."""
        return self.claim.fence

    @property
    def identity_key(self) -> str:
        """64 hexadecimal digits that stand for (tenant, operation) at a target: the same for every attempt, for ever.

        SHA-256 over length-prefixed parts. Not under the tenant's key: rotating that would change the key at the
        provider, and with it undo the provider's dedupe.
        """
        parts = (self.claim.tenant_id.encode(), self.claim.operation_id.encode())
        message = KEY_LABEL + b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hashlib.sha256(message).hexdigest()

    @property
    def payload(self) -> Mapping[str, Any]:
        """The parsed payload: exactly the approved bytes, of a known version, valid by its schema.

        Raises: PayloadRefused, which the worker turns into quarantine; let it pass.
        """
        if self._payload is None:
            body = self._store.get(tenant_id=self.claim.tenant_id, payload_ref=self.claim.payload_ref)
            self._payload = payloads.check(body=body, payload_hash=self.claim.payload_hash, schemas=self.job.schema)
        if isinstance(self._payload, NotUnderstood):
            raise PayloadRefused(self._payload)
        return self._payload

    def take_turn(self, *, in_batch: bool) -> None:
        """Make sure that the claim is still held before its handler starts; a batch-mate says so, and waits no longer.

        Raises: OwnershipLost.
        """
        self._still_mine()
        if in_batch:
            with self._ends_on_loss("heartbeat"):
                self._deadline = protocol.heartbeat(self.claim, progress=1, using=self.using)
            self._mark = self._first_mark = 1

    def begin(self) -> None:
        """Stamp, durably, that an outside effect may start now. Call it right before the first byte goes out.

        Raises: OwnershipLost: do not act. BadHandler for type A, which has no outside effect, and for a second begin of
        a type D, which has one call, and for a type C once the window of a key that was looked up is over.
        """
        if self.job.target == Target.A:
            raise BadHandler(
                "a type A handler has no outside effect to begin; write in this transaction, or change the target."
            )
        if self.job.target == Target.D and self.has_begun:
            raise BadHandler("a type D handler makes one call per claim; a second one is a person's decision.")
        if self.act_before is not None and time.monotonic() >= self.act_before:
            raise BadHandler("the key's window went by since the look-up; the next claim asks again.")
        self._still_mine()
        with self._ends_on_loss("begin"):
            # Set first: when the answer to the stamp is lost, it may stand, and doubt is the safe side.
            self.has_begun = True
            protocol.begin(self.claim, using=self.using)

    def heartbeat(self, progress: int) -> bool:
        """Extend the lease because work moved on; `progress` rises, and starts at 1.

        Returns False, extending nothing, when it did not rise: a loop that turns without moving on lets its lease lapse.
        Raises: OwnershipLost. BadHandler for type A, whose lock holds others off until its transaction ends.
        """
        if self.job.target == Target.A:
            raise BadHandler("a type A handler sends no heartbeat: its row lock keeps others off until it commits.")
        self._still_mine()
        mark = progress + self._first_mark
        if mark <= self._mark:
            return False
        with self._ends_on_loss("heartbeat"):
            self._deadline = protocol.heartbeat(self.claim, progress=mark, using=self.using)
        self._mark = mark
        if self._moved_on is not None:
            self._moved_on()
        return True

    @contextmanager
    def effect(self) -> Iterator[None]:
        """Stamp `begin`, then let the block act at the target. What the block raises leaves the outcome in doubt.

        Only Terminal, a confirmed final answer, and OwnershipLost, a target's refusal of this fence, pass as they are.
        Raises: InDoubt for everything else, named by the kind of what went wrong.
        """
        self.begin()
        try:
            yield
        except (Terminal, InDoubt):
            raise
        except OwnershipLost:
            self.is_lost = True
            raise
        except Exception as error:
            raise InDoubt(kind_of(error)) from error

    def seconds_left(self) -> float:
        """How much of the lease is left on this host's monotonic clock; never more than the database grants."""
        return self._deadline - time.monotonic()

    def _still_mine(self) -> None:
        if self.is_lost or self.seconds_left() <= 0:
            self.is_lost = True
            raise OwnershipLost
        if self.job.target != Target.A and connections[self.using].in_atomic_block:
            raise BadHandler(
                "an outside effect inside a database transaction: its stamp would not be durable; end it first."
            )

    @contextmanager
    def _ends_on_loss(self, tried: str) -> Iterator[None]:
        try:
            yield
        except OwnershipLost:
            self.is_lost = True
            self.lost_at = tried
            raise


def is_code(code: object) -> bool:
    """Whether this may stand on record as an outcome code: 1 to 100 characters of A-Z, a-z, 0-9 and _.:-"""
    return isinstance(code, str) and _CODE.fullmatch(code) is not None


def kind_of(error: BaseException) -> str:
    """What went wrong, in a word fit for an outcome code: a class name, never a message."""
    kind = error.kind if isinstance(error, InDoubt) else type(error).__name__
    return _KIND.sub("_", kind)[:80]
