import pytest

from tests.oversight.stage import add_people
from tests.protocol.stage import add_job_type


@pytest.fixture
def people(tenants: tuple[str, str]) -> tuple[str, str]:
    """Two tenants with their people and one job type."""
    add_people()
    add_job_type()
    return tenants
