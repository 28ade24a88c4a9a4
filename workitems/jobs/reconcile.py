"""Reconcile: ask the authoritative system, by operation identity, whether an earlier effect happened."""

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from workitems import protocol
from workitems.errors import OwnershipLost
from workitems.identifiers import show
from workitems.jobs.definition import Reconciler
from workitems.jobs.payloads import run
from workitems.jobs.work import Work, is_code, kind_of
from workitems.states import Target, Verdict

log = logging.getLogger(__name__)

_EVIDENCE_CHARS = 4_000

type Evidence = Mapping[str, str | int | float | bool | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What the system said: the verdict, the outcome code of an effect that happened, and on what it rests.

    Evidence holds facts that identify nobody: a status, a count, a provider's own reference; no identifier, no payload.
    """

    verdict: Verdict
    outcome_code: str = ""
    evidence: Evidence = field(default_factory=dict)


def happened(outcome_code: str, **evidence: str | int | float | bool | None) -> Answer:
    """The effect is there; the item is complete with this outcome code."""
    return Answer(verdict=Verdict.HAPPENED, outcome_code=outcome_code, evidence=evidence)


def did_not_happen(**evidence: str | int | float | bool | None) -> Answer:
    """The effect is not there, and no earlier write can land any more: the door was closed before the look."""
    return Answer(verdict=Verdict.DID_NOT_HAPPEN, evidence=evidence)


def cannot_tell(**evidence: str | int | float | bool | None) -> Answer:
    """No confident answer: the item waits as unknown for a person."""
    return Answer(verdict=Verdict.CANNOT_TELL, evidence=evidence)


def ask(reconciler: Reconciler, work: Work) -> Answer:
    """Run a job type's reconciler and put its verdict on record under this claim.

    A reconciler that fails cannot tell. A type C look-up that finds nothing proves nothing once the provider may have
    forgotten the key: that cannot tell either.
    Raises: OwnershipLost.
    Source: design, section 3, rules 6 and 7; the article, "How should I handle a timeout".
    """
    answer = _within_key_window(_asked(reconciler, work), work)
    protocol.note_reconcile(
        work.claim, verdict=answer.verdict, evidence=_fit_for_record(answer.evidence, work), using=work.using
    )
    return answer


def _asked(reconciler: Reconciler, work: Work) -> Answer:
    try:
        answer: object = reconciler(work)
    except OwnershipLost:
        raise
    except Exception as error:
        log.warning("reconciler of %s failed on %s", work.job.name, show(work.claim.op_digest), exc_info=error)
        return cannot_tell(error=kind_of(error))
    if not isinstance(answer, Answer):
        return cannot_tell(error="reconciler returned no Answer")
    if answer.verdict == Verdict.HAPPENED and not is_code(answer.outcome_code):
        return cannot_tell(error="reconciler named no outcome code")
    return answer


def _within_key_window(answer: Answer, work: Work) -> Answer:
    key, first = work.job.key, work.claim.window_from
    if answer.verdict != Verdict.DID_NOT_HAPPEN or work.job.target != Target.C or key is None:
        return answer
    if first is None and not work.claim.must_reconcile:  # asked after this claim's own begin
        return answer
    if first is None:
        return cannot_tell(**{**answer.evidence, "key_window": "unknown"})
    asked_at = time.monotonic()
    with run("seconds_since", {"moment": first}, using=work.using) as cursor:
        age = cursor.fetchone()[0]
    # The next call has to reach the provider within the window too, so this claim's lease comes off it.
    left = key.window.total_seconds() - age
    if left > work.claim.lease_seconds:
        work.act_before = asked_at + left
        return answer
    return cannot_tell(**{**answer.evidence, "key_window": "over", "seconds_since_first_effect": round(age)})


def _fit_for_record(evidence: Evidence, work: Work) -> Mapping[str, Any]:
    """The evidence, unless it holds an identifier of the item or more than the record takes."""
    try:
        text = json.dumps(dict(evidence), ensure_ascii=False, allow_nan=False)
        text.encode()
    except UnicodeEncodeError:
        return {"withheld": "the evidence is not text"}
    except (TypeError, ValueError):
        return {"withheld": "the evidence is no plain JSON"}
    if "\\u0000" in text:  # jsonb holds no NUL, and the verdict must not be lost with it
        return {"withheld": "the evidence is not text"}
    if len(json.dumps(dict(evidence))) > _EVIDENCE_CHARS:
        return {"withheld": "the evidence is too long"}
    secrets = (work.claim.tenant_id, work.claim.operation_id, work.claim.payload_ref)
    if any(json.dumps(secret, ensure_ascii=False)[1:-1] in text for secret in secrets):
        return {"withheld": "the evidence held an identifier"}
    return dict(evidence)
