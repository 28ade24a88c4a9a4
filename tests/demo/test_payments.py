"""The demo's payment API keeps what it promises about idempotency keys."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from dashboard.demo.world import payments

BODY = {"tenant": "acme-eu", "operation": "payout-1001", "amount": 500}


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return tmp_path / "payments.jsonl"


@pytest.fixture
def api(record: Path) -> Iterator[httpx.Client]:
    server = payments.make_server(0, record)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    with httpx.Client(base_url=f"http://127.0.0.1:{server.server_address[1]}", timeout=5) as client:
        yield client
        client.delete("/control")
    server.shutdown()
    thread.join()
    server.server_close()


def pay(api: httpx.Client, *, key: str, body: object = BODY, timeout: float = 5) -> httpx.Response:
    return api.post("/payments", json=body, headers={"Idempotency-Key": key}, timeout=timeout)


def paid(record: Path) -> list[str]:
    return [json.loads(line)["key"] for line in record.read_text().splitlines()] if record.exists() else []


def test_the_same_key_and_body_pay_once(api: httpx.Client, record: Path) -> None:
    first, second = pay(api, key="k1"), pay(api, key="k1")
    assert (first.status_code, second.status_code) == (201, 200)
    assert second.json() == first.json()
    assert second.headers["Idempotent-Replayed"] == "true"
    assert paid(record) == ["k1"]


def test_the_same_key_with_another_body_is_refused(api: httpx.Client, record: Path) -> None:
    pay(api, key="k1")
    assert pay(api, key="k1", body=BODY | {"amount": 501}).status_code == 422
    assert paid(record) == ["k1"]


def test_another_key_pays_again(api: httpx.Client, record: Path) -> None:
    pay(api, key="k1")
    assert pay(api, key="k2").status_code == 201
    assert paid(record) == ["k1", "k2"]


def test_a_call_without_a_key_or_a_body_pays_nothing(api: httpx.Client, record: Path) -> None:
    assert api.post("/payments", json=BODY).status_code == 400
    assert pay(api, key="k1", body=["no payment"]).status_code == 400
    assert paid(record) == []


def test_a_look_up_finds_what_was_paid_and_nothing_else(api: httpx.Client) -> None:
    number = pay(api, key="k1").json()["payment"]
    assert api.get("/payments/by-key/k1").json()["payment"] == number
    assert api.get("/payments/by-key/k2").status_code == 404


def test_a_stalled_answer_was_recorded_before_it_stalled(api: httpx.Client, record: Path) -> None:
    api.post("/control", json={"kind": "stall", "seconds": 60})
    with pytest.raises(httpx.ReadTimeout):
        pay(api, key="k1", timeout=0.3)
    assert paid(record) == ["k1"]
    held = api.get("/control").json()["held"]
    assert held == [{"tenant": "acme-eu", "operation": "payout-1001", "kind": "stall"}]
    assert api.get("/payments/by-key/k1").status_code == 200


def test_a_key_is_forgotten_after_its_window(record: Path) -> None:
    books, body = payments.Payments(record=record), json.dumps(BODY).encode()
    books.pay(key="k1", body=body, now=0)
    assert books.pay(key="k1", body=body, now=payments.WINDOW_SECONDS - 1)[0] == 200
    assert books.look_up(key="k1", now=payments.WINDOW_SECONDS + 1) is None
    assert books.pay(key="k1", body=body, now=payments.WINDOW_SECONDS + 1)[0] == 201


def test_the_books_survive_a_restart(record: Path) -> None:
    body = json.dumps(BODY).encode()
    _, first = payments.Payments(record=record).pay(key="k1", body=body, now=0)
    code, again = payments.Payments(record=record).pay(key="k1", body=body, now=1)
    assert (code, again) == (200, first)


def test_a_half_written_last_line_does_not_keep_the_books_closed(record: Path) -> None:
    body = json.dumps(BODY).encode()
    _, first = payments.Payments(record=record).pay(key="k1", body=body, now=0)
    with record.open("a") as cut_short:
        cut_short.write('{"number": 2, "ke')
    books = payments.Payments(record=record)
    assert books.look_up(key="k1", now=1) == first
    books.pay(key="k2", body=body, now=1)
    assert paid(record) == ["k1", "k2"]
