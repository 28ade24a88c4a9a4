"""The company's payouts, at a payment API with idempotency keys (target C). A Celery worker of their own serves them."""

import time
from datetime import date, timedelta

import httpx

from dashboard.demo import tether  # noqa: F401  # connects its signal
from dashboard.demo.company import address_of
from dashboard.demo.schemas import MONEY, TEXT, schema
from workitems.jobs.definition import KeyRecord
from workitems.jobs.reconcile import Answer, did_not_happen, happened
from workitems.jobs.registry import job_type
from workitems.jobs.targets.idempotent_api import http, idempotent_call, look_up
from workitems.jobs.work import Work
from workitems.states import SideEffect, Target

API_SECONDS = 2.5  # the client's time-out: a call and a look-up fit into one lease


def payments_client() -> httpx.Client:
    return http(base_url=address_of("payments"), timeout=API_SECONDS)


def find_payment(work: Work) -> Answer:
    """Ask the payment API by key what became of a payout."""
    with payments_client() as client:
        found = look_up(client=client, url=f"/payments/by-key/{work.identity_key}")
    return did_not_happen(api="payments") if found is None else happened("paid", api="payments")


@job_type(
    "payout.send",
    target=Target.C,
    side_effect=SideEffect.IRREVERSIBLE,
    owner="Treasury",
    producer_team="Marketplace",
    system_owner="Payment provider desk",
    lease=8,
    progress=6,
    max_attempts=4,
    attempts_ceiling=8,
    backoff=2,
    reconcile=find_payment,
    key=KeyRecord(
        window=timedelta(hours=24),
        scope="the account",
        mismatch="422, the first payment stands",
        source="the demo's payment API: dashboard/demo/world/payments.py",
        verified_on=date(2025, 1, 15),
        verified_by="Treasury",
        expires_on=date(2036, 1, 15),
    ),
    schema=schema(account=TEXT, amount=MONEY),
)
def send(work: Work) -> str:
    """Pay out once. The key is the same for every attempt, so the provider drops a repeat."""
    time.sleep(work.payload["pace"] / 1000)
    payment = {"tenant": work.tenant_id, "operation": work.operation_id, "amount": work.payload["amount"]}
    with payments_client() as client:
        idempotent_call(work, client=client, url="/payments", json=payment)
    return "paid"
