"""The ledger's store: DynamoDB as moto plays it, with a journal on disk, since moto itself keeps everything in memory.

Every write that moto accepted is appended to the journal before it is answered; a start replays the journal, and then
replaces it by what the tables hold, so that it stays as short as the data. Each accepted posting is one more line of
`<journal>.postings`, which is never shortened: an item that is written twice looks like one item, but is two lines there.

Outage `slow`: a posting is held back before the store looks at it.
"""

import argparse
import base64
import io
import json
import logging
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

from dashboard.demo.world.outages import Held, Outages
from dashboard.demo.world.records import postings_of, whole_lines

WRITES = {"CreateTable", "PutItem", "UpdateItem"}
POSTING = "PutItem"
Environ = dict[str, Any]
StartResponse = Callable[..., Any]
Application = Callable[[Environ, StartResponse], Iterable[bytes]]


class Journal:
    """A WSGI application around another one that notes accepted writes."""

    def __init__(self, *, application: Application, path: Path) -> None:
        self._application = application
        self._path = path
        self._outages = Outages()
        # One write at a time: the journal's order is then the order in which the store took them.
        self._lock = threading.Lock()

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if environ.get("PATH_INFO") == "/control":
            return self._control(environ, start_response)
        target = str(environ.get("HTTP_X_AMZ_TARGET", ""))
        verb = target.rpartition(".")[2]
        if verb not in WRITES:
            return self._application(environ, start_response)
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(body)
        if verb == POSTING and (seconds := self._outages.take(kind="slow")) is not None:
            self._outages.hold(seconds=seconds, held=Held(kind="slow", **_identity(body)))
        with self._lock:
            answer = _Answer()
            content = b"".join(self._application(environ, answer))
            if answer.status.startswith("200"):
                self._append(target=target, body=body)
                if verb == POSTING:
                    with postings_of(self._path).open("a") as postings:
                        postings.write(json.dumps(_identity(body)) + "\n")
        start_response(answer.status, answer.headers)
        return [content]

    def replay(self) -> None:
        """Bring the store to where the journal ends, then shorten the journal."""
        whole_lines(postings_of(self._path))
        lines = [json.loads(line) for line in whole_lines(self._path)]
        for line in lines:
            self._call(target=line["target"], body=base64.b64decode(line["body"]))
        shorter = self._path.with_suffix(".new")
        with shorter.open("w") as journal:
            created = [line for line in lines if line["target"].endswith(".CreateTable")]
            for line in created:
                journal.write(json.dumps(line) + "\n")
                table = json.loads(base64.b64decode(line["body"]))["TableName"]
                for item in self._scan(table=table):
                    put = json.dumps({"TableName": table, "Item": item}).encode()
                    journal.write(_line(target="DynamoDB_20120810.PutItem", body=put))
        os.replace(shorter, self._path)

    def _control(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] == "POST":
            wanted = json.loads(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)))
            self._outages.plan(
                kind=str(wanted["kind"]), times=int(wanted.get("times", 1)), seconds=float(wanted.get("seconds", 0))
            )
        elif environ["REQUEST_METHOD"] == "DELETE":
            self._outages.clear()
        start_response("200 OK", [("Content-Type", "application/json")])
        return [json.dumps(self._outages.report()).encode()]

    def _append(self, *, target: str, body: bytes) -> None:
        with self._path.open("a") as journal:
            journal.write(_line(target=target, body=body))

    def _scan(self, *, table: str) -> Iterable[dict[str, Any]]:
        request: dict[str, Any] = {"TableName": table}
        while True:
            page = json.loads(self._call(target="DynamoDB_20120810.Scan", body=json.dumps(request).encode()))
            yield from page["Items"]
            if "LastEvaluatedKey" not in page:
                return
            request["ExclusiveStartKey"] = page["LastEvaluatedKey"]

    def _call(self, *, target: str, body: bytes) -> bytes:
        environ: Environ = {
            "REQUEST_METHOD": "POST", "SCRIPT_NAME": "", "PATH_INFO": "/", "QUERY_STRING": "", "SERVER_NAME": "127.0.0.1",
            "SERVER_PORT": "80", "SERVER_PROTOCOL": "HTTP/1.1", "HTTP_HOST": "127.0.0.1", "HTTP_X_AMZ_TARGET": target,
            "HTTP_AUTHORIZATION": "AWS4-HMAC-SHA256 Credential=demo/20260101/eu-central-1/dynamodb/aws4_request",
            "CONTENT_TYPE": "application/x-amz-json-1.0", "CONTENT_LENGTH": str(len(body)),
            "wsgi.input": io.BytesIO(body), "wsgi.errors": io.StringIO(), "wsgi.url_scheme": "http",
            "wsgi.version": (1, 0), "wsgi.multithread": False, "wsgi.multiprocess": False, "wsgi.run_once": False,
        }  # fmt: skip
        return b"".join(self._application(environ, _Answer()))


class _Answer:
    """Takes status and headers from the inner application."""

    status = ""
    headers: list[tuple[str, str]] = []

    def __call__(self, status: str, headers: list[tuple[str, str]], exc_info: object = None) -> None:
        self.status, self.headers = status, headers


def _identity(body: bytes) -> dict[str, str]:
    item: dict[str, dict[str, str]] = json.loads(body)["Item"]
    return {"tenant": item["tenant"]["S"], "operation": item["operation"]["S"]}


def _line(*, target: str, body: bytes) -> str:
    return json.dumps({"target": target, "body": base64.b64encode(body).decode()}) + "\n"


def main() -> None:
    """Run the store: `--port` on the loopback, `--record` its journal."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--record", type=Path, required=True)
    options = parser.parse_args()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # not a line per request
    store = Journal(application=DomainDispatcherApplication(create_backend_app), path=options.record)
    store.replay()
    server = make_server("127.0.0.1", options.port, store, threaded=True, request_handler=MotoRequestHandler)
    server.serve_forever()


if __name__ == "__main__":
    main()
