"""Numbers of the overview: gauges, shares, and the list that each number counts."""

import math
from urllib.parse import urlencode

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from dashboard.tables import shown_state as state_of
from workitems.oversight.figures import UNREGISTERED, Row

register = template.Library()

TILE_QUERIES = {
    "stalled": {"stalled": "yes"},
    "lying": {"lying": "yes"},
    "unregistered": {"state": "queued", "target": UNREGISTERED},
}


@register.filter
def tile_query(key: str) -> str:
    """The query string of the list that a tile counts."""
    return urlencode(TILE_QUERIES.get(key, {"state": key}))


@register.filter
def type_query(name: str) -> str:
    """The query string of a job type's unfinished work."""
    return urlencode({"type": name})


@register.filter
def shown_state(row: Row) -> str:
    """The state, or the condition that is worse news than claimed."""
    return state_of(row)


@register.filter
def figure(count: int) -> SafeString | str:
    """A number in a table where zero is nothing to look at."""
    return f"{count:,}" if count else mark_safe('<span class="zero">0</span>')


@register.filter
def percent(share: float) -> str:
    """`0.4 %`, `12 %`; rounded up, so that something never reads as nothing."""
    hundredths = share * 100
    return f"{math.ceil(hundredths * 10) / 10:g} %" if hundredths < 10 else f"{hundredths:.0f} %"


@register.simple_tag
def gauge(value: float | None, limit: float | None) -> SafeString:
    """A bar that is full at the limit. The words beside it say the same."""
    filled = 0.0 if not value or not limit else min(100.0, 100 * value / limit)
    return format_html(
        '<svg class="gauge" viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="track" width="100" height="4"/><rect class="level" width="{}" height="4"/></svg>',
        f"{filled:.1f}",
    )
