"""A payment API with idempotency keys, as a provider would document it.

`POST /payments` needs an `Idempotency-Key`. Within 24 hours a key that was seen gives the first payment again when the
body is the same (`Idempotent-Replayed: true`), and 422 when it is not. After 24 hours the key is forgotten: the same
request then pays again. `GET /payments/by-key/<key>` looks a payment up.
Each payment is one line of the record on disk before anything is answered; that file is what really was paid.

Outages: `stall` holds the answer back after the payment is on record; `slow` holds it back before the request is looked
at; `silent` holds a look-up back.
"""

import hashlib
import json
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import unquote

from dashboard.demo.world.loopback import JsonHandler, LoopbackServer, serve
from dashboard.demo.world.outages import Held, Outages
from dashboard.demo.world.records import whole_lines

WINDOW_SECONDS = 24 * 3600


@dataclass(frozen=True, kw_only=True, slots=True)
class Payment:
    """One payment as it stands in the record."""

    number: int
    key: str
    body_sha256: str
    tenant: str
    operation: str
    amount: int
    at: float  # seconds since the epoch


class Payments:
    """The provider's books: payments by key within the window, every payment ever in the record."""

    def __init__(self, *, record: Path) -> None:
        self._record = record
        self._lock = threading.Lock()
        self._by_key: dict[str, Payment] = {}
        self._count = 0
        for line in whole_lines(record):
            payment = Payment(**json.loads(line))
            self._by_key[payment.key] = payment
            self._count += 1

    def pay(self, *, key: str, body: bytes, now: float) -> tuple[int, Payment]:
        """Pay, or give the first payment under this key again.

        Returns: 201 with a new payment, 200 with the first one, 422 with the first one when the body differs.
        """
        sha256 = hashlib.sha256(body).hexdigest()
        wanted = json.loads(body)
        with self._lock:
            first = self._live(key=key, now=now)
            if first is not None:
                return (200 if first.body_sha256 == sha256 else 422), first
            self._count += 1
            payment = Payment(
                number=self._count,
                key=key,
                body_sha256=sha256,
                tenant=str(wanted["tenant"]),
                operation=str(wanted["operation"]),
                amount=int(wanted["amount"]),
                at=now,
            )
            with self._record.open("a") as record:
                record.write(json.dumps(asdict(payment)) + "\n")
            self._by_key[key] = payment
            return 201, payment

    def look_up(self, *, key: str, now: float) -> Payment | None:
        """The payment made under this key within the window."""
        with self._lock:
            return self._live(key=key, now=now)

    def _live(self, *, key: str, now: float) -> Payment | None:
        payment = self._by_key.get(key)
        return payment if payment is not None and now - payment.at < WINDOW_SECONDS else None


class PaymentHandler(JsonHandler):
    """The API's paths."""

    payments: Payments

    def do_POST(self) -> None:
        if self.control():
            return
        if self.path != "/payments":
            self.answer(404, {"error": "no such path"})
            return
        self._slow(kind="slow")
        body = self.body()
        key = self.headers.get("Idempotency-Key", "")
        if not key:
            self.answer(400, {"error": "Idempotency-Key is required"})
            return
        try:
            code, payment = self.payments.pay(key=key, body=body, now=time.time())
        except (ValueError, KeyError, TypeError):
            self.answer(400, {"error": "body is not a payment"})
            return
        seconds = self.outages.take(kind="stall") if code == 201 else None
        if seconds is not None:
            self.outages.hold(
                seconds=seconds, held=Held(tenant=payment.tenant, operation=payment.operation, kind="stall")
            )
        if code == 422:
            self.answer(422, {"error": "this key was used with another body"})
            return
        replayed = {"Idempotent_Replayed": "true"} if code == 200 else {}
        self.answer(code, {"payment": payment.number, "amount": payment.amount}, **replayed)

    def do_GET(self) -> None:
        if self.control():
            return
        if self.path == "/health":
            self.answer(200, {"ok": True})
            return
        prefix = "/payments/by-key/"
        if not self.path.startswith(prefix):
            self.answer(404, {"error": "no such path"})
            return
        self._slow(kind="silent")
        payment = self.payments.look_up(key=unquote(self.path.removeprefix(prefix)), now=time.time())
        if payment is None:
            self.answer(404, {"error": "no payment under this key"})
            return
        self.answer(200, {"payment": payment.number, "amount": payment.amount})

    def _slow(self, *, kind: str) -> None:
        seconds = self.outages.take(kind=kind)
        if seconds is not None:
            self.outages.hold(seconds=seconds, held=Held(tenant="", operation="", kind=kind))


def make_server(port: int, record: Path) -> LoopbackServer:
    """The API on the loopback; port 0 takes a free one."""
    payments, outages = Payments(record=record), Outages()
    handler = type("BoundPaymentHandler", (PaymentHandler,), {"payments": payments, "outages": outages})
    return LoopbackServer(("127.0.0.1", port), handler)


if __name__ == "__main__":
    serve(make_server)
