"""The operators' verbs, as Python calls them inside a signed context. The database decides and answers."""

from dataclasses import dataclass

from django.db import connections


@dataclass(frozen=True, kw_only=True, slots=True)
class Acted:
    """The answer to one action: `applied`, `changed`, `refused` or `busy`, why, and where the item stands now.

    `state_now` and `fence_now` are None where the person may not see the item, or there is none.
    """

    outcome: str
    because: str | None
    state_now: str | None
    fence_now: int | None


def revoke(op_digest: bytes, *, seen_state: str, seen_fence: int, reason: str, using: str = "default") -> Acted:
    """End the claim that the page showed, if it is still that one. Source: design, section 2 and section 3, rule 9."""
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT * FROM fencewatch.revoke(%s, %s, %s, %s)", [op_digest, seen_state, seen_fence, reason])
        outcome, because, state_now, fence_now = cursor.fetchone()
    return Acted(outcome=outcome, because=because, state_now=state_now, fence_now=fence_now)
