"""What the payment API and the text gateway share: JSON over HTTP on the loopback, and `/control` for outages."""

import argparse
import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

from dashboard.demo.world.outages import Outages


class LoopbackServer(ThreadingHTTPServer):
    """A threaded HTTP server whose held-back answers never keep it from ending."""

    daemon_threads = True
    request_queue_size = 64


class JsonHandler(BaseHTTPRequestHandler):
    """Reads and answers JSON. A subclass answers its own paths; `/control` is answered here."""

    protocol_version = "HTTP/1.1"
    outages: ClassVar[Outages]

    def answer(self, code: int, body: dict[str, object], **headers: str) -> None:
        """Send one JSON answer. A caller that is gone meanwhile is no error of this server."""
        content = json.dumps(body).encode()
        try:
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(content)
        except ConnectionError:
            self.close_connection = True

    def body(self) -> bytes:
        """The request's exact bytes."""
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def control(self) -> bool:
        """Answer `/control`: GET reports, POST plans, DELETE clears. False for any other path."""
        if self.path != "/control":
            return False
        if self.command == "POST":
            wanted: dict[str, Any] = json.loads(self.body())
            self.outages.plan(
                kind=str(wanted["kind"]), times=int(wanted.get("times", 1)), seconds=float(wanted.get("seconds", 0))
            )
        elif self.command == "DELETE":
            self.outages.clear()
        self.answer(200, self.outages.report())
        return True

    def do_DELETE(self) -> None:
        if not self.control():
            self.answer(404, {"error": "no such path"})

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class's name
        """Say nothing per request: what counts is in the server's own record."""


def serve(make_server: Callable[[int, Path], LoopbackServer]) -> None:
    """Run one server of the outside world: `--port` on the loopback, `--record` its append-only file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--record", type=Path, required=True)
    options = parser.parse_args()
    server = make_server(options.port, options.record)
    try:
        server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
