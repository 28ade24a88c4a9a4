#!/usr/bin/env python
"""Fencewatch's command line."""

import os
import sys

from django.core.exceptions import ImproperlyConfigured
from django.core.management import execute_from_command_line


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        if "--traceback" in sys.argv:
            raise
        # A setting that is missing or wrong is for the person who starts the process: one sentence, no stack.
        sys.exit(f"Fencewatch cannot start: {error}")


if __name__ == "__main__":
    main()
