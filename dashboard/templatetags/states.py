"""States and conditions as pages show them: always a colour, a shape and a word."""

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

register = template.Library()

WORDS = {
    "queued": "Queued",
    "claimed": "Claimed",
    "succeeded": "Succeeded",
    "failed_terminal": "Failed",
    "unknown": "Unknown",
    "quarantined": "Quarantined",
    "stalled": "Stalled",
    "lying": "Lying",
}

MEANINGS = {
    "queued": "Waits for a worker",
    "claimed": "A worker holds it under a lease",
    "succeeded": "Its outcome is confirmed; never changes",
    "failed_terminal": "Failed for good; a retry is a new operation",
    "unknown": "Nobody knows whether the effect happened",
    "quarantined": "Its input was not understood with confidence",
    "stalled": "Claimed, but the lease ran out or nothing moves",
    "lying": "Claimed, and the lease is kept alive, but nothing moves",
    "unregistered": "Queued under a job type that nobody registered: no worker takes it",
}

# Drawn on 16 by 16, told apart without colour at 13 pixels.
SHAPES = {
    "queued": '<circle cx="8" cy="8" r="5.5" fill="none" stroke="currentColor" stroke-width="2"/>',
    "claimed": '<circle cx="8" cy="8" r="6.5"/>',
    "stalled": '<path d="M2.5 1.5h11v2L9.6 8l3.9 4.5v2h-11v-2L6.4 8 2.5 3.5z"/>',
    "lying": '<path fill-rule="evenodd" d="M8 1a7 7 0 1 1 0 14A7 7 0 0 1 8 1M3.5 7v2h9V7z"/>',
    "unknown": '<path d="M8 .6 15.4 8 8 15.4.6 8z"/>',
    "quarantined": '<path fill-rule="evenodd" d="M2 1.5h12v13H2zM4.8 4v8h2V4zM9.2 4v8h2V4z"/>',
    "failed_terminal": '<path d="m3 3 10 10M13 3 3 13" fill="none" stroke="currentColor" stroke-width="3"/>',
    "succeeded": '<path d="m2 8.5 4 4 8-9" fill="none" stroke="currentColor" stroke-width="2.8"/>',
}


@register.filter
def state_word(state: str) -> str:
    """The word of a state or condition; a newer one than this page knows stands for itself."""
    return WORDS.get(state, state.replace("_", " ").capitalize())


@register.filter
def state_meaning(state: str) -> str:
    """The state or condition in one phrase, for a hint."""
    return MEANINGS.get(state, "")


@register.simple_tag
def state_mark(state: str) -> SafeString:
    """The shape alone, for places where the word stands beside it."""
    shape = mark_safe(SHAPES.get(state, SHAPES["queued"]))  # noqa: S308 - a constant of this file
    return format_html(
        '<svg class="mark s-{}" viewBox="0 0 16 16" fill="currentColor" aria-hidden="true">{}</svg>', state, shape
    )


@register.simple_tag
def state_badge(state: str, size: str = "") -> SafeString:
    """Colour, shape and word."""
    return format_html(
        '<span class="badge s-{}{}">{}{}</span>',
        state,
        " " + size if size else "",
        state_mark(state),
        state_word(state),
    )
