"""Digests, fences and counts, written so that two of them can be compared by eye."""

from django import template
from django.template.defaultfilters import stringfilter
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from workitems import identifiers

register = template.Library()


@register.filter
def short(digest: bytes) -> str:
    """`op_ABCD-EFGH-IJKL-MNOP`: a name for people, never a key to act on."""
    return identifiers.show(digest)


@register.filter
def whole(digest: bytes) -> str:
    """All 64 hexadecimal digits, for links and for copying."""
    return identifiers.full(digest)


@register.filter
@stringfilter
def grouped(digits: str) -> SafeString:
    """Hexadecimal digits in groups of eight. The gaps are drawn, not typed: copied text has none."""
    return format_html_join("", "<span>{}</span>", ((digits[i : i + 8],) for i in range(0, len(digits), 8)))


@register.simple_tag
def fence_badge(fence: int) -> SafeString:
    """A fence as `timeline:number`, which is how the database composes it; a plain one stays plain."""
    return format_html('<span class="fence" title="fence {}">{}</span>', fence, fence_number(fence))


@register.filter
def fence_number(fence: int) -> str:
    """`1:7` for 4294967303."""
    timeline, number = divmod(fence, 1 << 32)
    return f"{timeline}:{number}" if timeline else str(fence)


@register.filter
def number(count: int) -> str:
    """A count with its thousands apart."""
    return f"{count:,}"
