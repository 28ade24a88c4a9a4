import os
import subprocess
import sys

import pytest

CASES = [
    ("worker", "CELERY_BROKER_URL"),
    ("worker", "WORKER_DATABASE_URL"),
    ("worker", "KEEPER_DATABASE_URL"),
    ("beat", "CELERY_BROKER_URL"),
]


@pytest.mark.parametrize(("command", "variable"), CASES)
@pytest.mark.parametrize("bad", [False, True])
def test_celery_does_not_start_without_what_it_needs_and_names_it_in_one_sentence(
    command: str, variable: str, bad: bool
) -> None:
    environment = {**os.environ, "CELERY_BROKER_URL": "redis://127.0.0.1:1/0", variable: "nonsense" if bad else ""}
    ended = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "dashboard", command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode != 0
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith(f"Fencewatch cannot start: {variable} is "), ended.stderr
    assert "Traceback" not in ended.stderr
