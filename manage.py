#!/usr/bin/env python
"""Fencewatch's command line."""

import os
import sys

from django.core.exceptions import ImproperlyConfigured
from django.core.management import execute_from_command_line
from django.db import OperationalError

# SQLSTATEs of a server that let nobody in: wrong password or role, no such database, no connection left, starting up.
NOT_LET_IN = ("28000", "28P01", "3D000", "53300", "57P03")


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        if "--traceback" in sys.argv:
            raise
        # A setting that is missing or wrong is for the person who starts the process: one sentence, no stack.
        sys.exit(f"Fencewatch cannot start: {error}")
    except OperationalError as error:
        said = _not_connected(error)
        if said is None or "--traceback" in sys.argv:
            raise
        sys.exit(
            f"The database was not reached: {said}. Look at the ..._DATABASE_URL of the role that this command needs."
        )


def _not_connected(error: OperationalError) -> str | None:
    # What a failed connection says: host, port, role and database, never the password. Other errors keep their stack.
    text = str(error).strip().partition("\n")[0].removeprefix("connection failed: ").rstrip(".")
    state = getattr(error.__cause__, "sqlstate", None)
    return text if state in NOT_LET_IN or (state is None and "connect" in text) else None


if __name__ == "__main__":
    main()
