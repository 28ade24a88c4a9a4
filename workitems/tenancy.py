"""Tenants, their keys, people's memberships, and which database role reads what."""

import secrets
from typing import Any

from django.db import connections, models, transaction

from workitems.identifiers import check_tenant_id, pads, tenant_digest
from workitems.said import said

ROLES = ("viewer", "operator", "approver", "auditor")
_ACCOUNT_APPS = frozenset({"auth", "sessions", "contenttypes"})
_KEY_BYTES = 32


class Router:
    """Users and sessions are read and written by a database role of their own; only the owner migrates."""

    def db_for_read(self, model: type[models.Model], **hints: Any) -> str:
        return "accounts" if model._meta.app_label in _ACCOUNT_APPS else "default"

    def db_for_write(self, model: type[models.Model], **hints: Any) -> str:
        return self.db_for_read(model)

    def allow_relation(self, obj1: models.Model, obj2: models.Model, **hints: Any) -> bool:
        return obj1._meta.app_label in _ACCOUNT_APPS and obj2._meta.app_label in _ACCOUNT_APPS

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool:
        return db == "owner"


def add_tenant(*, tenant_id: str, label: str = "", using: str = "owner") -> bytes:
    """Add a tenant with a random key of its own; returns its digest. `label` is what pages call it: never the id.

    Raises: BadIdentifier; django.db.IntegrityError when it exists.
    """
    check_tenant_id(tenant_id)
    key = secrets.token_bytes(_KEY_BYTES)
    inner, outer = pads(key)
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT fencewatch.add_tenant(%s, %s, %s, %s)", [tenant_id, label, inner, outer])
    return tenant_digest(key, tenant_id=tenant_id)


def label_tenant(*, tenant_id: str, label: str, using: str = "owner") -> bool:
    """What pages call a tenant from now on, never its id; '' shows its digest. False where there is no such tenant.

    Raises: BadIdentifier; django.db.IntegrityError for a label that repeats the id or is over 60 characters.
    """
    check_tenant_id(tenant_id)
    with connections[using].cursor() as cursor:
        cursor.execute("UPDATE public.tenant SET label = %s WHERE tenant_id = %s", [label, tenant_id])
        return bool(cursor.rowcount)


def add_membership(*, user_id: int, tenant_id: str | None, role: str, reason: str = "", using: str = "owner") -> bool:
    """Give a person a role in one tenant, or in all of them where `tenant_id` is None; False when they have it already.

    The change and its audit entry are one statement. Raises: ValueError for a role that does not exist.
    """
    if role not in ROLES:
        raise ValueError(f"role must be one of {', '.join(ROLES)}.")
    return bool(_administer("add_membership", [user_id, tenant_id, role], reason=reason, using=using))


def remove_membership(
    *, user_id: int, tenant_id: str | None, role: str, reason: str = "", using: str = "owner"
) -> bool:
    """Take a role away, with an audit entry; False when the person did not have it."""
    return bool(_administer("remove_membership", [user_id, tenant_id, role], reason=reason, using=using))


def give_right(*, role: str, verb: str, reason: str = "", using: str = "owner") -> bool:
    """Let a role use a verb, with an audit entry; False when it may already. Raises: ValueError for an unknown role."""
    if role not in ROLES:
        raise ValueError(f"role must be one of {', '.join(ROLES)}.")
    return bool(_administer("give_right", [role, verb], reason=reason, using=using))


def take_right(*, role: str, verb: str, reason: str = "", using: str = "owner") -> bool:
    """Take a verb from a role, with an audit entry; False when it did not have it."""
    return bool(_administer("take_right", [role, verb], reason=reason, using=using))


def allow_worker(*, role: str, tenant_id: str | None, reason: str = "", using: str = "owner") -> bool | None:
    """
    Let a role of workers see one tenant, or all where `tenant_id` is None, with an audit entry; False when it does already.

    For roles that are members of fencewatch_worker, which itself sees all. None where the database has no such role. Raises:
    django.db.IntegrityError for an unknown tenant.
    """
    return _administer("allow_worker", [role, tenant_id], reason=reason, using=using)


def withdraw_worker(*, role: str, tenant_id: str | None, reason: str = "", using: str = "owner") -> bool:
    """Take a tenant, or the sight of all, from a role of workers, with an audit entry; False when it had none."""
    return bool(_administer("withdraw_worker", [role, tenant_id], reason=reason, using=using))


def _administer(function: str, arguments: list[Any], *, reason: str, using: str) -> bool | None:
    marks = ", ".join(["%s"] * len(arguments))
    with said(reason=reason, using=using), connections[using].cursor() as cursor:
        cursor.execute(f"SELECT fencewatch.{function}({marks})", arguments)
        (changed,) = cursor.fetchone()
    return None if changed is None else bool(changed)


def install_context_key(*, key: bytes, using: str = "owner") -> None:
    """Let the database accept operator contexts signed by this key, and by no earlier one."""
    inner, outer = pads(key)
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        cursor.execute("SELECT inner_pad FROM fencewatch.context_key WHERE retired_at IS NULL FOR UPDATE")
        if [bytes(row[0]) for row in cursor.fetchall()] == [inner]:
            return
        cursor.execute("UPDATE fencewatch.context_key SET retired_at = clock_timestamp() WHERE retired_at IS NULL")
        cursor.execute(
            "INSERT INTO fencewatch.context_key (version, inner_pad, outer_pad)"
            " SELECT coalesce(max(version), 0) + 1, %s, %s FROM fencewatch.context_key",
            [inner, outer],
        )
