"""The demo's passwords and keys: random, made once, kept in the demo's folder for its owner alone."""

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from dashboard.demo.company import PEOPLE

ROLES = ("migrator", "web", "accounts", "worker", "reconciler", "keeper")


@dataclass(frozen=True, kw_only=True, slots=True)
class Keys:
    """What `keys.json` holds."""

    roles: Mapping[str, str]
    people: Mapping[str, str]
    secret_key: str
    context_key: str


def load(*, folder: Path) -> Keys:
    """The folder's keys; made at the first call."""
    path = folder / "keys.json"
    if path.exists():
        return Keys(**json.loads(path.read_text()))
    keys = Keys(
        roles={role: secrets.token_hex(16) for role in ROLES},
        people={person.username: _password() for person in PEOPLE},
        secret_key=secrets.token_urlsafe(64),
        context_key=secrets.token_hex(32),
    )
    write_private(path, json.dumps(asdict(keys)))
    return keys


def write_private(path: Path, text: str) -> None:
    """Write a file that nobody but its owner may read, at no moment."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    new.replace(path)


def _password() -> str:
    """Four groups of four, without the letters and digits that look alike: 76 bits, easy to type."""
    letters = "abcdefghjkmnpqrstuvwxyz23456789"
    return "-".join("".join(secrets.choice(letters) for _ in range(4)) for _ in range(4))
