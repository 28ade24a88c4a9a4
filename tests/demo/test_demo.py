"""The demo as a person runs it: set up, full of genuine stuck work within a minute, and gone without a trace."""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psycopg
import pytest

from dashboard import servers
from dashboard.demo.family import census, descendants
from tests.processes import ROOT, wait_until

EVERYTHING_WITHIN = 90.0  # seconds after the demo said that it is ready
WANTED = {
    *("stalled", "lying", "takeover", "unknown, may have acted", "registered nowhere", "legacy"),
    *("queued", "claimed", "succeeded", "failed_terminal", "unknown", "quarantined"),
    *("hash_mismatch", "unparseable", "unknown_version", "payload_missing", "schema_invalid"),
}
SEEN = """
SELECT state FROM work_item
UNION SELECT outcome_code FROM work_item WHERE state = 'quarantined'
UNION SELECT 'unknown, may have acted' FROM work_item WHERE state = 'unknown' AND effect_fence IS NOT NULL
UNION SELECT 'stalled' FROM work_item WHERE state = 'claimed' AND lease_expires_at < clock_timestamp()
UNION SELECT 'lying' FROM work_item w JOIN job_type t ON t.name = w.job_type
       WHERE w.state = 'claimed' AND w.lease_expires_at >= clock_timestamp() AND NOT w.waiting_in_worker
         AND w.progress_at + make_interval(secs => t.progress_seconds) < clock_timestamp()
UNION SELECT 'takeover' FROM work_event WHERE verb = 'takeover'
UNION SELECT 'legacy' FROM work_item WHERE job_type = 'legacy' AND attempts > 0
UNION SELECT 'registered nowhere' FROM work_item w WHERE NOT EXISTS (SELECT FROM job_type t WHERE t.name = w.job_type)
"""


@dataclass(frozen=True, kw_only=True)
class Demo:
    process: subprocess.Popen[bytes]
    folder: Path
    port: int
    printed: Path

    @property
    def exports(self) -> dict[str, str]:
        lines = [shlex.split(line) for line in (self.folder / "env").read_text().splitlines()]
        return dict(words[1].split("=", 1) for words in lines)

    def text(self) -> str:
        return self.printed.read_text()


def command(*, folder: Path, port: int) -> tuple[list[str], dict[str, str]]:
    """The demo's command line and an environment that says nothing about Fencewatch but where."""
    named = ("FENCEWATCH_", "CELERY_", "DJANGO_")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(named) and not k.endswith("DATABASE_URL")}
    clean |= {"FENCEWATCH_DEMO": "1", "FENCEWATCH_DEMO_DIR": str(folder)}
    return [sys.executable, "manage.py", "demo", "--port", str(port)], clean


def start(*, folder: Path, port: int, printed: Path) -> Demo:
    arguments, environment = command(folder=folder, port=port)
    process = servers.spawn(arguments, log=printed, environment=environment, folder=ROOT)
    return Demo(process=process, folder=folder, port=port, printed=printed)


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    """A demo that has said it is ready. PostgreSQL's data goes with it at the end."""
    running = start(folder=tmp_path / "demo", port=servers.free_port(), printed=tmp_path / "printed.txt")
    try:
        wait_until(lambda: "Ctrl-C ends it all" in running.text(), what="it was ready", process=running.process)
        yield running
    finally:
        servers.end(running.process, how=signal.SIGINT, seconds=30)
        servers.erase_postgres(folder=running.folder / "postgres")


def run_refused(*, folder: Path, port: int) -> str:
    """Run the demo where it cannot run, and give the one thing that it says."""
    arguments, environment = command(folder=folder, port=port)
    ended = subprocess.run(
        arguments, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=30, check=False
    )
    assert ended.returncode == 1
    assert ended.stdout == ""
    return ended.stderr.strip()


def test_a_taken_port_gets_a_sentence_and_the_next_step(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = run_refused(folder=tmp_path / "demo", port=port)
    found = re.fullmatch(
        rf"Port {port} is taken by another program\. Stop that one, or choose another: make demo PORT=(\d+)", said
    )
    assert found is not None, said
    assert int(found[1]) > port


@pytest.mark.timeout(240)
def test_the_demo_fills_the_pages_and_leaves_nothing_behind(demo: Demo) -> None:
    started = set(descendants(demo.process.pid))
    assert oct((demo.folder / "env").stat().st_mode & 0o777) == "0o600"
    missing = wait_for_everything(demo, started)
    assert not missing, f"not seen within {EVERYTHING_WITHIN} seconds: {sorted(missing)}"
    assert_a_printed_user_signs_in(demo)
    assert "A demo already runs" in run_refused(folder=demo.folder, port=servers.free_port())
    wait_until(lambda: all_targets_acted(demo), what="the counter saw effects at A, B and C", process=demo.process)
    assert {duplicates for *_, duplicates in reports(demo)} == {"0"}
    assert "not fenced, at most one attempt per decision" in demo.text()

    started |= set(descendants(demo.process.pid))
    demo.process.send_signal(signal.SIGINT)
    assert demo.process.wait(30) == 0
    left = [pid for pid in started if pid in census()]
    assert left == []
    assert not (demo.folder / "env").exists()


def reports(demo: Demo) -> list[tuple[str, str, str, str]]:
    """What the console counted so far: effects at A, B and C, and duplicates."""
    return re.findall(r"A (\d+)/\d+  B (\d+)/\d+  C (\d+)/\d+  duplicates (\d+)", demo.text())


def all_targets_acted(demo: Demo) -> bool:
    return any("0" not in report[:3] for report in reports(demo))


def wait_for_everything(demo: Demo, started: set[int]) -> set[str]:
    """Watch the work table until every kind of item was there; returns what was not. Gathers pids on the way."""
    seen: set[str] = set()
    deadline = time.monotonic() + EVERYTHING_WITHIN
    with psycopg.connect(demo.exports["OWNER_DATABASE_URL"], autocommit=True) as owner:
        owner.execute("SET ROLE fencewatch_owner")
        while not seen >= WANTED and time.monotonic() < deadline and demo.process.poll() is None:
            seen |= {kind for (kind,) in owner.execute(SEEN).fetchall()}
            started |= set(descendants(demo.process.pid))
            time.sleep(0.5)
    return WANTED - seen


def assert_a_printed_user_signs_in(demo: Demo) -> None:
    row = re.search(r"^  (\S+) +operator +all tenants +(\S+)$", demo.text(), re.MULTILINE)
    assert row is not None
    with httpx.Client(base_url=demo.exports["FENCEWATCH_URL"], follow_redirects=True, timeout=10) as browser:
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', browser.get("/sign-in/").text)
        assert token is not None
        form = {"username": row[1], "password": row[2], "csrfmiddlewaretoken": token[1]}
        answer = browser.post("/sign-in/", data=form, headers={"Referer": str(browser.base_url)})
        assert (answer.status_code, answer.url.path) == (200, "/")
        assert browser.get("/work/?state=unknown").status_code == 200
