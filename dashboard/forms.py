"""What the address of a list may say, and the links that change one part of it."""

from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib.auth.forms import AuthenticationForm
from django.http import HttpRequest, QueryDict

from dashboard.access import Person
from workitems.oversight.figures import UNREGISTERED, WINDOWS, BadFilter, Filters, JobFacts
from workitems.states import TARGET_NAME, State, Target

FIELDS = ("state", "stalled", "lying", "begun", "type", "target", "tenant", "hours", "order")
CHIPS = ("stalled", "lying", "unknown", "quarantined", "failed_terminal", "claimed", "queued", "succeeded")
CONDITIONS = ("stalled", "lying")


class SignInForm(AuthenticationForm):
    """One sentence for every way to fail: it does not say which accounts exist."""

    error_messages = {
        "invalid_login": "That name and password do not match. Both are case-sensitive.",
        "inactive": "That name and password do not match. Both are case-sensitive.",
    }

    def __init__(self, request: HttpRequest | None = None, *args: Any, **kwargs: Any) -> None:
        super().__init__(request, *args, **kwargs)
        self.fields["username"].label = "Name"
        self.fields["username"].widget.attrs["autocapitalize"] = "off"


class FilterForm(forms.Form):
    """The query string of the list. What it does not understand is an error, never a wider list."""

    state = forms.MultipleChoiceField(choices=[(state.value, state.value) for state in State], required=False)
    stalled = forms.ChoiceField(choices=[("yes", "yes")], required=False)
    lying = forms.ChoiceField(choices=[("yes", "yes")], required=False)
    begun = forms.ChoiceField(
        label="Effect", choices=[("", "Any"), ("yes", "May have acted"), ("no", "Never begun")], required=False
    )
    type = forms.CharField(label="Job type", max_length=100, required=False, widget=forms.Select)
    target = forms.ChoiceField(
        label="Target",
        choices=[
            ("", "Any"),
            *((target.value, f"{target.value} · {TARGET_NAME[target]}") for target in Target),
            (UNREGISTERED, "Unregistered"),
        ],
        required=False,
    )
    tenant = forms.RegexField(label="Tenant", regex=r"\A[0-9a-f]{64}\Z", required=False, widget=forms.Select)
    hours = forms.TypedChoiceField(
        label="Finished within",
        choices=[(str(hours), f"{hours} h" if hours < 48 else f"{hours // 24} d") for hours in WINDOWS],
        coerce=int,
        empty_value=str(WINDOWS[0]),
        required=False,
    )
    order = forms.ChoiceField(
        label="Order",
        choices=[("", "Newest first"), ("oldest", "Oldest first"), ("newest", "Newest first")],
        required=False,
    )

    def __init__(self, data: QueryDict, *, person: Person, job_types: tuple[JobFacts, ...]) -> None:
        super().__init__(data)
        self.asked = data
        names = [facts.name for facts in job_types]
        chosen = data.get("type", "")
        if chosen and chosen not in names:
            names.append(chosen)
        self.fields["type"].widget.choices = [("", "Any"), *((name, name) for name in names)]
        tenants = [(tenant.full, tenant.label) for tenant in person.tenants]
        self.fields["tenant"].widget.choices = [("", "All of mine"), *tenants]
        self.fields["order"].widget.choices = [("", "Newest first"), ("oldest", "Oldest first")]
        self.many_tenants = len(tenants) > 1

    def filters(self) -> Filters:
        """The filters that the address names.

        Raises: BadFilter with the part that is not understood.
        """
        if not self.is_valid():
            parts = ", ".join(f"“{name}”" for name in self.errors)
            raise BadFilter(
                f"the address holds a filter that is not understood: {parts}. Take it away and choose again."
            )
        asked = self.cleaned_data
        return Filters(
            states=tuple(State(value) for value in asked["state"]),
            stalled=bool(asked["stalled"]),
            lying=bool(asked["lying"]),
            begun={"yes": True, "no": False}.get(asked["begun"]),
            job_types=(asked["type"],) if asked["type"] else (),
            targets=(asked["target"],) if asked["target"] else (),
            tenant=bytes.fromhex(asked["tenant"]) if asked["tenant"] else None,
            window_hours=int(asked["hours"]),
            order="oldest" if asked["order"] == "oldest" else "newest",
        )

    @property
    def kept(self) -> list[tuple[str, str]]:
        """What the chips chose, for the other fields' form to carry on."""
        return [(name, value) for name in ("state", *CONDITIONS) for value in self.asked.getlist(name)]

    @property
    def selects(self) -> list[forms.BoundField]:
        """The fields that stand beside the chips."""
        names = ["begun", "type", "target", "tenant" if self.many_tenants else "", "order"]
        if State.SUCCEEDED.value in self.asked.getlist("state"):
            names.append("hours")
        return [self[name] for name in names if name]


@dataclass(frozen=True, kw_only=True)
class Chip:
    """A state or condition to choose or take back by following a link."""

    key: str
    query: str
    chosen: bool


def chips(data: QueryDict) -> list[Chip]:
    """A chip for each state and condition. States add up; a condition stands alone, for only claimed work can have it."""
    states = data.getlist("state")
    found = []
    for key in CHIPS:
        chosen = data.get(key) == "yes" if key in CONDITIONS else key in states
        query = _first_page(data)
        if key in CONDITIONS:
            _drop(query, "state", *CONDITIONS)
            if not chosen:
                query[key] = "yes"
        else:
            _drop(query, *CONDITIONS)
            query.setlist("state", [state for state in states if state != key] if chosen else [*states, key])
        found.append(Chip(key=key, query=query.urlencode(), chosen=chosen))
    return found


def with_cursor(data: QueryDict, cursor: str) -> str:
    """The query string of another page of the same list."""
    query = _first_page(data)
    query["cursor"] = cursor
    return query.urlencode()


def _first_page(data: QueryDict) -> QueryDict:
    query = QueryDict(mutable=True)
    for name in FIELDS:
        values = [value for value in data.getlist(name) if value]
        if values:
            query.setlist(name, values)
    return query


def _drop(query: QueryDict, *names: str) -> None:
    for name in names:
        query.pop(name, None)
