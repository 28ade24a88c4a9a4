"""Said: what a command says of itself for the audit log. A claim, not proof: the log keeps the database role beside it."""

import contextlib
import getpass
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from django.db import connections, transaction


@contextlib.contextmanager
def said(*, reason: str = "", using: str = "owner") -> Iterator[None]:
    """A transaction whose entries name the system user, this version and the reason. Settings end with it."""
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        cursor.execute(
            "SELECT set_config('fencewatch.said_by', %s, true), set_config('fencewatch.software_version', %s, true),"
            " set_config('fencewatch.reason', %s, true)",
            [_system_user(), software_version(), reason],
        )
        yield


def software_version() -> str:
    """The installed version, or `unknown` where the project runs from its sources."""
    try:
        return version("fencewatch")
    except PackageNotFoundError:
        return "unknown"


def _system_user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user id without a name, as in many containers
        return "unknown"
