from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from django.db import connections


@pytest.fixture
def verbs_of(superuser: Any) -> Callable[[str], list[str]]:
    """The verbs in an item's history, oldest first."""

    def read(tenant_id: str, operation_id: str = "op-1") -> list[str]:
        rows = superuser.execute(
            "SELECT e.verb FROM work_event e JOIN work_item w USING (item_id)"
            " WHERE w.tenant_id = %s AND w.operation_id = %s ORDER BY e.event_id",
            [tenant_id, operation_id],
        ).fetchall()
        return [verb for (verb,) in rows]

    return read


@pytest.fixture
def foreign(database: Any) -> Iterator[psycopg.Connection[Any]]:
    """A connection of the worker role without any of our settings: a worker that knows the article's statements only."""
    settings = connections["worker"].settings_dict
    with psycopg.connect(
        host=settings["HOST"],
        port=settings["PORT"],
        dbname=settings["NAME"],
        user=settings["USER"],
        password=settings["PASSWORD"],
        autocommit=True,
    ) as connection:
        yield connection
