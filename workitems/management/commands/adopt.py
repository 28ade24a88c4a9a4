"""Take over a work table that is there already."""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from workitems import adoption
from workitems.guards import drift

HELP = """\
Adopt public.work_item of the article's shape in place, while its workers go on.

1. A DBA runs what `manage.py roles` and `manage.py adopt --script --worker ROLE` print, in one transaction.
2. `manage.py adopt --worker ROLE` runs the migrations and carries the table over. It may be stopped at any moment and run
   again; it needs about the table's size of free disk.
3. Its report says what was put right; `manage.py adopt --report` prints it again.
"""


class Command(BaseCommand):
    help = HELP

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> Any:
        return super().create_parser(prog_name, subcommand, formatter_class=RawDescriptionHelpFormatter, **kwargs)

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--worker",
            action="append",
            default=[],
            metavar="ROLE",
            help="a database role that workers or producers of the table sign in as; once for each",
        )
        what = parser.add_mutually_exclusive_group()
        what.add_argument("--script", action="store_true", help="print the DBA's part and change nothing")
        what.add_argument("--report", action="store_true", help="print what the adoption did up to now")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            if options["script"]:
                self.stdout.write(adoption.script(workers=options["worker"]))
                return
            if options["report"]:
                found = adoption.report()
                if found is None:
                    raise CommandError("this database's work table is not an adopted one.")
            else:
                found = adoption.adopt(workers=options["worker"], say=self.stderr.write)
        except adoption.CannotAdopt as error:
            raise CommandError(str(error)) from None
        self._tell(found)

    def _tell(self, found: adoption.Report) -> None:
        self.stdout.write(f"{found.rows:,} rows carried over; workers: {', '.join(found.workers)}")
        for what, count in sorted(found.normalised.items()):
            self.stdout.write(f"{count:>12,}  {what}")
        if not found.normalised:
            self.stdout.write("nothing had to be put right")
        self.stdout.write(
            "First seen is each row's last change before; failovers before the adoption are not known of."
        )
        if found.finished_at is None:
            self.stdout.write("Not finished: run `manage.py adopt` again.")
            return
        self.stdout.write(f"adopted {found.flipped_at:%Y-%m-%d %H:%M} UTC")
        for difference in drift.differences():
            self.stdout.write(f"differs from a table that Fencewatch makes: {difference.sentence}")
