"""Evidence: what a worker that lost its claim still has to say. Kept by the database as a claim, never as an outcome."""

import logging
from collections.abc import Callable
from functools import partial

from django.db import DatabaseError, InterfaceError

from workitems import protocol
from workitems.identifiers import show
from workitems.jobs.work import Work, is_code

log = logging.getLogger(__name__)


def keep_write(work: Work, verb: Callable[..., object]) -> None:
    """Keep the outcome that `verb`, one of the protocol's, would have written under this claim."""
    plain, code = (verb.func, verb.keywords.get("outcome_code")) if isinstance(verb, partial) else (verb, None)
    keep(work, getattr(plain, "__name__", ""), code)


def keep(work: Work, tried: str, code: object = None) -> None:
    """Keep the verb that found no row, and its outcome code if it had one. Failing to do so changes nothing."""
    if not tried:
        return
    try:
        protocol.note_rejected(
            work.claim, tried=tried, outcome_code=str(code) if is_code(code) else None, using=work.using
        )
    except (DatabaseError, InterfaceError) as error:
        log.warning("late evidence on %s was not kept", show(work.claim.op_digest), exc_info=error)
