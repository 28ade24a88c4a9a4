"""Worker: takes claims and sees each one to an outcome, in doubt or not. Nothing here retries an effect."""

import logging
import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from django.db import DatabaseError, InterfaceError, OperationalError, connections

from workitems import protocol
from workitems.errors import JobTypesDiffer, OwnershipLost, Terminal
from workitems.identifiers import show
from workitems.jobs import agreement, evidence
from workitems.jobs.definition import JobType
from workitems.jobs.payloads import NotUnderstood, PayloadStore, PostgresPayloads
from workitems.jobs.reconcile import ask, cannot_tell
from workitems.jobs.targets.same_database import fenced_transaction
from workitems.jobs.work import BadHandler, PayloadRefused, Work, is_code, kind_of
from workitems.protocol import Claim
from workitems.states import Target, Verdict

log = logging.getLogger(__name__)

_names: dict[int, str] = {}
_BROKEN_CONNECTION = ("08", "57P0")  # how such SQLSTATEs begin; those that the client itself notices have none


class Ended(StrEnum):
    """How this worker's hold on a claim ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    RELEASED = "released"
    PARKED = "parked"
    QUARANTINED = "quarantined"
    LOST = "lost"  # a newer claim exists, or the item moved on: nothing was written
    LEFT = "left"  # the lease is left to run out: the next claim, with a higher fence, asks and acts


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """One claim and how it ended."""

    claim: Claim
    ended: Ended


def worker_name() -> str:
    """`<hostname>/<pid>/<8 hex>`: this process as lease owner. A forked child gets a name of its own."""
    pid = os.getpid()
    if pid not in _names:
        _names.clear()
        _names[pid] = f"{socket.gethostname()[:150]}/{pid}/{secrets.token_hex(4)}"
    return _names[pid]


def never() -> bool:
    """The stop flag of a loop that nobody stops."""
    return False


def run_one(
    job: JobType, *, worker: str | None = None, store: PayloadStore | None = None, using: str = "worker"
) -> Ran | None:
    """Claim one item of a job type and see it to an outcome. None: nothing is due.

    Raises: JobTypesDiffer when code and table disagree on the job type; django.db.Error when the database is away.
    """
    ran = run_batch(job, limit=1, worker=worker, store=store, using=using)
    return ran[0] if ran else None


def run_batch(
    job: JobType,
    *,
    limit: int | None = None,
    worker: str | None = None,
    store: PayloadStore | None = None,
    using: str = "worker",
    stop: Callable[[], bool] = never,
) -> list[Ran]:
    """Claim up to the job type's batch and see each claim to an outcome, one after the other.

    Mates whose turn has not come are extended as work moves on, and given back when `stop` says so. Type D comes alone.
    """
    agreement.require(job, using=using)
    size = 1 if job.target == Target.D else min(job.batch, limit or job.batch)
    claims = protocol.claim(job_type=job.name, worker=worker or worker_name(), limit=size, using=using)
    waiting = Waiting(claims, using=using)
    ran: list[Ran] = []
    while waiting and not stop():
        claim, deadline = waiting.next()
        work = Work(
            claim, job, store=store or PostgresPayloads(using), using=using, deadline=deadline, moved_on=waiting.extend
        )
        ended = Ended.LOST if not _its_turn(work, in_batch=size > 1) else see_to(work)
        _tell(claim, ended)
        ran.append(Ran(claim=claim, ended=ended))
        waiting.extend()
    return ran + waiting.give_back()


def work_until_idle(
    job_types: Iterable[JobType],
    *,
    seconds: float,
    worker: str | None = None,
    store: PayloadStore | None = None,
    using: str = "worker",
    stop: Callable[[], bool] = never,
) -> Counter[Ended]:
    """Claim in turn from each job type until nothing is due, `seconds` have passed or `stop` says so.

    A job type on which code and table disagree is left alone and named in the log; the others go on.
    """
    ends_at = time.monotonic() + seconds
    counted: Counter[Ended] = Counter()
    due = list(job_types)
    while due:
        for job in tuple(due):
            if stop() or time.monotonic() >= ends_at:
                return counted
            try:
                ran = run_batch(job, worker=worker, store=store, using=using, stop=stop)
            except JobTypesDiffer as error:
                log.error("%s", error)
                ran = []
            counted.update(one.ended for one in ran)
            if not ran:
                due.remove(job)
    return counted


class Waiting:
    """The claims of a batch whose turn has not come."""

    def __init__(self, claims: Iterable[Claim], *, using: str) -> None:
        self._using = using
        self._deadlines = {claim: claim.deadline for claim in claims}
        self._extended_at = time.monotonic()

    def __bool__(self) -> bool:
        return bool(self._deadlines)

    def next(self) -> tuple[Claim, float]:
        """The next claim, and until when it is surely held."""
        claim = next(iter(self._deadlines))
        return claim, self._deadlines.pop(claim)

    def extend(self) -> None:
        """Extend those who wait once a third of a lease is gone; drop whoever was lost in the meantime."""
        now = time.monotonic()
        if not self._deadlines or now - self._extended_at < min(c.lease_seconds for c in self._deadlines) / 3:
            return
        try:
            kept = protocol.extend_waiting(list(self._deadlines), using=self._using)
        except (OperationalError, InterfaceError) as error:
            log.warning("waiting claims not extended", exc_info=error)
            return
        for claim in set(self._deadlines) - kept:
            _tell(claim, Ended.LOST)
        self._deadlines = {claim: now + claim.lease_seconds for claim in self._deadlines if claim in kept}
        self._extended_at = now

    def give_back(self) -> list[Ran]:
        """Release all who still wait, without holding the attempt against them."""
        claims = list(self._deadlines)
        self._deadlines.clear()
        states = protocol.release_many(claims, waiting=True, using=self._using) if claims else []
        return [
            Ran(claim=claim, ended=Ended.RELEASED if state else Ended.LOST)
            for claim, state in zip(claims, states, strict=True)
        ]


def _its_turn(work: Work, *, in_batch: bool) -> bool:
    try:
        work.take_turn(in_batch=in_batch)
    except OwnershipLost:
        return False
    return True


def see_to(work: Work) -> Ended:
    """Reconcile where an earlier claim may have acted, check the payload, run the handler, write the outcome."""
    try:
        if work.claim.must_reconcile:
            ended = _reconcile_first(work)
            if ended is not None:
                return ended
        _ = work.payload
        return _in_transaction(work) if work.job.target == Target.A else _outside(work)
    except OwnershipLost:
        evidence.keep(work, work.lost_at)
        return Ended.LOST
    except PayloadRefused as refused:
        return _quarantine(work, refused.fault)
    except Exception as error:  # noqa: BLE001 - every kind of failure is a doubt or a release
        return _after(error, work)


def _reconcile_first(work: Work) -> Ended | None:
    if work.job.reconcile is None:
        return _write(work, partial(protocol.park, outcome_code="no_reconciler"), Ended.PARKED)
    answer = ask(work.job.reconcile, work)
    if answer.verdict == Verdict.HAPPENED:
        return _write(work, partial(protocol.complete, outcome_code=answer.outcome_code), Ended.COMPLETED)
    if answer.verdict == Verdict.CANNOT_TELL:
        return _write(work, partial(protocol.park, outcome_code="cannot_tell"), Ended.PARKED)
    return None


def _in_transaction(work: Work) -> Ended:
    with fenced_transaction(work.claim, using=work.using):
        code = _code(work.job.handler(work))
        protocol.complete(work.claim, outcome_code=code, using=work.using)
    return Ended.COMPLETED


def _outside(work: Work) -> Ended:
    code = _code(work.job.handler(work))
    if work.is_lost:  # the handler caught OwnershipLost and went on
        evidence.keep(work, "complete", code)
        return Ended.LOST
    if work.job.target == Target.D and not work.has_begun:
        # Without a stamp nobody can say whether the one call was made.
        return _write(work, partial(protocol.park, outcome_code="returned_without_begin"), Ended.PARKED)
    return _write(work, partial(protocol.complete, outcome_code=code), Ended.COMPLETED)


def _code(code: object) -> str:
    if is_code(code):
        return str(code)
    raise BadHandler("an outcome code is 1 to 100 characters of A-Z, a-z, 0-9 and _.:-, and names no person or item.")


def _after(error: Exception, work: Work) -> Ended:
    """Default to doubt: only an explicit Terminal fails; what had begun is reconciled or parked, the rest released."""
    if work.is_lost:
        evidence.keep(work, work.lost_at)
        return Ended.LOST
    if isinstance(error, Terminal) and is_code(error.outcome_code):
        if _door_is_open(work):
            code = f"ambiguous:{error.outcome_code}"[:100]
            return _write(work, partial(protocol.park, outcome_code=code), Ended.PARKED)
        return _write(work, partial(protocol.fail, outcome_code=error.outcome_code), Ended.FAILED)
    log.warning("%s of %s raised", show(work.claim.op_digest), work.job.name, exc_info=error)
    if not work.has_begun:
        return _write(work, protocol.release, Ended.RELEASED)
    if work.job.reconcile is None:
        return _write(work, partial(protocol.park, outcome_code=f"ambiguous:{kind_of(error)}"), Ended.PARKED)
    try:
        answer = ask(work.job.reconcile, work)
    except OwnershipLost:
        return Ended.LOST
    except DatabaseError as failed:
        log.warning("the answer on %s is not on record", show(work.claim.op_digest), exc_info=failed)
        answer = cannot_tell()
    match answer.verdict:
        case Verdict.HAPPENED:
            return _write(work, partial(protocol.complete, outcome_code=answer.outcome_code), Ended.COMPLETED)
        case Verdict.DID_NOT_HAPPEN:
            # This claim's own write may still be under way, and its own fence does not close the door to it.
            return Ended.LEFT
        case Verdict.CANNOT_TELL:
            return _write(work, partial(protocol.park, outcome_code=f"ambiguous:{kind_of(error)}"), Ended.PARKED)


def _door_is_open(work: Work) -> bool:
    """Type C: an earlier call may still land after a look that found nothing, so nothing final may be said of the item.

    The key makes a redrive harmless, not an end. A 422 may even be the answer to another payload under a key that acted.
    """
    return work.job.target == Target.C and work.claim.must_reconcile


def _quarantine(work: Work, fault: NotUnderstood) -> Ended:
    if work.has_begun or _door_is_open(work):
        return _write(work, partial(protocol.park, outcome_code=f"ambiguous:{fault.reason}"), Ended.PARKED)
    return _write(work, partial(protocol.quarantine, reason=fault.reason, detail=fault.detail), Ended.QUARANTINED)


def _write(work: Work, verb: Callable[..., object], ended: Ended) -> Ended:
    """Write an outcome under the claim's condition. A write that finds no row is never tried again.

    A broken connection is another matter: the statement may not have arrived, and its condition makes a second one
    harmless. What the database itself answered, such as its guard's refusal, is final: the lease is left to run out.
    """
    for attempt in (1, 2):
        try:
            verb(work.claim, using=work.using)
        except OwnershipLost:
            evidence.keep_write(work, verb)
            return Ended.LOST
        except (OperationalError, InterfaceError) as error:
            if not (getattr(error.__cause__, "sqlstate", None) or "08").startswith(_BROKEN_CONNECTION):
                log.error("the database refused the outcome of %s", show(work.claim.op_digest), exc_info=error)
                return Ended.LEFT
            log.warning("outcome of %s not written, attempt %d", show(work.claim.op_digest), attempt, exc_info=error)
            with suppress(Exception):
                connections[work.using].close()
        else:
            return ended
    return Ended.LEFT


_LEVELS = {Ended.COMPLETED: logging.DEBUG, Ended.LOST: logging.WARNING, Ended.LEFT: logging.WARNING}


def _tell(claim: Claim, ended: Ended) -> None:
    log.log(_LEVELS.get(ended, logging.INFO), "%s %s under fence %d", show(claim.op_digest), ended, claim.fence)
