"""A text gateway of the plain kind: no idempotency key, no look-up. Who asks twice sends twice.

`POST /texts` sends one text. What was sent is one line of a record that only the demo's counter reads; no caller of the
gateway can. Outages: `drop` sends the text and then breaks the connection without an answer; `stall` sends it and holds
the answer back; `refuse` answers 503 before sending.
"""

import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

from dashboard.demo.world.loopback import JsonHandler, LoopbackServer, serve
from dashboard.demo.world.outages import Held, Outages
from dashboard.demo.world.records import whole_lines


class TextRecord:
    """Append-only: one line a text."""

    def __init__(self, *, path: Path) -> None:
        whole_lines(path)
        self._path = path
        self._lock = threading.Lock()

    def append(self, *, tenant: str, operation: str) -> None:
        line = json.dumps({"tenant": tenant, "operation": operation, "at": time.time()})
        with self._lock, self._path.open("a") as record:
            record.write(line + "\n")


class TextHandler(JsonHandler):
    """The gateway's paths."""

    record: TextRecord

    def do_POST(self) -> None:
        if self.control():
            return
        body = self.body()
        if self.path != "/texts":
            self.answer(404, {"error": "no such path"})
            return
        try:
            wanted: dict[str, Any] = json.loads(body)
            tenant, operation = str(wanted["tenant"]), str(wanted["operation"])
        except (ValueError, KeyError, TypeError):
            self.answer(400, {"error": "body is not a text"})
            return
        if self.outages.take(kind="refuse") is not None:
            self.answer(503, {"error": "busy; nothing was sent"})
            return
        self.record.append(tenant=tenant, operation=operation)
        if self.outages.take(kind="drop") is not None:
            self._break_off()
            return
        seconds = self.outages.take(kind="stall")
        if seconds is not None:
            self.outages.hold(seconds=seconds, held=Held(tenant=tenant, operation=operation, kind="stall"))
        self.answer(202, {"accepted": True})

    def do_GET(self) -> None:
        if self.control():
            return
        self.answer(*((200, {"ok": True}) if self.path == "/health" else (404, {"error": "no such path"})))

    def _break_off(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)


def make_server(port: int, record: Path) -> LoopbackServer:
    """The gateway on the loopback; port 0 takes a free one."""
    handler = type("BoundTextHandler", (TextHandler,), {"record": TextRecord(path=record), "outages": Outages()})
    return LoopbackServer(("127.0.0.1", port), handler)


if __name__ == "__main__":
    serve(make_server)
