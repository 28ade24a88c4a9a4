"""The demo's counter sees a duplicate wherever one is planted."""

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dashboard.demo import company
from dashboard.demo.effects import EffectCounter
from dashboard.demo.world.records import Records

COMPANY_SQL = Path(company.__file__).with_name("company.sql")


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(folder=tmp_path)


@pytest.fixture
def books(superuser: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    """A connection to a database with the company's tables."""
    superuser.execute(COMPANY_SQL.read_bytes())
    return superuser


def note(path: Path, *, tenant: str, operation: str) -> None:
    with path.open("a") as record:
        record.write(json.dumps({"tenant": tenant, "operation": operation}) + "\n")


def refund(books: psycopg.Connection[Any], *, tenant: str, operation: str) -> None:
    books.execute(
        "INSERT INTO demo.refund (tenant_id, operation_id, invoice_no, amount, fence) VALUES (%s, %s, 'i', 1, 1)",
        [tenant, operation],
    )


def test_equal_operation_ids_of_two_tenants_are_no_duplicates(books: psycopg.Connection[Any], records: Records) -> None:
    for tenant in ("acme-eu", "borealis-us"):
        refund(books, tenant=tenant, operation="refund-1001")
        for path in (records.postings, records.payments, records.gateway):
            note(path, tenant=tenant, operation="refund-1001")
    counted = EffectCounter(records=records).count(books)
    assert counted.duplicates == 0
    assert (counted.refunds.effects, counted.texts.identities) == (2, 2)


def test_a_second_refund_is_counted_as_a_duplicate(books: psycopg.Connection[Any], records: Records) -> None:
    for _ in range(2):
        refund(books, tenant="acme-eu", operation="refund-1001")
    assert EffectCounter(records=records).count(books).duplicates == 1


@pytest.mark.parametrize("target", ["postings", "payments"])
def test_a_second_posting_or_payment_is_counted_even_after_a_first_look(
    target: str, books: psycopg.Connection[Any], records: Records
) -> None:
    path, counter = getattr(records, target), EffectCounter(records=records)
    note(path, tenant="acme-eu", operation="payout-1001")
    assert counter.count(books).duplicates == 0
    note(path, tenant="acme-eu", operation="payout-1001")
    assert counter.count(books).duplicates == 1


def test_a_second_text_is_shown_but_is_no_broken_promise(books: psycopg.Connection[Any], records: Records) -> None:
    for _ in range(2):
        note(records.gateway, tenant="acme-eu", operation="text-1001")
    counted = EffectCounter(records=records).count(books)
    assert (counted.duplicates, counted.texts.duplicates) == (0, 1)


def test_a_line_that_is_still_being_written_is_read_once_it_is_whole(
    books: psycopg.Connection[Any], records: Records
) -> None:
    counter = EffectCounter(records=records)
    line = json.dumps({"tenant": "acme-eu", "operation": "payout-1001"})
    records.payments.write_text(line[:10])
    assert counter.count(books).payouts.effects == 0
    records.payments.write_text(line + "\n")
    assert counter.count(books).payouts.effects == 1
