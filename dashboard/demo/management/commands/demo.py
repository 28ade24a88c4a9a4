import os
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from dashboard.demo.console import Console
from dashboard.demo.stage import CannotRun, run


class Command(BaseCommand):
    help = "Run the demo until Ctrl-C: servers, workers, pages, and a small company with an outside world that fails."
    requires_system_checks: list[str] = []  # Django's own declaration

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--port", type=int, default=8000, help="where the pages listen (default: 8000)")
        parser.add_argument("--fresh", action="store_true", help="begin anew: the data of earlier runs is removed")

    def handle(self, *args: Any, port: int, fresh: bool, **options: Any) -> None:
        folder = Path(os.environ.get("FENCEWATCH_DEMO_DIR") or settings.ROOT / ".demo").resolve()
        if not 1 <= port <= 65_535:
            sys.exit(f"{port} is no port. Choose one from 1024 to 65535: make demo PORT=8001")
        try:
            run(folder=folder, port=port, fresh=fresh, console=Console())
        except CannotRun as error:
            sys.exit(str(error))
