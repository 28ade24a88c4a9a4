"""The list of work as a table; narrow screens show the same rows as cards."""

import datetime
from typing import Any

import django_tables2 as tables
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from dashboard.templatetags.digests import fence_badge
from dashboard.templatetags.durations import ago, left, moment
from dashboard.templatetags.states import state_badge
from workitems.oversight.figures import Row
from workitems.states import State


def _column(name: str, header: str) -> tables.Column:
    attrs = {"th": {"scope": "col", "class": f"c-{name}"}, "td": {"class": f"c-{name}"}}
    return tables.Column(empty_values=(), orderable=False, verbose_name=header, attrs=attrs)


class WorkTable(tables.Table):
    """One row an item. Every cell escapes what it shows: job types, workers and outcomes are other people's words."""

    state = _column("state", "State")
    item = _column("item", "Item")
    type = _column("type", "Job type")
    situation = _column("situation", "Situation")
    effect = _column("effect", "Effect")
    owner = _column("owner", "Next step")
    attempts = _column("attempts", "Attempts")
    fence = _column("fence", "Fence")
    tenant = _column("tenant", "Tenant")
    since = _column("since", "For")

    class Meta:
        template_name = "dashboard/_table.html"
        attrs = {"class": "work"}
        row_attrs = {"id": lambda record: f"w-{record.full[:20]}", "class": lambda record: f"s-{shown_state(record)}"}

    def __init__(self, rows: tuple[Row, ...], *, at: datetime.datetime, many_tenants: bool) -> None:
        self.at = at
        super().__init__(rows, exclude=() if many_tenants else ("tenant",))

    def render_state(self, record: Row) -> SafeString:
        return state_badge(shown_state(record))

    def render_item(self, record: Row) -> SafeString:
        url = reverse("item", args=[record.full])
        return format_html('<a class="digest" href="{}" data-row>{}</a>', url, record.short)

    def render_type(self, record: Row) -> SafeString:
        return format_html(
            '<span class="clip" title="{}">{}</span><abbr class="target" title="target {}: {}">{}</abbr>',
            record.job_type,
            record.job_type,
            record.facts.target or "unknown",
            record.facts.target_name,
            record.facts.target or "?",
        )

    def render_situation(self, record: Row) -> str:
        return render_to_string("dashboard/_situation.html", {"row": record, "at": self.at})

    def render_effect(self, record: Row) -> SafeString:
        if record.effect_at is not None:
            return format_html('<span class="acted">May have acted</span> {}', moment(record.effect_at, self.at))
        if record.begun:
            return mark_safe('<span class="acted">May have acted</span>')
        return mark_safe('<span class="quiet">Never begun</span>')

    def render_owner(self, record: Row) -> SafeString:
        return format_html('<span class="clip" title="{}">{}</span>', record.next_owner, record.next_owner)

    def render_attempts(self, record: Row) -> SafeString:
        return format_html('{}<span class="quiet">/{}</span>', record.attempts, record.max_attempts)

    def render_fence(self, record: Row) -> SafeString:
        return fence_badge(record.fence)

    def render_tenant(self, record: Row) -> SafeString:
        return format_html('<span class="clip" title="{}">{}</span>', record.tenant_label, record.tenant_label)

    def render_since(self, record: Row) -> Any:
        if record.due_in_seconds is not None:
            return left(record.since, self.at, "to go")
        return ago(record.since, self.at, "")


def shown_state(row: Row) -> str:
    """The state, or the condition that is worse news than claimed."""
    if row.state is State.CLAIMED and row.stalled:
        return row.condition
    return row.state.value
