"""Fencewatch's own middleware: how long a session lasts, what caches may keep, and what a slow read answers.

NoStore stands outside everything but the static files; SessionLimits right after authentication; SlowReads next to the views.
"""

from collections.abc import Callable

from django.conf import settings
from django.contrib.auth import logout
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.template import TemplateDoesNotExist
from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.cache import patch_vary_headers

from dashboard.access import TooSlow, is_htmx

POLL_HEADER = "X-Fencewatch-Poll"  # on requests that a page makes by itself
SIGNED_IN_AT = "fencewatch_signed_in_at"
SEEN_AT = "fencewatch_seen_at"
TOUCH_SECONDS = 30  # a session is not written more often, so an idle one may end this much early

Answer = Callable[[HttpRequest], HttpResponseBase]


def is_poll(request: HttpRequest) -> bool:
    """Whether the page asked by itself, and nobody touched it."""
    return POLL_HEADER in request.headers


class SessionLimits:
    """A session ends after 15 minutes without its person and 8 hours after the sign-in, whatever is done with it.

    Polls never extend it. Times are this host's: a session's whole life is measured by the hosts that serve pages.
    """

    def __init__(self, get_response: Answer) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        now = timezone.now().timestamp()
        if request.user.is_authenticated:
            ended = self._ended(request, now=now)
            if ended:
                logout(request)
                request.session_ended = ended  # type: ignore[attr-defined]
            elif not is_poll(request) and now - request.session.get(SEEN_AT, 0) >= TOUCH_SECONDS:
                request.session.setdefault(SIGNED_IN_AT, now)
                request.session[SEEN_AT] = now
        response = self.get_response(request)
        if request.user.is_authenticated and SIGNED_IN_AT not in request.session:
            request.session[SIGNED_IN_AT] = request.session[SEEN_AT] = now  # this request signed in
        return response

    def _ended(self, request: HttpRequest, *, now: float) -> str:
        if now - request.session.get(SEEN_AT, now) > settings.SESSION_IDLE_SECONDS:
            return "idle"
        if now - request.session.get(SIGNED_IN_AT, now) > settings.SESSION_ABSOLUTE_SECONDS:
            return "too-long"
        return ""


class NoStore:
    """Pages show other people's work: nothing keeps a copy, and a region is never taken for its page."""

    def __init__(self, get_response: Answer) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self.get_response(request)
        if not response.has_header("Cache-Control"):
            response.headers["Cache-Control"] = "no-store"
        patch_vary_headers(response, ["HX-Request", "Cookie"])
        return response


class SlowReads:
    """A read that ran out of its time answers 503 with the next step, as a page or as a region."""

    def __init__(self, get_response: Answer) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        if not isinstance(exception, TooSlow):
            return None
        template = "dashboard/_too_slow.html" if is_htmx(request) else "dashboard/too_slow.html"
        try:
            body = render_to_string(template, {"message": str(exception)}, request)
        except TemplateDoesNotExist:
            return HttpResponse(f"{exception}\n", status=503, content_type="text/plain; charset=utf-8")
        return HttpResponse(body, status=503)
