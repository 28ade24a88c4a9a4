"""deploy/bootstrap.sh on a copy of the few files that it reads, with interpreters and a uv of our own making."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT

READ = ("deploy/bootstrap.sh", ".python-version", "requirements/uv.txt")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in READ:
        (tmp_path / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / "copy" / name)
    for name in ("base", "demo", "dev"):
        (tmp_path / "copy" / "requirements" / f"{name}.txt").write_text(f"# {name}\n")
    return tmp_path / "copy"


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def with_uv(copy: Path) -> Path:
    """A uv that notes what it was asked for, and gives the environment this interpreter."""
    pinned = next(line for line in (ROOT / "requirements/uv.txt").read_text().splitlines() if line.startswith("uv=="))
    version = pinned.split()[0].removeprefix("uv==")
    calls = copy.parent / "calls"
    calls.touch()
    program(
        copy / ".uv/bin/uv",
        f'[ "$1" = --version ] && {{ echo "uv {version}"; exit; }}\n'
        f'echo "$@" >> {calls}\n'
        f'[ "$1" = venv ] && {{ mkdir -p .venv/bin; ln -s {sys.executable} .venv/bin/python; }}; true',
    )
    return calls


def bootstrap(copy: Path, *arguments: str, path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    tools = copy.parent / "tools"
    tools.mkdir(exist_ok=True)
    for name in ("sh", "sed", "cat", "grep", "cksum", "dirname", "pwd", "rm", "mkdir", "ln"):
        if not (tools / name).exists():
            (tools / name).symlink_to(str(shutil.which(name)))
    environment = {"PATH": f"{path}:{tools}", "HOME": str(copy.parent / "home"), **variables}
    library = os.environ.get("LD_LIBRARY_PATH")
    return subprocess.run(
        ["sh", "deploy/bootstrap.sh", *arguments],
        cwd=copy,
        env=environment | ({"LD_LIBRARY_PATH": library} if library else {}),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_name_on_the_path_that_does_not_run_is_passed_over(copy: Path, tmp_path: Path) -> None:
    calls = with_uv(copy)
    program(tmp_path / "path/python3.13", "echo 'no such version' >&2; exit 127")
    program(tmp_path / "path/python3.12", f'exec {sys.executable} "$@"')
    done = bootstrap(copy, "demo", path=tmp_path / "path")
    assert done.returncode == 0, done.stderr
    assert "path/python3.13" not in calls.read_text()
    assert "--require-hashes" in calls.read_text()
    assert calls.read_text().rstrip().endswith("requirements/demo.txt")


def test_a_second_call_does_nothing_until_a_locked_file_changes(copy: Path, tmp_path: Path) -> None:
    calls = with_uv(copy)
    for _ in range(2):
        assert bootstrap(copy, "dev", path=tmp_path, FENCEWATCH_PYTHON=sys.executable).returncode == 0
    assert calls.read_text().count("pip sync") == 1
    (copy / "requirements/dev.txt").write_text("# newer\n")
    assert bootstrap(copy, "dev", path=tmp_path, FENCEWATCH_PYTHON=sys.executable).returncode == 0
    assert calls.read_text().count("pip sync") == 2
    assert calls.read_text().count("venv --quiet") == 1


def test_a_larger_set_stays_when_a_smaller_one_is_asked_for(copy: Path, tmp_path: Path) -> None:
    calls = with_uv(copy)
    for wanted in ("demo", "dev", "demo", "base"):
        assert bootstrap(copy, wanted, path=tmp_path, FENCEWATCH_PYTHON=sys.executable).returncode == 0
    assert [line.rpartition("/")[2] for line in calls.read_text().splitlines() if "sync" in line] == [
        "demo.txt",
        "dev.txt",
    ]


def test_a_python_that_cannot_make_environments_names_the_debian_package(copy: Path, tmp_path: Path) -> None:
    program(tmp_path / "python", 'case "$2" in *version_info*) echo 3.11 ;; *) exit 1 ;; esac')
    done = bootstrap(copy, "dev", path=tmp_path, FENCEWATCH_PYTHON=str(tmp_path / "python"))
    assert done.returncode == 1
    assert "install the Debian package python3-venv" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_without_any_python_that_runs_the_sentence_names_both_packages(copy: Path, tmp_path: Path) -> None:
    done = bootstrap(copy, "dev", path=tmp_path, FENCEWATCH_PYTHON=str(tmp_path / "nowhere"))
    assert done.returncode == 1
    assert "python3 and python3-venv" in done.stderr


def test_too_old_a_python_asks_uv_for_one_and_says_so_when_there_is_none(copy: Path, tmp_path: Path) -> None:
    with_uv(copy)
    text = (copy / ".uv/bin/uv").read_text()
    program(copy / ".uv/bin/uv", text.replace("#!/bin/sh\n", '[ "$1" = python ] && exit 1\n'))
    program(tmp_path / "python", 'case "$2" in *version_info*) echo 3.11 ;; esac')
    done = bootstrap(copy, "dev", path=tmp_path, FENCEWATCH_PYTHON=str(tmp_path / "python"))
    assert done.returncode == 1
    assert "is Python 3.11, 3.12 or newer is needed" in done.stderr


def test_locked_files_hold_versions_and_hashes_and_no_address() -> None:
    for name in ("base", "demo", "dev", "uv"):
        for line in (ROOT / "requirements" / f"{name}.txt").read_text().splitlines():
            assert "://" not in line
            assert not line.startswith(("--", "#"))
            assert "==" in line or line.startswith("    --hash=sha256:")
