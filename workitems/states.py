"""The words that every room shares: states, target types, side-effect classes, reasons, and who owns the next step."""

from enum import StrEnum

LEGACY = "legacy"
"""The job type of rows that came without one."""


class State(StrEnum):
    """Where a work item stands. The article's six states; no others exist."""

    QUEUED = "queued"
    CLAIMED = "claimed"
    SUCCEEDED = "succeeded"
    FAILED_TERMINAL = "failed_terminal"
    UNKNOWN = "unknown"
    QUARANTINED = "quarantined"


class Target(StrEnum):
    """What performs the side effect, by what it can enforce (the article's four target types)."""

    A = "A"
    B = "B"
    C = "C"
    D = "D"


class SideEffect(StrEnum):
    """What a duplicate would cost."""

    REVERSIBLE = "reversible"
    IDEMPOTENT = "idempotent"
    IRREVERSIBLE = "irreversible"


class QuarantineReason(StrEnum):
    """Why an input was not understood with confidence. A closed list: anything else is not quarantine."""

    HASH_MISMATCH = "hash_mismatch"
    UNPARSEABLE = "unparseable"
    UNKNOWN_VERSION = "unknown_version"
    UNKNOWN_JOB_TYPE = "unknown_job_type"
    SCHEMA_INVALID = "schema_invalid"
    PAYLOAD_MISSING = "payload_missing"
    HANDLER_REFUSED = "handler_refused"


class Verdict(StrEnum):
    """What the authoritative system answered when it was asked by operation identity."""

    HAPPENED = "happened"
    DID_NOT_HAPPEN = "did_not_happen"
    CANNOT_TELL = "cannot_tell"


TARGET_NAME: dict[Target, str] = {
    Target.A: "same database",
    Target.B: "conditional store",
    Target.C: "idempotent API",
    Target.D: "plain external system",
}

HONEST_CLAIM: dict[Target, str] = {
    Target.A: "A stale worker cannot commit its write: the effect and the completion are one commit, under this fence.",
    Target.B: "Writes with a lower fence are rejected by the store itself.",
    Target.C: "Duplicates are dropped as the provider defines it, within its key window. Dedupe, not fencing.",
    Target.D: "At most one attempt per person's decision. Not fenced; never exactly once.",
}


def next_owner(state: State, *, owner: str, producer_team: str, system_owner: str) -> str:
    """Who owns the next step of an item in `state`, given its job type's people. Source: the article's outcome table."""
    match state:
        case State.QUEUED | State.CLAIMED:
            return "the worker tier"
        case State.FAILED_TERMINAL:
            return f"{owner} (service owner)"
        case State.UNKNOWN:
            return f"on-call, with {system_owner}"
        case State.QUARANTINED:
            return f"{producer_team} (producer team)"
        case State.SUCCEEDED:
            return "nobody"
