"""Who looks, and what the database lets them see.

Every read of the pages runs inside `operator_context`: one transaction, one snapshot, and a context that the web process
signs and the database's row security checks. It is bound to the connection and to seconds, so a copy of it is worthless.
"""

import contextlib
import functools
import hashlib
import hmac
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Concatenate, Protocol
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.auth import REDIRECT_FIELD_NAME
from django.contrib.auth.views import redirect_to_login
from django.db import OperationalError, connections, transaction
from django.http import HttpRequest, HttpResponse, HttpResponseBase, QueryDict, StreamingHttpResponse
from django.shortcuts import resolve_url
from psycopg.errors import QueryCanceled
from psycopg_pool import PoolTimeout
from structlog.contextvars import get_contextvars

from workitems.errors import FencewatchError
from workitems.identifiers import full, show
from workitems.models import Membership as MembershipRow
from workitems.models import Tenant as TenantRow
from workitems.oversight.scope import Scope
from workitems.said import software_version

CONTEXT_SECONDS = 30
STATEMENT_MILLISECONDS = 5_000
TENANTS_LISTED = 500  # for people who see all of them: what a filter still shows


class TooSlow(FencewatchError):
    """The database gave up on this question in time to answer others: narrow the filter or the window, then ask again."""


class Busy(TooSlow):
    """Every connection to the database is in use; wait a few seconds, then ask again."""


@dataclass(frozen=True, kw_only=True)
class Tenant:
    """A tenant as pages name it: never by its id."""

    digest: bytes
    label: str
    short: str

    @property
    def full(self) -> str:
        """The digest for query strings."""
        return full(self.digest)


@dataclass(frozen=True, kw_only=True)
class Membership:
    """A role in one tenant, or in all of them where `tenant_digest` is None."""

    tenant_digest: bytes | None
    label: str
    role: str


@dataclass(frozen=True, kw_only=True)
class Person:
    """Who is signed in, and what their memberships open. Someone without any sees nothing."""

    user_id: int
    username: str = ""
    memberships: tuple[Membership, ...] = ()
    tenants: tuple[Tenant, ...] = ()
    sees_all: bool = False
    is_authenticated: bool = True

    @property
    def roles(self) -> frozenset[str]:
        """Every role held anywhere."""
        return frozenset(membership.role for membership in self.memberships)

    @property
    def scope(self) -> Scope:
        """What this person's reads name beside row security."""
        if self.sees_all:
            return Scope(sees_all=True)
        return Scope(tenants=tuple(tenant.digest for tenant in self.tenants))


class PersonRequest(HttpRequest):
    """A request inside an operator's context."""

    person: Person


def mint(
    *, key: bytes, user_id: int, sees_all: bool, tenants: Iterable[bytes], expires_at: int, backend_pid: int
) -> str:
    """A signed context: `1|user|all or some|tenant digests|expiry in epoch seconds|backend pid|hmac`."""
    digests = ",".join(sorted(tenant.hex() for tenant in tenants))
    body = f"1|{user_id}|{'all' if sees_all else 'some'}|{digests}|{expires_at}|{backend_pid}"
    return f"{body}|{hmac.new(key, body.encode(), hashlib.sha256).hexdigest()}"


@contextlib.contextmanager
def operator_context(user_id: int, *, username: str = "", writes: bool = False) -> Iterator[Person]:
    """Open the transaction in which `user_id` looks at work, and say who that is.

    Reads see one snapshot (REPEATABLE READ, READ ONLY); `writes` is for calling an operator's function and leaves the
    transaction at READ COMMITTED. The context ends with the transaction: nothing is left on the connection. It lasts
    30 seconds by the database's clock. Never nested, and never open while a streaming response is being sent.

    Raises: TooSlow when a statement inside ran out of its 5 seconds; Busy when no connection came free.
    """
    try:
        with transaction.atomic(using="default", durable=True), connections["default"].cursor() as cursor:
            if not writes:
                # before the first query: the snapshot is taken there
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            else:
                cursor.execute(
                    "SELECT set_config('fencewatch.software_version', %s, true),"
                    " set_config('fencewatch.request_id', %s, true)",
                    [software_version(), str(get_contextvars().get("request_id", ""))],
                )
            cursor.execute(
                "SELECT pg_backend_pid(), floor(extract(epoch FROM clock_timestamp()))::bigint + %s,"
                " set_config('statement_timeout', %s, true)",
                [CONTEXT_SECONDS, str(STATEMENT_MILLISECONDS)],
            )
            backend_pid, expires_at, _ = cursor.fetchone() or (0, 0, "")

            def enter(*, sees_all: bool, tenants: Iterable[bytes]) -> None:
                context = mint(
                    key=settings.CONTEXT_KEY or b"",  # settings refuse to start pages without one
                    user_id=user_id,
                    sees_all=sees_all,
                    tenants=tenants,
                    expires_at=expires_at,
                    backend_pid=backend_pid,
                )
                cursor.execute("SELECT set_config('fencewatch.context', %s, true)", [context])

            # first as nobody's member, to read one's own memberships; then with what they open
            enter(sees_all=False, tenants=())
            rows = list(MembershipRow.objects.filter(user_id=user_id).order_by("membership_id"))
            sees_all = any(row.tenant_digest is None for row in rows)
            own = {bytes(row.tenant_digest) for row in rows if row.tenant_digest is not None}
            enter(sees_all=sees_all, tenants=() if sees_all else own)
            yield _person(user_id=user_id, username=username, rows=rows, sees_all=sees_all, own=own)
    except OperationalError as error:
        if isinstance(error.__cause__, QueryCanceled):
            raise TooSlow from error
        if isinstance(error.__cause__, PoolTimeout):
            raise Busy from error
        raise


def _person(*, user_id: int, username: str, rows: list[MembershipRow], sees_all: bool, own: set[bytes]) -> Person:
    visible = TenantRow.objects.for_all() if sees_all else TenantRow.objects.for_tenants(own)
    tenants = tuple(
        Tenant(digest=bytes(row.tenant_digest), label=str(row), short=show(bytes(row.tenant_digest), prefix="tn"))
        for row in visible.order_by("label", "tenant_digest")[:TENANTS_LISTED]
    )
    labels = {tenant.digest: tenant.label for tenant in tenants}
    digests = [None if row.tenant_digest is None else bytes(row.tenant_digest) for row in rows]
    memberships = tuple(
        Membership(
            tenant_digest=digest,
            label="all tenants" if digest is None else labels.get(digest, ""),
            role=row.role,
        )
        for row, digest in zip(rows, digests, strict=True)
    )
    return Person(user_id=user_id, username=username, memberships=memberships, tenants=tenants, sees_all=sees_all)


def is_htmx(request: HttpRequest) -> bool:
    """Whether the page's script asked for a region, not the browser for a page."""
    return request.headers.get("HX-Request") == "true"


def signed_out(request: HttpRequest) -> HttpResponse:
    """The answer to someone who is not, or no longer, signed in.

    A page redirects to the sign-in page and back afterwards. A region answers 401 with HX-Redirect: a sign-in form must
    not be swapped into a table cell, and polling has to end.
    """
    ended = getattr(request, "session_ended", "")
    if not is_htmx(request):
        back = request.get_full_path() if request.method == "GET" else ""
        answer: HttpResponse = redirect_to_login(back, resolve_url(settings.LOGIN_URL), REDIRECT_FIELD_NAME)
        if not back or ended:
            answer["Location"] = _sign_in_url(back=back, ended=ended)
        return answer
    answer = HttpResponse("Signed out. Sign in again to go on.\n", status=401, content_type="text/plain; charset=utf-8")
    answer["HX-Redirect"] = _sign_in_url(back=_page_of(request), ended=ended)
    return answer


def _sign_in_url(*, back: str, ended: str) -> str:
    query = QueryDict(mutable=True)
    if back:
        query[REDIRECT_FIELD_NAME] = back
    if ended:
        query["ended"] = ended
    url = resolve_url(settings.LOGIN_URL)
    return f"{url}?{query.urlencode(safe='/')}" if query else url


def _page_of(request: HttpRequest) -> str:
    """The page that a region stands on, by htmx's word for it if that is of this host; else the region's own address."""
    said = urlsplit(request.headers.get("HX-Current-URL", ""))
    if said.netloc == request.get_host() and said.path.startswith("/") and not said.path.startswith("//"):
        return f"{said.path}?{said.query}" if said.query else said.path
    return request.get_full_path() if request.method == "GET" else ""


class OperatorView[**P](Protocol):
    """A view that reads work: it gets `request.person`."""

    __name__: str

    def __call__(self, request: PersonRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase: ...


def operator_view[**P](
    view: Callable[Concatenate[PersonRequest, P], HttpResponseBase],
) -> Callable[Concatenate[HttpRequest, P], HttpResponseBase]:
    """Let signed-in people only into `view`, run it inside their context, and hand it `request.person`.

    A POST runs in a context that may call operators' functions; everything else reads one snapshot.

    Raises: TooSlow, which the middleware turns into a page; TypeError when the view streams, for a generator runs after
    the context ended and would see nothing: a streaming view opens `operator_context` inside its generator.
    """

    @functools.wraps(view)
    def inner(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
        user = request.user
        if not user.is_authenticated or user.pk is None:
            return signed_out(request)
        with operator_context(user.pk, username=user.get_username(), writes=request.method == "POST") as person:
            request.person = person  # type: ignore[attr-defined]
            response = view(request, *args, **kwargs)  # type: ignore[arg-type]
            if isinstance(response, StreamingHttpResponse):
                raise TypeError("open operator_context inside the generator of a streaming response")
            render = getattr(response, "render", None)
            return render() if render is not None else response  # a lazy template must read inside the context

    return inner
