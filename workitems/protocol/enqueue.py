"""Enqueue: make the durable row, bound to a tenant-scoped identity and an immutable payload hash."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from django.db import connections
from django.db.utils import DatabaseError

from workitems.errors import BadItem, UnknownTenant
from workitems.identifiers import check_operation_id, check_reference, check_tenant_id
from workitems.states import State

_HASH_BYTES = 32
_UNKNOWN_TENANT = "FW001"


class Answer(StrEnum):
    """What an enqueue found."""

    ENQUEUED = "enqueued"
    REPLAY = "replay"
    CONFLICT = "conflict"


@dataclass(frozen=True, kw_only=True, slots=True)
class NewItem:
    """Work to enqueue. `payload_hash` is the SHA-256 of the exact payload bytes that `payload_ref` leads to."""

    tenant_id: str
    operation_id: str
    payload_hash: bytes
    payload_ref: str
    job_type: str
    available_at: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Enqueued:
    """An enqueue's answer: on a replay or a conflict, the state and stored outcome of the item that was there first."""

    outcome: Answer
    state: State
    outcome_code: str | None
    op_digest: bytes


def enqueue(
    *,
    tenant_id: str,
    operation_id: str,
    payload_hash: bytes,
    payload_ref: str,
    job_type: str,
    available_at: datetime | None = None,
    using: str = "worker",
) -> Enqueued:
    """Make one durable row, inside the caller's transaction if there is one.

    The identity comes from the business intent, never from a clock or a retry counter. A job type that the database does
    not list is accepted and shown as unregistered: no worker claims it.

    Raises: BadIdentifier, BadItem before anything is sent; UnknownTenant.
    Source: the article, "Enqueue: bind identity to payload".
    """
    item = NewItem(
        tenant_id=tenant_id,
        operation_id=operation_id,
        payload_hash=payload_hash,
        payload_ref=payload_ref,
        job_type=job_type,
        available_at=available_at,
    )
    return enqueue_many([item], using=using)[0]


def enqueue_many(items: Sequence[NewItem], *, using: str = "worker") -> list[Enqueued]:
    """Make many durable rows in one statement; the answers stand in the order of `items`.

    An identity that stands twice in `items` is enqueued once; its later places answer replay or conflict.

    Raises: as `enqueue`; one bad item refuses them all, and its place is named.
    """
    for place, item in enumerate(items, start=1):
        _check(item, place=place, total=len(items))
    if not items:
        return []
    try:
        with connections[using].cursor() as cursor:
            cursor.execute(
                "SELECT outcome, state, outcome_code, op_digest FROM fencewatch.enqueue_many("
                "%s::text[], %s::text[], %s::bytea[], %s::text[], %s::text[], %s::timestamptz[]) ORDER BY place",
                [
                    [item.tenant_id for item in items],
                    [item.operation_id for item in items],
                    [item.payload_hash for item in items],
                    [item.payload_ref for item in items],
                    [item.job_type for item in items],
                    [item.available_at for item in items],
                ],
            )
            rows = cursor.fetchall()
    except DatabaseError as error:
        if getattr(error.__cause__, "sqlstate", None) == _UNKNOWN_TENANT:
            raise UnknownTenant from None
        raise
    return [
        Enqueued(outcome=Answer(outcome), state=State(state), outcome_code=code, op_digest=bytes(digest))
        for outcome, state, code, digest in rows
    ]


def _check(item: NewItem, *, place: int, total: int) -> None:
    check_tenant_id(item.tenant_id)
    check_operation_id(item.operation_id)
    check_reference(item.payload_ref)
    where = f" (item {place} of {total})" if total > 1 else ""
    if not _is_sha256(item.payload_hash):
        raise BadItem(f"payload_hash must be the {_HASH_BYTES} bytes of a SHA-256 digest{where}.")
    if not _is_name(item.job_type):
        raise BadItem(f"job_type must be a name of 1 to 100 characters{where}.")
    if item.available_at is not None and item.available_at.tzinfo is None:
        raise BadItem(f"available_at must carry its time zone{where}.")
    if item.available_at is not None and not 2000 < item.available_at.year < 8999:
        raise BadItem(f"available_at must lie between the years 2001 and 8998{where}.")


def _is_sha256(value: object) -> bool:
    return isinstance(value, bytes) and len(value) == _HASH_BYTES


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= 100 and "\x00" not in value
