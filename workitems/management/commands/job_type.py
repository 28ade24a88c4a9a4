"""Job types on hold: keep workers from claiming one, and let them again."""

from argparse import ArgumentParser
from datetime import UTC, datetime, timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from workitems.jobs.agreement import hold, release_hold


class Command(BaseCommand):
    help = "Put a job type on hold or release it (as the owner role). What is claimed goes on; nothing new is claimed."

    def add_arguments(self, parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        one = verbs.add_parser("hold", help="nothing of it is claimed until then")
        one.add_argument("name")
        one.add_argument("--hours", type=float, required=True)
        one.add_argument("--reason", required=True)
        one = verbs.add_parser("release", help="let workers claim it again")
        one.add_argument("name")
        one.add_argument("--reason", required=True)

    def handle(self, *args: Any, **options: Any) -> None:
        if not options["reason"].strip():
            raise CommandError("the reason is empty; say why in a sentence.")
        if options["verb"] == "hold":
            if not 0 < options["hours"] <= 24 * 366:
                raise CommandError("--hours must lie between 0 and 8,784 (a year).")
            until = datetime.now(UTC) + timedelta(hours=options["hours"])
            found: bool | None = hold(options["name"], until=until, reason=options["reason"]) or None
        else:
            found = release_hold(options["name"], reason=options["reason"])
        if found is None:
            raise CommandError("no such job type; the names are those of `manage.py sync_job_types --check`.")
        self.stdout.write("done" if found else "nothing to do: it was not on hold")
