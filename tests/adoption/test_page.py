"""What the page says of an item that is older than its history."""

import psycopg
import pytest
from django.conf import settings
from django.urls import reverse

from tests.adoption.conftest import MakeOld
from tests.adoption.stage import CLAIM, Old
from tests.dashboard.stage import add_person, digest_of, signed_in
from workitems import adoption
from workitems.tenancy import install_context_key


@pytest.fixture
def adopted(make_old: MakeOld) -> Old:
    old = make_old(40)
    old.ask_dba()
    adoption.adopt(workers=[old.role], say=lambda line: None)
    install_context_key(key=settings.CONTEXT_KEY)
    return old


def test_it_says_that_what_was_before_is_not_on_record(adopted: Old) -> None:
    person = signed_in(add_person("ada", None))

    def page(operation_id: str) -> str:
        return person.get(reverse("item", args=[digest_of("tenant-0", operation_id)])).content.decode()

    never_claimed, claimed_twice = page("op-1"), page("op-2")
    assert "or earlier" in never_claimed
    assert "What happened before is not on record." in never_claimed
    assert "not on record: 2 attempts, without times or workers." in claimed_twice
    assert "No worker has claimed this item" not in claimed_twice
    assert "Held by a worker that does not stamp: may have acted" in claimed_twice

    with psycopg.connect(adopted.address, autocommit=True) as worker:
        worker.execute(
            "INSERT INTO work_item (tenant_id, operation_id, payload_hash, payload_ref) VALUES ('tenant-0', 'live-1', 'x', 'x')"
        )
        assert worker.execute(CLAIM, {"worker": "old-1"}).fetchone() is not None
    fresh = page("live-1")
    assert "or earlier" not in fresh
    assert "not on record" not in fresh
    assert "old-1" in fresh
