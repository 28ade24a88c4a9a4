"""People who look at pages, and a browser-like client for each."""

from typing import Any

from django.contrib.auth import get_user_model
from django.db import connections
from django.test import Client

from workitems.tenancy import add_membership

PASSWORD = "a long enough password"


def add_person(username: str, *tenants: str | None, role: str = "operator") -> Any:
    """A user with this role in each of these tenants; None stands for all of them."""
    user = get_user_model().objects.create_user(username=username, password=PASSWORD)
    for tenant_id in tenants:
        add_membership(user_id=user.pk, tenant_id=tenant_id, role=role)
    return user


def signed_in(user: Any, **environ: Any) -> Client:
    """A client with a session of this user."""
    client = Client(**environ)
    client.force_login(user)
    return client


def digest_of(tenant_id: str, operation_id: str = "op-1") -> str:
    """The full digest of an item, as links hold it."""
    with connections["worker"].cursor() as cursor:
        cursor.execute(
            "SELECT encode(op_digest, 'hex') FROM work_item WHERE tenant_id = %s AND operation_id = %s",
            [tenant_id, operation_id],
        )
        (digest,) = cursor.fetchone()
    return str(digest)
