"""Servers that tests of targets act on: a payment provider with idempotency keys, and one that only counts and refuses."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


@dataclass
class Provider:
    """A provider that drops repeats of a key. `answers` decides, per request, what the caller gets to see."""

    url: str = ""
    requests: list[tuple[str, str]] = field(default_factory=list)  # method and key, as they came in
    effects: dict[str, object] = field(default_factory=dict)  # by key: what was done, once
    repeats: int = 0
    answers: list[Callable[[BaseHTTPRequestHandler, "Provider", str, object], None]] = field(default_factory=list)

    def act(self, key: str, body: object) -> None:
        if key in self.effects:
            self.repeats += 1
        else:
            self.effects[key] = body


def reply(handler: BaseHTTPRequestHandler, status: int, body: object = None) -> None:
    content = json.dumps(body).encode()
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(content)))
    handler.end_headers()
    handler.wfile.write(content)


def act_and_answer(handler: BaseHTTPRequestHandler, provider: Provider, key: str, body: object) -> None:
    provider.act(key, body)
    reply(handler, 201, {"paid": True})


def act_and_hang_up(handler: BaseHTTPRequestHandler, provider: Provider, key: str, body: object) -> None:
    provider.act(key, body)
    handler.close_connection = True


def hang_up(handler: BaseHTTPRequestHandler, provider: Provider, key: str, body: object) -> None:
    handler.close_connection = True


def answer(status: int) -> Callable[[BaseHTTPRequestHandler, Provider, str, object], None]:
    return lambda handler, provider, key, body: reply(handler, status)


@contextmanager
def provider() -> Iterator[Provider]:
    """POST /payments acts; GET /payments/<key> looks up. Without a planned answer it acts and answers 201."""
    known = Provider()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            key = self.headers.get("Idempotency-Key", "")
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            known.requests.append(("POST", key))
            planned = known.answers.pop(0) if known.answers else act_and_answer
            planned(self, known, key, body)

        def do_GET(self) -> None:
            key = self.path.rpartition("/")[2]
            known.requests.append(("GET", key))
            if known.answers:
                known.answers.pop(0)(self, known, key, None)
            elif key in known.effects:
                reply(self, 200, {"paid": True})
            else:
                reply(self, 404)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    known.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield known
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
