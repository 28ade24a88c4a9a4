"""Real programs on a test's database: gunicorn, Celery workers, commands. Each is ended by its pid when the test ends."""

import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dashboard import servers
from tests.cluster import Database

ROOT = Path(__file__).resolve().parent.parent
WAIT_SECONDS = 60


@dataclass(frozen=True, kw_only=True)
class Pages:
    """gunicorn with the pages at ``url``, which has no slash at its end."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path


type StartProcess = Callable[..., tuple[subprocess.Popen[bytes], Path]]


@pytest.fixture
def start_process(database: Database, tmp_path: Path) -> Iterator[StartProcess]:
    """
    ``start_process("-m", "celery", ..., JOB_MODULES="x")``: run this Python with the arguments on the test's database.

    Keyword arguments are environment variables; None takes one away. Returns the process and the file with its output.
    Signals are the test's to send (``process.send_signal``); a stopped process is ended all the same.
    """
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str, **variables: str | None) -> tuple[subprocess.Popen[bytes], Path]:
        log = tmp_path / f"process-{len(started)}.log"
        changed = {**database.environment, "PYTHONUNBUFFERED": "1", **variables}
        process = servers.spawn(
            [sys.executable, *arguments],
            log=log,
            environment={name: value for name, value in changed.items() if value is not None},
            folder=ROOT,
        )
        started.append(process)
        return process, log

    yield start
    for process in reversed(started):
        servers.end(process, seconds=15)


def wait_until(happened: Callable[[], object], *, what: str, process: subprocess.Popen[bytes] | None = None) -> None:
    """Ask until ``happened()`` is true. The test fails when the process ends first or nothing happens in time."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not happened():
        if process is not None and process.poll() is not None:
            pytest.fail(f"The process ended with {process.returncode} before {what}.")
        if time.monotonic() > deadline:
            pytest.fail(f"Not within {WAIT_SECONDS} seconds: {what}.")
        time.sleep(0.05)


@pytest.fixture
def start_pages(start_process: StartProcess) -> Callable[..., Pages]:
    """``start_pages(FENCEWATCH_SCRIPT_NAME="/ops")``: gunicorn on a free port, as in production but for https."""

    def start(**variables: str | None) -> Pages:
        port = servers.free_port()
        url = f"http://127.0.0.1:{port}"
        process, log = start_process(
            *("-m", "gunicorn", "--config", "deploy/gunicorn.py"),
            **{
                "FENCEWATCH_BIND": f"127.0.0.1:{port}",
                "FENCEWATCH_WEB_PROCESSES": "1",
                "FENCEWATCH_POOL_SIZE": "8",
                "FENCEWATCH_URL": url,
                # The pages get no other role's connection.
                "WORKER_DATABASE_URL": None,
                "KEEPER_DATABASE_URL": None,
                "OWNER_DATABASE_URL": None,
                **variables,
            },
        )
        wait_until(lambda: _answers(url), what=f"the pages answered (see {log})", process=process)
        return Pages(url=url, process=process, log=log)

    return start


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()  # noqa: S310  # loopback http
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


@pytest.fixture
def pages(start_pages: Callable[..., Pages]) -> Pages:
    return start_pages()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[servers.Valkey]:
    """
    A Valkey of this test alone. ``broker.stop()`` takes it away; start_valkey with its port and password brings it back.
    """
    server = servers.start_valkey(folder=tmp_path / "valkey")
    yield server
    server.stop()


@pytest.fixture
def start_celery(start_process: StartProcess, broker: servers.Valkey) -> StartProcess:
    """``start_celery("worker", "--pool=solo", FENCEWATCH_JOB_MODULES="...")`` or ``start_celery("beat")``, on the broker."""

    def start(*arguments: str, **variables: str | None) -> tuple[subprocess.Popen[bytes], Path]:
        return start_process(
            *("-m", "celery", "--app", "dashboard.celery", *arguments, "--loglevel", "INFO"),
            **{
                "CELERY_BROKER_URL": broker.url,
                "FENCEWATCH_LOG_LEVEL": "INFO",
                "DATABASE_URL": None,
                "ACCOUNTS_DATABASE_URL": None,
                "OWNER_DATABASE_URL": None,
                **variables,
            },
        )

    return start
