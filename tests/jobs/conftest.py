from collections.abc import Callable, Iterator

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from workitems.jobs import agreement, registry


@pytest.fixture(autouse=True)
def _own_registry() -> Iterator[None]:
    """Each test defines its own job types, and reads the job_type table of its own database."""
    agreement.forget()
    with registry.isolated():
        yield
    agreement.forget()


@pytest.fixture
def statements_of() -> Callable[[Callable[[], object]], list[str]]:
    """The statements that a call sends on the worker's connection."""

    def count(call: Callable[[], object]) -> list[str]:
        with CaptureQueriesContext(connections["worker"]) as captured:
            call()
        return [query["sql"] for query in captured.captured_queries]

    return count
