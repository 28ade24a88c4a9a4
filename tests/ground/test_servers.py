import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import redis

from dashboard import servers
from tests.processes import ROOT, wait_until


@pytest.fixture
def folder() -> Iterator[Path]:
    """Below /tmp itself, where the user that PostgreSQL runs as under root may go."""
    made = Path(tempfile.mkdtemp(prefix="fencewatch-servers-"))
    made.chmod(0o711)
    yield made
    servers.erase_postgres(folder=made)


def count(server: servers.Postgres) -> int:
    with psycopg.connect(server.url()) as connection:
        row = connection.execute("SELECT count(*) FROM kept").fetchone()
    assert row is not None
    return int(row[0])


def test_a_killed_postgresql_comes_back_on_the_same_folder_with_its_rows_and_password(folder: Path) -> None:
    first = servers.start_postgres(folder=folder)
    with contextlib.closing(psycopg.connect(first.url(), autocommit=True)) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS row")
    first.process.kill()
    first.process.wait()
    second = servers.start_postgres(folder=folder)
    try:
        assert count(second) == 1
        assert second.password == first.password
    finally:
        second.stop()
    assert second.process.returncode == 0


def test_a_lock_file_that_names_an_unrelated_program_does_not_keep_postgresql_down(folder: Path) -> None:
    servers.start_postgres(folder=folder).stop()
    lock = (folder / "data").resolve() / "postmaster.pid"
    lock.write_text(f"{os.getpid()}\n{lock.parent}\n1\n5432\n\n127.0.0.1\n1 1\nready\n")
    servers.start_postgres(folder=folder).stop()


def test_a_second_start_on_a_running_folder_is_refused_and_harms_nothing(folder: Path) -> None:
    server = servers.start_postgres(folder=folder)
    try:
        with pytest.raises(servers.ServerFailed, match="already runs"):
            servers.start_postgres(folder=folder)
        psycopg.connect(server.url()).close()
    finally:
        server.stop()


def test_postgresql_asks_for_a_password_and_listens_on_the_loopback_address_only(folder: Path) -> None:
    server = servers.start_postgres(folder=folder)
    try:
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(server.url(password="wrong"))
        with psycopg.connect(server.url()) as connection:
            row = connection.execute(
                "SELECT current_setting('listen_addresses'), current_setting('unix_socket_directories')"
            ).fetchone()
        assert row == ("127.0.0.1", "")
    finally:
        server.stop()


def test_a_taken_port_is_told_in_one_sentence(folder: Path) -> None:
    first = servers.start_valkey(folder=folder / "valkey")
    try:
        assert servers.port_is_taken(first.port)
        with pytest.raises(servers.ServerFailed, match="PostgreSQL did not start"):
            servers.start_postgres(folder=folder, port=first.port)
    finally:
        first.stop()
    assert not servers.port_is_taken(first.port)


def test_valkey_comes_back_under_the_address_that_clients_know(tmp_path: Path) -> None:
    first = servers.start_valkey(folder=tmp_path)
    first.stop()
    second = servers.start_valkey(folder=tmp_path, port=first.port, password=first.password)
    try:
        assert second.url == first.url
        assert redis.Redis.from_url(first.url).ping()
        with pytest.raises(redis.AuthenticationError):
            redis.Redis(host="127.0.0.1", port=first.port).ping()
    finally:
        second.stop()


STARTER = """
import sys
from pathlib import Path
from dashboard import servers
folder = Path(sys.argv[1])
postgres = servers.start_postgres(folder=folder)
valkey = servers.start_valkey(folder=folder / "valkey")
print(postgres.process.pid, valkey.process.pid, postgres.port, valkey.port, flush=True)
sys.stdin.read()
"""


def test_servers_go_when_their_starter_is_killed_outright(folder: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTER, str(folder)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as starter:
        assert starter.stdout is not None
        ports = [int(word) for word in starter.stdout.readline().split()[2:]]
        starter.send_signal(signal.SIGKILL)
    for port in ports:
        wait_until(lambda port=port: not servers.port_is_taken(port), what="the server let go of its port")


def has_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_stopped_program_and_its_children_are_ended(tmp_path: Path) -> None:
    shell = servers.spawn(["sh", "-c", "sleep 300 & echo $!; wait"], log=tmp_path / "log")
    wait_until(lambda: (tmp_path / "log").read_text().strip(), what="the child was started")
    child = int((tmp_path / "log").read_text())
    shell.send_signal(signal.SIGSTOP)
    servers.end(shell, seconds=5)
    assert shell.returncode is not None
    wait_until(lambda: has_gone(child), what="the child went with it")


def test_ending_a_program_that_went_by_itself_ends_what_it_left_behind(tmp_path: Path) -> None:
    shell = servers.spawn(["sh", "-c", "sleep 300 & echo $!"], log=tmp_path / "log")
    wait_until(lambda: (tmp_path / "log").read_text().strip(), what="the child was started")
    child = int((tmp_path / "log").read_text())
    servers.end(shell)
    servers.end(shell)
    wait_until(lambda: has_gone(child), what="the child went too")
