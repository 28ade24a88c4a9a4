"""Type C, idempotent API: the provider drops repeats of a key within its window. Dedupe, not fencing."""

from collections.abc import Collection
from typing import Any

import httpx

from workitems.errors import Terminal
from workitems.jobs.work import InDoubt, Work

KEY_HEADER = "Idempotency-Key"
# Answers that say: understood, refused, nothing done. Others of the 400s may mean "under way" or "who are you?".
FINAL = frozenset({400, 422})


def http(*, base_url: str, timeout: float = 10.0, **options: Any) -> httpx.Client:
    """A client that sends each request once and follows no redirect: a repeat would be an effect that nobody stamped."""
    return httpx.Client(
        base_url=base_url,
        timeout=timeout,
        follow_redirects=False,
        **{"transport": httpx.HTTPTransport(retries=0), **options},
    )


def idempotent_call(
    work: Work,
    *,
    client: httpx.Client,
    url: str,
    json: Any,
    method: str = "POST",
    header: str = KEY_HEADER,
    final: Collection[int] = FINAL,
) -> httpx.Response:
    """Stamp `begin`, then call once under the operation's key, which is the same for every attempt and differs by tenant.

    Returns a 2xx answer. `final`: answers that mean the request was understood and refused for good.
    Raises: Terminal(`refused_<status>`) for those. InDoubt for any other answer, and for none.
    """
    with work.effect():
        response = client.request(method, url, json=json, headers={header: work.identity_key})
        return _settled(response, final=final)


def look_up(*, client: httpx.Client, url: str) -> httpx.Response | None:
    """Ask the provider, by key, what became of an operation: its answer, or None if it knows of none (404).

    The key is the door: within its window a late first call and a redrive can only be one effect.
    Raises: InDoubt for any other answer; httpx.HTTPError for none.
    """
    response = client.get(url)
    if response.status_code == httpx.codes.NOT_FOUND:
        return None
    return _settled(response, final=())


def _settled(response: httpx.Response, *, final: Collection[int]) -> httpx.Response:
    if response.is_success:
        return response
    if response.status_code in final:
        raise Terminal(f"refused_{response.status_code}")
    raise InDoubt(f"http_{response.status_code}")
