"""Rotating a tenant's digest key while everything runs: a new key, then the rows, then the old key's end."""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass

from django.db import connections, transaction

from workitems.errors import UnknownTenant
from workitems.identifiers import pads
from workitems.said import said

RESOLVE_DAYS = 90
_KEY_BYTES = 32
_ROUNDS = 3  # rows that somebody holds locked are passed over, and found by the next round


@dataclass(frozen=True, kw_only=True)
class Redigested:
    """What one batch did: rows changed in it, and by the whole run so far."""

    changed: int
    total: int


@dataclass(frozen=True, kw_only=True)
class Retired:
    """Whether a key was destroyed, and what still needs it."""

    retired: bool
    is_newest: bool
    rows_left: bool
    tombstones_left: int


def rotate_tenant_key(*, tenant_id: str, reason: str = "", using: str = "owner") -> int:
    """Give a tenant a new key for rows from now on; returns its version. Earlier rows keep theirs until `redigest`.

    Raises: UnknownTenant.
    """
    inner, outer = pads(secrets.token_bytes(_KEY_BYTES))
    with said(reason=reason, using=using), connections[using].cursor() as cursor:
        _require(tenant_id, using)
        cursor.execute("SELECT fencewatch.rotate_tenant_key(%s, %s, %s)", [tenant_id, inner, outer])
        (version,) = cursor.fetchone()
    return int(version)


def redigest(
    *, tenant_id: str, resolve_days: int = RESOLVE_DAYS, batch: int = 1_000, reason: str = "", using: str = "owner"
) -> Iterator[Redigested]:
    """Digest a tenant's rows anew under its newest key, one transaction a batch; yields after each.

    Old links lead to the item for `resolve_days` days (0 to 3,650). Stop it at any point and run it again: it goes on
    with what is left. Workers and producers notice nothing but a batch's row locks.

    Raises: UnknownTenant.
    """
    _require(tenant_id, using)
    total = 0
    for at_round in range(_ROUNDS):
        since = None if at_round == 0 else ""  # None begins a run, which leaves one entry
        in_round, more = 0, True
        while more:
            with said(reason=reason, using=using), connections[using].cursor() as cursor:
                cursor.execute(
                    "SELECT changed, last FROM fencewatch.redigest(%s, %s, %s, %s)",
                    [tenant_id, since, batch, resolve_days],
                )
                changed, since = cursor.fetchone()
            more = since is not None
            in_round += changed
            total += changed
            if changed:
                yield Redigested(changed=changed, total=total)
        if not in_round or not rows_left(tenant_id=tenant_id, using=using):
            return


def rows_left(*, tenant_id: str, using: str = "owner") -> bool:
    """Whether rows of a tenant still carry another key than its newest."""
    with connections[using].cursor() as cursor:
        cursor.execute(
            "SELECT EXISTS (SELECT FROM work_item w WHERE w.tenant_id = %s AND w.digest_key_version <>"
            " (SELECT max(k.version) FROM fencewatch.tenant_key k WHERE k.tenant_id = w.tenant_id))",
            [tenant_id],
        )
        return bool(cursor.fetchone()[0])


def retire_tenant_key(*, tenant_id: str, version: int, reason: str = "", using: str = "owner") -> Retired | None:
    """Destroy a key that no row and no tombstone needs; None: there is no such key. A refusal is entered too."""
    with said(reason=reason, using=using), connections[using].cursor() as cursor:
        cursor.execute(
            "SELECT retired, is_newest, rows_left, tombstones_left FROM fencewatch.retire_tenant_key(%s, %s)",
            [tenant_id, version],
        )
        retired, is_newest, left, tombstones = cursor.fetchone()
    if retired is None:
        return None
    return Retired(retired=retired, is_newest=is_newest, rows_left=left, tombstones_left=tombstones)


def _require(tenant_id: str, using: str) -> None:
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        cursor.execute("SELECT FROM tenant WHERE tenant_id = %s", [tenant_id])
        if cursor.fetchone() is None:
            raise UnknownTenant
