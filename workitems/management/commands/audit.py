"""The audit log's seals: make them, publish them, check them."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from workitems.oversight import audit


class Command(BaseCommand):
    help = "Seal the audit log (as the keeper), print a checkpoint to publish, or check the log (as the owner role)."

    def add_arguments(self, parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        verbs.add_parser("seal", help="seal the entries that wait; beat does so every few seconds")
        verbs.add_parser("checkpoint", help="print the newest seal as one line, to be kept outside the database")
        verify = verbs.add_parser("verify", help="compute every hash anew; exits with 1 when something was altered")
        verify.add_argument("--checkpoints", type=Path, metavar="FILE", help="published lines to hold the log against")

    def handle(self, *args: Any, **options: Any) -> None:
        match options["verb"]:
            case "seal":
                self.stdout.write(f"{self._seal():,} entries sealed")
            case "checkpoint":
                newest = audit.checkpoint()
                if newest is None:
                    raise CommandError("nothing is sealed yet: `manage.py audit seal`, or wait for beat.")
                self.stdout.write(newest.line)
            case "verify":
                self._verify(options["checkpoints"])

    def _seal(self) -> int:
        total = 0
        while sealed := audit.seal():
            total += sealed
        return total

    def _verify(self, path: Path | None) -> None:
        try:
            published = () if path is None else audit.read_checkpoints(path.read_text().splitlines())
        except OSError as error:
            raise CommandError(f"the file of checkpoints cannot be read: {error.strerror}.") from None
        except ValueError as error:
            raise CommandError(str(error)) from None
        found = audit.verify(checkpoints=published)
        for fault in found.faults:
            self.stderr.write(fault.sentence)
        waiting = f"; {found.unsealed:,} wait for their seal, the oldest for {found.lag_seconds:.0f} s"
        counted = f"{found.entries:,} entries in {found.seals:,} seals{waiting if found.unsealed else ''}"
        if not found.is_whole:
            raise CommandError(f"the log is not as it was sealed ({counted}). Keep a copy before anything else.")
        self.stdout.write(f"{counted}: as they were sealed")
        if published:
            self.stdout.write(f"{found.checkpoints:,} published checkpoints fit")
        else:
            self.stdout.write("no checkpoint was given: a tail that was cut or rewritten whole would not show")
