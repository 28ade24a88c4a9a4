"""The history of claims: how each ended, and its bar on the item's own line of time."""

import datetime
import json

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from workitems.oversight.figures import ClaimEpisode, Item

register = template.Library()

ENDINGS = {
    "complete": "completed",
    "fail": "failed for good",
    "release": "released, unfinished",
    "park": "parked: outcome unknown",
    "quarantine": "quarantined",
    "takeover": "lease ran out, taken over",
    "claim": "ended by another claim",
    "sweep": "lease ran out, swept",
    "revoke": "revoked",
}
LOST = {"takeover", "sweep", "revoke", "claim"}


@register.filter
def ended_word(claim: ClaimEpisode, item: Item) -> str:
    """How the claim ended, in words; of one that goes on, whether its lease still runs."""
    if claim.ended_by is None:
        return "lease ran out, nobody took over yet" if item.lapsed else "holds it now"
    return ENDINGS.get(claim.ended_by, claim.ended_by)


@register.filter
def ending(claim: ClaimEpisode, item: Item) -> str:
    """The class of a claim's colour: the state it led to, or stalled where its worker lost it or does not move."""
    if claim.ended_by is None:
        return "s-stalled" if item.stalled else "s-claimed"
    if claim.ended_by in LOST:
        return "s-stalled"
    states = {
        "complete": "succeeded",
        "fail": "failed_terminal",
        "park": "unknown",
        "quarantine": "quarantined",
    }
    return f"s-{states.get(claim.ended_by, 'queued')}"


@register.simple_tag
def lane(claim: ClaimEpisode, item: Item) -> SafeString:
    """The claim as a bar on a line from the first claim to the last end, or to now; a notch where it began to act."""
    start = item.claims[-1].claimed_at
    ends = [one.ended_at or item.at for one in item.claims]
    length = max(0.001, (max(ends) - start).total_seconds())

    def place(at: datetime.datetime) -> float:
        return 1000.0 * (at - start).total_seconds() / length

    left = min(place(claim.claimed_at), 994.0)
    width = max(6.0, place(claim.ended_at or item.at) - left)
    notch = (
        format_html('<rect class="notch" x="{}" width="5" height="10"/>', f"{min(place(claim.begun_at), 995):.1f}")
        if claim.begun_at
        else ""
    )
    return format_html(
        '<svg class="lane" viewBox="0 0 1000 10" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="track" y="4" width="1000" height="2"/><rect class="held" x="{}" y="1.5" width="{}" height="7"/>{}</svg>',
        f"{left:.1f}",
        f"{width:.1f}",
        notch,
    )


@register.filter
def evidence(detail: object) -> str:
    """A reconcile's evidence as indented JSON; the template escapes it."""
    return json.dumps(detail, indent=2, ensure_ascii=False, sort_keys=True)
