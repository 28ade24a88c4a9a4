"""Producer: the company's shops enqueue their work, mostly right, now and then wrong.

Runs as the worker role. Every operation is enqueued in one transaction with the business row and the payload it needs.
"""

import hashlib
import json
import os
import random
import time
from dataclasses import dataclass
from typing import Any

import django
from django.db import DatabaseError, connections, transaction

from dashboard.demo.company import TENANTS
from dashboard.demo.rota import Turn

USING = "worker"
HURRY_SECONDS = 40.0
YOUNG_BELOW = 150  # items: the hurry is to fill empty pages
HURRY_PER_SECOND = 3.5
PER_SECOND = 1.0
MOST_QUEUED = 400  # with more than this waiting the shops hold off
MOST_WAITING_FOR_PEOPLE = 150  # of one state: nobody may be looking at the demo for days
SERIES = {"refund": "billing.refund", "posting": "ledger.post", "payout": "payout.send", "text": "sms.notify"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """One operation as a shop wants it."""

    tenant_id: str
    operation_id: str
    job_type: str
    payload: dict[str, Any]

    @property
    def body(self) -> bytes:
        return json.dumps(self.payload, sort_keys=True).encode()

    @property
    def payload_ref(self) -> str:
        return f"orders/{self.operation_id}.json"


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
    django.setup()
    Producer().run()


class Producer:
    """Decides what to send, and sends it."""

    def __init__(self) -> None:
        self._random = random.Random()
        self._started = time.monotonic()
        self._last: Order | None = None
        self._is_full: dict[str, bool] = {}
        self._is_young = True
        self._look = Turn(first=0, every=3)
        self._turns = {
            self.send_unknown_version: Turn(first=3, every=45),
            self.send_hash_mismatch: Turn(first=5, every=60),
            self.send_truncated: Turn(first=7, every=70),
            self.send_without_payload: Turn(first=9, every=80),
            self.send_outside_schema: Turn(first=11, every=90),
            self.send_unregistered: Turn(first=4, every=900),
            self.send_refund_of_disputed_invoice: Turn(first=6, every=60),
            self.send_again: Turn(first=8, every=20),
            self.send_conflict: Turn(first=10, every=30),
            self.send_legacy: Turn(first=1, every=5),
        }

    def run(self) -> None:
        while True:
            try:
                self.take_turn()
            except DatabaseError:
                connections[USING].close()
                time.sleep(1)
            hurry = self._is_young and time.monotonic() - self._started < HURRY_SECONDS
            time.sleep(self._random.expovariate(HURRY_PER_SECOND if hurry else PER_SECOND))

    def take_turn(self) -> None:
        """Send one ordinary operation, and whatever else is due."""
        if self._look.is_due():
            self._look_around()
        if self._is_full.get("queued"):
            return
        self._last = self.order()
        self.send(self._last)
        for send, turn in self._turns.items():
            if turn.is_due():
                send()

    def _look_around(self) -> None:
        """See which states have enough items, and whether the pages are still empty."""
        with connections[USING].cursor() as cursor:
            cursor.execute(
                "SELECT state, count(*) FROM work_item"
                " WHERE state IN ('queued', 'quarantined', 'failed_terminal') GROUP BY state"
            )
            counted = dict(cursor.fetchall())
            cursor.execute("SELECT count(*) FROM (SELECT FROM work_item LIMIT %s) some", [YOUNG_BELOW])
            self._is_young = cursor.fetchone()[0] < YOUNG_BELOW
        limits = {
            "queued": MOST_QUEUED,
            "quarantined": MOST_WAITING_FOR_PEOPLE,
            "failed_terminal": MOST_WAITING_FOR_PEOPLE,
        }
        self._is_full = {state: counted.get(state, 0) >= limit for state, limit in limits.items()}

    # -- what is right ------------------------------------------------------------------------------------------------
    def order(self, *, series: str | None = None) -> Order:
        """The next operation of a tenant. Numbers run per tenant, so that operation ids collide between tenants."""
        series = series or self._random.choices(list(SERIES), weights=[30, 25, 25, 20])[0]
        tenant_id = self._random.choice(TENANTS).tenant_id
        number = self._next_number(tenant_id, series)
        amount = self._random.randrange(100, 50_000)
        # Mostly quick; one in six takes its time, and is what faults are likely to meet.
        pace = self._random.randrange(900, 2200) if self._random.random() < 1 / 6 else self._random.randrange(20, 250)
        details: dict[str, dict[str, Any]] = {
            "refund": {"invoice": f"invoice-{number}", "amount": amount},
            "posting": {"account": f"account-{number % 40}", "amount": amount, "lines": self._random.randrange(1, 4)},
            "payout": {"account": f"seller-{number % 25}", "amount": amount},
            "text": {"number": f"+4900{number:07d}", "template": "on-its-way"},
        }
        return Order(
            tenant_id=tenant_id,
            operation_id=f"{series}-{number}",
            job_type=SERIES[series],
            payload={"version": 1, "pace": pace, **details[series]},
        )

    def _next_number(self, tenant_id: str, series: str) -> int:
        with connections[USING].cursor() as cursor:
            cursor.execute(
                "INSERT INTO demo.numbering AS n (tenant_id, series, latest) VALUES (%s, %s, 1001)"
                " ON CONFLICT (tenant_id, series) DO UPDATE SET latest = n.latest + 1 RETURNING latest",
                [tenant_id, series],
            )
            return int(cursor.fetchone()[0])

    def send(
        self,
        order: Order,
        *,
        body: bytes | None = None,
        digest_of: bytes | None = None,
        stored: bool = True,
        standing: str = "paid",
    ) -> None:
        """Enqueue with payload and business row, all or nothing. The other arguments are what a wrong sender gets wrong."""
        from workitems import protocol
        from workitems.jobs import payloads, tasks

        body = order.body if body is None else body
        with transaction.atomic(using=USING):
            if order.job_type == "billing.refund" and "invoice" in order.payload:
                self._invoice(order, standing=standing)
            if stored:
                payloads.store(tenant_id=order.tenant_id, payload_ref=order.payload_ref, body=body, using=USING)
            protocol.enqueue(
                tenant_id=order.tenant_id,
                operation_id=order.operation_id,
                payload_hash=hashlib.sha256(body if digest_of is None else digest_of).digest(),
                payload_ref=order.payload_ref,
                job_type=order.job_type,
                using=USING,
            )
            tasks.wake_on_commit(using=USING)

    def _invoice(self, order: Order, *, standing: str) -> None:
        with connections[USING].cursor() as cursor:
            cursor.execute(
                "INSERT INTO demo.invoice (tenant_id, invoice_no, amount, standing) VALUES (%s, %s, %s, %s)"
                " ON CONFLICT DO NOTHING",
                [order.tenant_id, order.payload["invoice"], max(1, order.payload["amount"]), standing],
            )

    # -- what is wrong ------------------------------------------------------------------------------------------------
    def send_unknown_version(self) -> None:
        self._send_wrong(version=7)

    def send_outside_schema(self) -> None:
        self._send_wrong(amount="a lot")

    def _send_wrong(self, **members: Any) -> None:
        if self._is_full.get("quarantined"):
            return
        order = self.order(series=self._random.choice(["posting", "payout"]))
        self.send(
            Order(
                tenant_id=order.tenant_id,
                operation_id=order.operation_id,
                job_type=order.job_type,
                payload=order.payload | members,
            )
        )

    def send_hash_mismatch(self) -> None:
        if not self._is_full.get("quarantined"):
            order = self.order(series="payout")
            self.send(order, digest_of=order.body + b" ")

    def send_truncated(self) -> None:
        if not self._is_full.get("quarantined"):
            order = self.order(series="posting")
            self.send(order, body=order.body[: len(order.body) // 2])

    def send_without_payload(self) -> None:
        if not self._is_full.get("quarantined"):
            self.send(self.order(series="text"), stored=False)

    def send_unregistered(self) -> None:
        """A job type that a newer release of the shop knows already, and no worker does."""
        order = self.order(series="posting")
        number = order.operation_id.partition("-")[2]
        self.send(
            Order(
                tenant_id=order.tenant_id,
                operation_id=f"loyalty-{number}",
                job_type="loyalty.credit",
                payload=order.payload,
            )
        )

    def send_refund_of_disputed_invoice(self) -> None:
        if not self._is_full.get("failed_terminal"):
            self.send(self.order(series="refund"), standing="disputed")

    def send_again(self) -> None:
        """A client that lost the answer and asks once more, with the same identity and payload: a replay."""
        if self._last is not None:
            self.send(self._last)

    def send_conflict(self) -> None:
        """The same identity with another payload: nothing changes."""
        if self._last is not None:
            self.send(self._last, digest_of=self._last.body + b" ")

    def send_legacy(self) -> None:
        """A program of before: the article's own INSERT, without a job type."""
        tenant_id = self._random.choice(TENANTS).tenant_id
        number = self._next_number(tenant_id, "export")
        body = json.dumps({"version": 1, "export": number}).encode()
        with connections[USING].cursor() as cursor:
            cursor.execute(
                "INSERT INTO work_item (tenant_id, operation_id, payload_hash, payload_ref) VALUES (%s, %s, %s, %s)"
                " ON CONFLICT (tenant_id, operation_id) DO NOTHING RETURNING operation_id",
                [tenant_id, f"export-{number}", hashlib.sha256(body).digest(), f"exports/{number}.json"],
            )


if __name__ == "__main__":
    main()
