"""Lengths of time for people. Every length comes from the database's clock with the row; nothing here asks another clock."""

import datetime

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from workitems.oversight.figures import spell

register = template.Library()


@register.filter
def duration(seconds: float | None) -> str:
    """`42 s`, `17 min`, `3 h 22 min`, `2 d 4 h`; nothing for none."""
    return "" if seconds is None else spell(seconds)


@register.filter
def exact(at: datetime.datetime | None) -> str:
    """`2026-12-01 02:11:07.123 UTC`."""
    return f"{_utc(at):%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d} UTC" if at else ""


@register.simple_tag
def ago(at: datetime.datetime | None, now: datetime.datetime, word: str = "ago") -> SafeString | str:
    """How long before `now`, with the exact time one hover away. `word` follows the length."""
    return "" if at is None else _time(at, seconds=(now - at).total_seconds(), word=word, count="up")


@register.simple_tag
def left(at: datetime.datetime | None, now: datetime.datetime, word: str = "left") -> SafeString | str:
    """How long from `now` until `at`, with the exact time one hover away."""
    return "" if at is None else _time(at, seconds=(at - now).total_seconds(), word=word, count="down")


@register.simple_tag
def moment(at: datetime.datetime | None, now: datetime.datetime | None = None) -> SafeString | str:
    """The time of day in UTC, with its date unless that is the day of `now`; the exact time one hover away."""
    if at is None:
        return ""
    when = _utc(at)
    form = "%H:%M:%S" if now is not None and _utc(now).date() == when.date() else "%d %b %H:%M:%S"
    return format_html('<time datetime="{}" title="{}">{} UTC</time>', when.isoformat(), exact(at), when.strftime(form))


def _time(at: datetime.datetime, *, seconds: float, word: str, count: str) -> SafeString:
    return format_html(
        '<time datetime="{}" title="{}" data-{}="{}" data-word="{}">{}</time>',
        _utc(at).isoformat(),
        exact(at),
        count,
        int(max(0, seconds)),
        word,
        f"{spell(seconds)} {word}".rstrip(),
    )


def _utc(at: datetime.datetime) -> datetime.datetime:
    return at.astimezone(datetime.UTC)
