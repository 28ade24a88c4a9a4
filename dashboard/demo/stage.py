"""Sets the demo up, keeps it going until it is told to end, and takes it down."""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import psycopg

from dashboard import servers
from dashboard.demo import keys
from dashboard.demo.casting import Addresses, programs, seed_environment, shell_exports
from dashboard.demo.console import Console, standing
from dashboard.demo.crew import ROOT, Crew, kill_descendants
from dashboard.demo.effects import EffectCounter
from dashboard.demo.family import descendants
from dashboard.demo.world.records import Records

READY_SECONDS = 60.0
DATABASE = "fencewatch"


class CannotRun(Exception):
    """The demo cannot start or go on; the message is one sentence or two for the person who started it."""


class ToldToEnd(BaseException):
    """Ctrl-C, or a signal that means the same. No Exception: nothing on the way may take it for an error."""


def run(*, folder: Path, port: int, fresh: bool, console: Console) -> None:
    """Run the demo until it is told to end.

    Raises: CannotRun.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _sole_user(folder, port=port), _ending():
        if servers.port_is_taken(port):
            raise CannotRun(
                f"Port {port} is taken by another program. Stop that one, or choose another: make demo PORT={_next_free(port)}"
            )
        if fresh:
            _erase(folder)
        _Stage(folder=folder, port=port, console=console).play()


class _Stage:
    def __init__(self, *, folder: Path, port: int, console: Console) -> None:
        self._folder = folder
        self._console = console
        self._keys = keys.load(folder=folder)
        self._crew = Crew(folder=folder)
        self._records = Records(folder=folder)
        self._url = f"http://127.0.0.1:{port}"
        self._port = port
        self._postgres: servers.Postgres | None = None
        self._valkey: servers.Valkey | None = None

    def play(self) -> None:
        try:
            addresses = self._set_up()
            self._console.welcome(url=self._url, folder=_shown(self._folder), passwords=self._keys.people)
            keys.write_private(self._folder / "env", shell_exports(addresses, kept=self._keys))
            self._go_on(addresses)
        except servers.ServerFailed as error:
            raise CannotRun(str(error)) from None
        except ToldToEnd:
            self._console.say()
            self._console.say("Ending ...")
        finally:
            self._take_down()
        self._console.say(
            f"Every program has ended. The data stays in {_shown(self._folder)}; `make demo` goes on with it."
        )

    # -- set-up -------------------------------------------------------------------------------------------------------
    def _set_up(self) -> Addresses:
        started = time.monotonic()
        self._console.say("Setting up:")
        with self._console.step("PostgreSQL"):
            self._postgres = servers.start_postgres(folder=self._folder / "postgres")
            with psycopg.connect(self._postgres.url(), autocommit=True) as connection:
                if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone():
                    connection.execute(f"CREATE DATABASE {DATABASE} TEMPLATE template0 ENCODING 'UTF8'")
        with self._console.step("Valkey"):
            self._valkey = servers.start_valkey(folder=self._folder / "valkey")
        addresses = Addresses(
            folder=self._folder,
            url=self._url,
            bind=f"127.0.0.1:{self._port}",
            database=self._postgres.url(database=DATABASE),
            broker=self._valkey.url,
            payments=servers.free_port(),
            gateway=servers.free_port(),
            ledger=servers.free_port(),
        )
        acts = programs(addresses, kept=self._keys, records=self._records)
        with self._console.step("payment API, text gateway, ledger"):
            for program in acts.world:
                self._crew.start(program)
            for name, port in addresses.world.items():
                self._await(f"http://127.0.0.1:{port}/control", name=name)
        self._seed(addresses)
        with self._console.step("pages and workers"):
            for program in acts.product:
                self._crew.start(program)
            self._await(f"{self._url}/sign-in/", name="pages")
        for program in acts.company:
            self._crew.start(program)
        self._console.say(f"Ready after {time.monotonic() - started:.1f} s.")
        return addresses

    def _seed(self, addresses: Addresses) -> None:
        log = self._crew.log_of("seed")
        with log.open("ab") as errors:
            seeding = subprocess.Popen(
                [sys.executable, "-m", "dashboard.demo.seed"],
                cwd=ROOT,
                env=seed_environment(addresses, kept=self._keys),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert seeding.stdout is not None  # PIPE
        step, since = "", time.monotonic()
        with seeding:
            for line in seeding.stdout:
                if step:
                    self._console.took(step, seconds=time.monotonic() - since)
                step, since = line.strip(), time.monotonic()
                self._console.begin(step)
        if seeding.returncode:
            raise CannotRun(f"The database could not be set up ({step or 'start'}); the reason is at the end of {log}.")
        self._console.took(step, seconds=time.monotonic() - since)

    def _await(self, url: str, *, name: str) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not _answers(url):
            if time.monotonic() > deadline or self._crew.process(name).poll() is not None:
                raise CannotRun(f"The {name} did not start; the reason is at the end of {self._crew.log_of(name)}.")
            time.sleep(0.1)

    # -- while it runs ------------------------------------------------------------------------------------------------
    def _go_on(self, addresses: Addresses) -> None:
        counter = EffectCounter(records=self._records)
        report_at = time.monotonic() + self._console.every
        while True:
            time.sleep(0.5)
            self._mind_servers()
            for name in self._crew.mind():
                if name != "old worker":
                    self._console.say(f"The {name} ended; starting again. Its log: {self._crew.log_of(name)}")
            if time.monotonic() >= report_at:
                report_at = time.monotonic() + self._console.every
                with contextlib.suppress(psycopg.OperationalError), psycopg.connect(addresses.database) as connection:
                    self._console.report(now=standing(connection), effects=counter.count(connection))

    def _mind_servers(self) -> None:
        if self._postgres is not None and self._postgres.process.poll() is not None:
            raise CannotRun(
                f"PostgreSQL ended by itself; its log is below {self._folder}/postgres. `make demo` goes on with the data."
            )
        gone = self._valkey
        if gone is not None and gone.process.poll() is not None:
            # It carries wake-ups only: without it work goes on with the next start, and nothing is lost.
            self._console.say("Valkey ended; starting again.")
            self._valkey = servers.start_valkey(folder=self._folder / "valkey", port=gone.port, password=gone.password)

    # -- the end ------------------------------------------------------------------------------------------------------
    def _take_down(self) -> None:
        for how in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(how, signal.SIG_IGN)
        (self._folder / "env").unlink(missing_ok=True)
        self._crew.stop()
        kept = {server.process.pid for server in (self._postgres, self._valkey) if server is not None}
        kill_descendants(spare=kept.union(*(descendants(pid) for pid in kept)))
        for server in (self._valkey, self._postgres):
            if server is not None:
                server.stop()
        kill_descendants(spare=set())


@contextmanager
def _sole_user(folder: Path, *, port: int) -> Iterator[None]:
    """Hold the folder's lock, which the kernel lets go when this process ends, however that happens."""
    with (folder / "lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise CannotRun(_already_runs(folder, lock.read())) from None
        lock.truncate(0)
        lock.write(json.dumps({"pid": os.getpid(), "url": f"http://127.0.0.1:{port}"}))
        lock.flush()
        yield
        lock.truncate(0)


@contextmanager
def _ending() -> Iterator[None]:
    """Let Ctrl-C, SIGTERM and a closed terminal mean the same: take everything down."""

    def end(number: int, frame: FrameType | None) -> None:
        raise ToldToEnd

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    former = {how: signal.signal(how, end) for how in signals}
    try:
        yield
    finally:
        for how, handler in former.items():
            signal.signal(how, handler)


def _already_runs(folder: Path, noted: str) -> str:
    where = ""
    with contextlib.suppress(ValueError, KeyError):
        running = json.loads(noted)
        where = f": {running['url']}, process {running['pid']}"
    return f"A demo already runs in {_shown(folder)}{where}. Use that one, or end it with Ctrl-C first."


def _erase(folder: Path) -> None:
    servers.erase_postgres(folder=folder / "postgres")
    for entry in folder.iterdir():
        if entry.name != "lock":
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def _next_free(port: int) -> int:
    candidates: Iterator[int] = (other for other in range(port + 1, 65536) if not servers.port_is_taken(other))
    return next(candidates, 8001)


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()  # noqa: S310  # loopback http
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def _shown(folder: Path) -> str:
    """The folder as a person would name it from here."""
    with contextlib.suppress(ValueError):
        return str(folder.relative_to(Path.cwd()))
    return str(folder)
