from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from django.db import connections

from tests.adoption.stage import Old, old_database
from tests.cluster import Cluster, point_aliases_at

type MakeOld = Callable[[int], Old]


@pytest.fixture
def make_old(cluster: Cluster, database: Any) -> Iterator[MakeOld]:
    """``make_old(rows)``: a database with the article's table; this process's aliases point at it until the test ends."""
    with ExitStack() as stack:

        def make(rows: int) -> Old:
            old = stack.enter_context(old_database(cluster, database.environment, rows=rows))
            point_aliases_at(old.name)
            stack.callback(connections.close_all)
            return old

        yield make
