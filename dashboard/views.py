"""The pages. Each reads what its address says, asks one question of the rooms below, and answers."""

from typing import Any

from django.conf import settings
from django.contrib.auth.views import LoginView, LogoutView
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotModified
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.cache import patch_vary_headers
from django.views.decorators.http import require_http_methods, require_safe

from dashboard import VERSION
from dashboard.access import PersonRequest, is_htmx, operator_view
from dashboard.forms import FilterForm, SignInForm, chips, with_cursor
from dashboard.tables import WorkTable
from workitems.errors import BadIdentifier
from workitems.identifiers import full
from workitems.operations.search import search
from workitems.oversight import figures
from workitems.oversight import find as finding

NO_DIGEST = (
    "That is not a digest. Paste the name that begins with op_, at least its first four characters, into the box; an"
    " operation id goes there too, and never into an address."
)
# why a search was not made: the status, and what to do
NOT_SEARCHED = {
    "too_many": (429, "You have searched thirty times within a minute. Each search is entered; go on in a minute."),
    "one_at_a_time": (409, "Another search of yours is still running. Send this one again."),
    "not_permitted": (403, "None of your roles may search by operation id. Paste a digest, or ask for the right."),
    "not_understood": (400, "That cannot be searched for. Paste one operation id as the producer wrote it."),
}
STUCK = ("stalled", "unknown", "quarantined", "failed_terminal")
ENDED = {
    "idle": "You were signed out after a while without a click. Sign in to go on where you were.",
    "too-long": "Your session reached its longest time. Sign in to go on where you were.",
    "left": "You are signed out.",
}


@require_safe
@operator_view
def overview(request: PersonRequest) -> HttpResponse:
    """What needs somebody now."""
    seen = figures.overview(request.person.scope)
    return _live(request, "overview", {"overview": seen, "at": seen.at, "stuck": STUCK}, stamp=seen.stamp)


@require_safe
@operator_view
def work(request: PersonRequest) -> HttpResponse:
    """The list, by the filters in its address."""
    form = FilterForm(request.GET, person=request.person, job_types=figures.job_types())
    context = {"form": form, "chips": chips(request.GET), "filtered": bool(form.changed_data)}
    try:
        page = figures.items(request.person.scope, form.filters(), request.GET.get("cursor") or None)
    except (figures.BadFilter, figures.BadCursor) as error:
        return _page(request, "work", context | {"refused": error}, status=400)
    context |= {
        "page": page,
        "narrowed": next((one.label for one in request.person.tenants if one.digest == page.filters.tenant), ""),
        "at": page.at,
        "table": WorkTable(page.rows, at=page.at, many_tenants=form.many_tenants),
        "onward": with_cursor(request.GET, page.next_cursor) if page.next_cursor else "",
        "backward": with_cursor(request.GET, page.previous_cursor) if page.previous_cursor else "",
    }
    return _live(request, "work", context, stamp=page.stamp)


@require_safe
@operator_view
def item(request: PersonRequest, digest: bytes) -> HttpResponse:
    """One item. A foreign one and one that never was get the same answer."""
    before = request.GET.get("before", "")
    if before and not (before.isascii() and before.isdecimal() and len(before) < 19):
        raise Http404
    seen = figures.item(request.person.scope, digest, before_event=int(before) if before else None)
    if seen is None:
        now = finding.current(request.person.scope, digest)
        return missing(request) if now is None else redirect("item", digest=full(now))
    return _live(request, "item", {"item": seen, "at": seen.at, "before": before}, stamp=seen.stamp)


@require_http_methods(["GET", "HEAD", "POST"])
@operator_view
def find(request: PersonRequest) -> HttpResponse:
    """From what a person pastes to an item. The box sends by POST: it may be a raw identifier, which belongs into no log.

    A digest is looked up first. A text that names no item so is searched for as an operation id, which is entered.
    """
    asked = (request.POST if request.method == "POST" else request.GET).get("q", "")
    wanted = finding.read(asked)
    begins = finding.find(request.person.scope, wanted) if wanted and wanted.short else None
    if request.method != "POST":
        if begins is None or wanted is None:
            return _page(request, "find", {"refused": NO_DIGEST}, status=400)
        return _page(request, "find", {"asked": wanted.short, "found": begins, "at": begins.at})
    known = finding.current(request.person.scope, bytes.fromhex(wanted.full)) if wanted and wanted.full else None
    if known is not None:
        return redirect("item", digest=full(known))
    if wanted and wanted.says_so and begins and begins.rows:
        return redirect(f"{reverse('find')}?q={wanted.short}")
    return _search(request, asked, begins)


def _search(request: PersonRequest, asked: str, begins: finding.Found | None) -> HttpResponse:
    try:
        answer = search(asked, key=settings.CONTEXT_KEY or b"")
    except BadIdentifier as error:
        reason = f"That is no digest and no operation id: {error}"
        return _page(request, "find", {"refused": reason}, status=400)
    if answer.outcome != "applied":
        status, reason = NOT_SEARCHED[answer.because or ""]
        return _page(request, "find", {"refused": reason}, status=status)
    if len(answer.digests) == 1:
        return redirect("item", digest=full(answer.digests[0]))
    if answer.digests:
        found = finding.listed(answer.digests, more=answer.more)
        return _page(request, "find", {"found": found, "at": found.at})
    if begins is not None and begins.rows:
        return _page(request, "find", {"found": begins, "at": begins.at})
    return _page(request, "find", {"ended_state": answer.ended_state, "ended_at": answer.ended_at})


class SignIn(LoginView):
    """The only page for people who are not signed in."""

    template_name = "dashboard/sign_in.html"
    form_class = SignInForm
    redirect_authenticated_user = True

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        ended = ENDED.get(self.request.GET.get("ended", ""), "")
        return super().get_context_data(**kwargs) | {"version": VERSION, "ended": ended}


class SignOut(LogoutView):
    """Ends the session; by POST only, so that no link or image can do it."""

    def get_default_redirect_url(self) -> str:
        return f"{reverse('sign-in')}?ended=left"


def missing(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """404, the same body whether a thing belongs to others or does not exist."""
    return render(request, "dashboard/missing.html", _frame(request, "missing"), status=404)


def broken(request: HttpRequest) -> HttpResponse:
    """500 without a question to the database, which may be what is broken."""
    return render(None, "dashboard/broken.html", {"version": VERSION}, status=500)


def unproven(request: HttpRequest, reason: str = "") -> HttpResponse:
    """403 for a form whose token does not fit: nothing was done. A region gets the sentence alone."""
    if is_htmx(request):
        return HttpResponse(
            "Nothing was done: this page is out of date. Reload it.\n", status=403, content_type="text/plain"
        )
    return render(request, "dashboard/unproven.html", {"version": VERSION}, status=403)


def _frame(request: HttpRequest, here: str) -> dict[str, Any]:
    return {"person": getattr(request, "person", None), "version": VERSION, "here": here}


def _page(request: HttpRequest, name: str, context: dict[str, Any], status: int = 200) -> HttpResponse:
    return render(request, f"dashboard/{name}.html", _frame(request, name) | context, status=status)


def _live(request: HttpRequest, name: str, context: dict[str, Any], *, stamp: str) -> HttpResponse:
    """A page, or its region alone when the page asks again; 304 when it has what there is."""
    tag = f'"{VERSION}-{stamp}"'
    context |= {"tag": tag, "polls": True}
    response: HttpResponse
    if not is_htmx(request):
        response = _page(request, name, context)
    elif request.headers.get("If-None-Match") == tag:
        response = HttpResponseNotModified()
    else:
        response = render(request, f"dashboard/_{name}.html", _frame(request, name) | context)
    response["ETag"] = tag
    response["Fencewatch-Version"] = VERSION
    patch_vary_headers(response, ["HX-Request"])
    return response
