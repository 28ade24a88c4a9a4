from collections.abc import Callable
from typing import Any

import pytest


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
