"""The company's job types at targets A, B and D. Each takes a moment, as real work does, so that faults find it at work."""

import time
from typing import Any

from django.db import connections

from dashboard.demo import tether  # noqa: F401  # connects its signal
from dashboard.demo.company import ANYBODY, LEDGER_TABLE, REGION, address_of
from dashboard.demo.schemas import MONEY, TEXT, schema
from workitems.errors import Terminal
from workitems.jobs.reconcile import Answer, did_not_happen, happened
from workitems.jobs.registry import job_type
from workitems.jobs.targets.conditional_store import Key, conditional_put, dynamodb, raise_fence
from workitems.jobs.targets.idempotent_api import http
from workitems.jobs.targets.plain_external import single_attempt
from workitems.jobs.work import Work
from workitems.states import SideEffect, Target


@job_type(
    "billing.refund",
    target=Target.A,
    side_effect=SideEffect.IRREVERSIBLE,
    owner="Billing",
    producer_team="Storefront",
    system_owner="Billing",
    lease=8,
    progress=6,
    max_attempts=4,
    attempts_ceiling=8,
    backoff=2,
    schema=schema(invoice=TEXT, amount=MONEY),
)
def refund(work: Work) -> str:
    """Pay an invoice back. The invoice's standing is the business write's own guard, beside the fence."""
    time.sleep(work.payload["pace"] / 1000)
    with connections[work.using].cursor() as cursor:
        cursor.execute(
            "UPDATE demo.invoice SET standing = 'refunded'"
            " WHERE tenant_id = %s AND invoice_no = %s AND standing = 'paid' AND amount >= %s",
            [work.tenant_id, work.payload["invoice"], work.payload["amount"]],
        )
        if cursor.rowcount != 1:
            raise Terminal("invoice_not_refundable")
        cursor.execute(
            "INSERT INTO demo.refund (tenant_id, operation_id, invoice_no, amount, fence) VALUES (%s, %s, %s, %s, %s)",
            [work.tenant_id, work.operation_id, work.payload["invoice"], work.payload["amount"], work.fence],
        )
    return "refunded"


def ledger_client() -> Any:
    """The ledger's store. Its time-out is longer than a lease: a posting that is still under way meets the fence."""
    return dynamodb(
        region=REGION, endpoint=address_of("ledger"), access_key=ANYBODY, secret_key=ANYBODY, read_timeout=25.0
    )


def ledger_key(work: Work) -> Key:
    return {"tenant": {"S": work.tenant_id}, "operation": {"S": work.operation_id}}


def find_posting(work: Work) -> Answer:
    """Close the door to lower fences at the ledger, then look."""
    item = raise_fence(work, client=ledger_client(), table=LEDGER_TABLE, key=ledger_key(work))
    return did_not_happen(store="ledger") if item is None else happened("posted", store="ledger")


@job_type(
    "ledger.post",
    target=Target.B,
    side_effect=SideEffect.IRREVERSIBLE,
    owner="Finance systems",
    producer_team="Order desk",
    system_owner="Ledger team",
    lease=9,
    progress=3,
    max_attempts=4,
    attempts_ceiling=8,
    backoff=2,
    reconcile=find_posting,
    schema=schema(account=TEXT, amount=MONEY, lines={"type": "integer", "minimum": 1, "maximum": 20}),
)
def post(work: Work) -> str:
    """Check line after line, then write the posting once, under the fence."""
    for line in range(1, work.payload["lines"] + 1):
        time.sleep(work.payload["pace"] / 1000)
        work.heartbeat(line)
    conditional_put(
        work,
        client=ledger_client(),
        table=LEDGER_TABLE,
        key=ledger_key(work),
        item={"account": {"S": work.payload["account"]}, "amount": {"N": str(work.payload["amount"])}},
    )
    return "posted"


@job_type(
    "sms.notify",
    target=Target.D,
    side_effect=SideEffect.IRREVERSIBLE,
    owner="Customer care",
    producer_team="Storefront",
    system_owner="Text gateway's provider",
    lease=8,
    progress=4,
    max_attempts=1,
    attempts_ceiling=3,
    backoff=2,
    schema=schema(number=TEXT, template=TEXT),
)
def notify(work: Work) -> str:
    """Send one text. The gateway has no key and no look-up: one call, and doubt after it stays doubt."""
    time.sleep(work.payload["pace"] / 1000)
    text = {"tenant": work.tenant_id, "operation": work.operation_id, "to": work.payload["number"]}
    with http(base_url=address_of("gateway"), timeout=20.0) as client:
        single_attempt(work, lambda: client.post("/texts", json=text).raise_for_status())
    return "accepted"
