"""The README's own code, run as it stands there against a real server."""

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from django.db import connections

from workitems import protocol
from workitems.jobs import agreement, registry, tasks
from workitems.jobs.agreement import sync
from workitems.jobs.worker import Ended, run_one

README = Path(__file__).parents[1] / "README.md"


class Payments(BaseHTTPRequestHandler):
    """A payment API that pays once per key and answers a look-up by it."""

    paid: dict[str, dict[str, Any]]
    calls: list[str]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.calls.append(self.path)
        self.paid.setdefault(self.headers["Idempotency-Key"], {**body, "status": "paid"})
        self._answer(201, {"status": "paid"})

    def do_GET(self) -> None:
        found = self.paid.get(self.path.rsplit("/", 1)[1])
        self._answer(200 if found else 404, found or {})

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def payments() -> Iterator[tuple[str, type[Payments]]]:
    handler = type("FreshPayments", (Payments,), {"paid": {}, "calls": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", handler
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def example(database: Any, payments: tuple[str, type[Payments]]) -> Iterator[dict[str, Any]]:
    """The two code blocks, executed, with nothing changed but the provider's address."""
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) == 2
    agreement.forget()
    with registry.isolated():
        names: dict[str, Any] = {}
        for block in blocks:
            exec(block.replace("https://payments.example", payments[0]), names)  # noqa: S102 our own README
        sync(registry.job_types())
        yield names
        names["api"].close()
    agreement.forget()


BODY = json.dumps({"version": 1, "account": "NL01", "cents": 1250}).encode()


def test_the_example_pays_once_and_answers_replay_and_conflict(
    example: dict[str, Any], payments: tuple[str, type[Payments]], tenants: tuple[str, str]
) -> None:
    assert [example["request_payout"](tenant, "payout-1", BODY) for tenant in tenants] == ["enqueued", "enqueued"]
    tasks.wake()
    assert run_one(example["send_payout"]) is None
    assert example["request_payout"](tenants[0], "payout-1", BODY) == "replay"
    assert len(payments[1].paid) == 2  # equal ids of two tenants are two payouts


def test_the_example_reconciles_after_a_worker_died_between_effect_and_completion(
    example: dict[str, Any], payments: tuple[str, type[Payments]], superuser: Any, tenants: tuple[str, str]
) -> None:
    job = example["send_payout"]
    example["request_payout"](tenants[0], "payout-1", BODY)
    (claim,) = protocol.claim(job_type=job.name, worker="host/1/died")
    from workitems.jobs.payloads import PostgresPayloads
    from workitems.jobs.work import Work

    job(Work(claim, job, store=PostgresPayloads()))  # acts, and dies before the completion
    superuser.execute("UPDATE work_item SET lease_expires_at = clock_timestamp() - interval '1 second'")
    assert run_one(job).ended is Ended.COMPLETED
    assert payments[1].calls == ["/payouts"]
    assert protocol.complete_many([(claim, "paid")]) == [False]
    with connections["worker"].cursor() as cursor:
        cursor.execute("SELECT state, outcome_code, attempts FROM work_item")
        assert cursor.fetchall() == [("succeeded", "paid", 2)]
