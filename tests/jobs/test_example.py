"""A complete job type, as a developer writes one: payouts at a payment API that takes idempotency keys."""

import hashlib
import json
from collections.abc import Iterator
from datetime import date, timedelta

import pytest
from django.db import transaction

from tests.jobs.servers import Provider, provider
from tests.jobs.stage import standing
from workitems import protocol
from workitems.jobs import (
    Answer,
    JobType,
    KeyRecord,
    SideEffect,
    Target,
    Work,
    did_not_happen,
    happened,
    job_type,
    tasks,
)
from workitems.jobs.agreement import sync
from workitems.jobs.payloads import store
from workitems.jobs.registry import job_types
from workitems.jobs.targets.idempotent_api import http, idempotent_call, look_up


def define_payout(api_url: str) -> JobType:
    api = http(base_url=api_url)

    def ask_the_bank(work: Work) -> Answer:
        payment = look_up(client=api, url=f"/payments/{work.identity_key}")
        return did_not_happen() if payment is None else happened("paid", status=payment.status_code)

    @job_type(
        "payouts.pay",
        target=Target.C,
        side_effect=SideEffect.IRREVERSIBLE,
        owner="payouts team",
        producer_team="marketplace team",
        system_owner="bank relations",
        lease=60,
        progress=30,
        max_attempts=3,
        attempts_ceiling=6,
        reconcile=ask_the_bank,
        key=KeyRecord(
            window=timedelta(hours=24),
            scope="account",
            mismatch="refused with 422",
            source="the bank's API reference, section Idempotent requests",
            verified_on=date(2026, 11, 2),
            verified_by="R. Ito",
            expires_on=date(2099, 11, 2),
        ),
        schema={
            1: {
                "type": "object",
                "properties": {"version": {"const": 1}, "cents": {"type": "integer", "minimum": 1}},
                "required": ["version", "cents"],
                "additionalProperties": False,
            }
        },
    )
    def pay(work: Work) -> str:
        idempotent_call(work, client=api, url="/payments", json={"cents": work.payload["cents"]})
        return "paid"

    return pay


@pytest.fixture
def bank() -> Iterator[Provider]:
    with provider() as running:
        yield running


def test_a_payout_from_the_producers_transaction_to_its_outcome(tenants: tuple[str, str], bank: Provider) -> None:
    payout = define_payout(bank.url)
    sync(job_types())
    body = json.dumps({"version": 1, "cents": 1_250}).encode()

    with transaction.atomic(using="worker"):
        store(tenant_id=tenants[0], payload_ref="payouts/2026/1", body=body)
        enqueued = protocol.enqueue(
            tenant_id=tenants[0],
            operation_id="payout-1",
            payload_hash=hashlib.sha256(body).digest(),
            payload_ref="payouts/2026/1",
            job_type=payout.name,
        )
        tasks.wake_on_commit()
    tasks.wake()

    assert enqueued.outcome == "enqueued"
    assert standing(tenants[0], "payout-1") == ("succeeded", "paid")
    assert len(bank.effects) == 1
