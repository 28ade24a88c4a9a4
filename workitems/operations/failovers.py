"""Failovers that lost nothing: proposed by one person with evidence, confirmed by another. The database decides."""

from dataclasses import dataclass
from datetime import datetime

from django.db import connections


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What the database said: `applied`, `changed`, `refused` or `busy`, and for all but the first a short reason."""

    outcome: str
    because: str | None
    failover_id: int | None = None

    @property
    def sentence(self) -> str:
        """What it means, and the next step."""
        return "Done, and on record." if self.because is None else _SENTENCES.get(self.because, self.because)


@dataclass(frozen=True, kw_only=True, slots=True)
class Failover:
    """One record: the step between two timelines and where it stands."""

    failover_id: int
    from_timeline: int
    to_timeline: int
    proposed_at: datetime
    stands: str  # proposed, expired, confirmed, withdrawn


_SENTENCES = {
    "not_permitted": "You may not do this: it takes a role in all tenants that has this right.",
    "reason_missing": "Give a reason of 1 to 2,000 characters.",
    "evidence_missing": "Give the evidence, 1 to 8,000 characters: where the old primary stopped and the new one began.",
    "no_such_failover": "No such failover: both are timelines of this server, the second later and not in the future.",
    "no_such_proposal": "No proposal has this number; `manage.py failover list` shows them.",
    "withdrawn": "It was withdrawn; propose it anew.",
    "confirmed_already": "It is confirmed already.",
    "expired": "The proposal expired after 24 hours; propose it anew.",
    "same_person": "The person who proposed it cannot confirm it; somebody else has to look.",
}


def propose(*, since: int, until: int, reason: str, evidence: str, using: str = "default") -> Answer:
    """Propose that nothing was lost between two timelines, inside the proposer's signed context."""
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT * FROM fencewatch.propose_lossless(%s, %s, %s, %s)", [since, until, reason, evidence])
        outcome, because, made = cursor.fetchone()
    return Answer(outcome=outcome, because=because, failover_id=made)


def confirm(failover_id: int, *, reason: str, using: str = "default") -> Answer:
    """Confirm another person's proposal, inside the signed context of whoever confirms. From then on it counts."""
    return _decide("confirm_lossless", failover_id, reason, using)


def withdraw(failover_id: int, *, reason: str, using: str = "default") -> Answer:
    """Take a proposal or a confirmed record back: from the next claim on, items are in doubt again."""
    return _decide("withdraw_lossless", failover_id, reason, using)


def _decide(verb: str, failover_id: int, reason: str, using: str) -> Answer:
    with connections[using].cursor() as cursor:
        cursor.execute(f"SELECT * FROM fencewatch.{verb}(%s, %s)", [failover_id, reason])  # noqa: S608 - two fixed names
        outcome, because = cursor.fetchone()
    return Answer(outcome=outcome, because=because)


def everything(*, using: str = "default") -> list[Failover]:
    """Every record, the newest first; nothing for people who do not see all tenants."""
    with connections[using].cursor() as cursor:
        cursor.execute(
            "SELECT f.failover_id, f.from_timeline, f.to_timeline, f.proposed_at,"
            " CASE WHEN f.withdrawn_at IS NOT NULL THEN 'withdrawn' WHEN f.confirmed_at IS NOT NULL THEN 'confirmed'"
            " WHEN f.expires_at <= (SELECT clock_timestamp()) THEN 'expired' ELSE 'proposed' END"
            " FROM lossless_failover f ORDER BY f.failover_id DESC LIMIT 200"
        )
        names = ("failover_id", "from_timeline", "to_timeline", "proposed_at", "stands")
        return [Failover(**dict(zip(names, row, strict=True))) for row in cursor.fetchall()]
