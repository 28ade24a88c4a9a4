from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from workitems.errors import BadJobType
from workitems.jobs.agreement import Difference, difference, sync
from workitems.jobs.registry import load


class Command(BaseCommand):
    help = "Write the job types of FENCEWATCH_JOB_MODULES into the job_type table, so that workers of this version may claim."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when code and table differ")
        parser.add_argument("--reason", default="", help="why, for the audit log")
        parser.add_argument("--database", default="owner", help="the alias to write with (default: owner)")

    def handle(self, *args: Any, check: bool, database: str, reason: str, **options: Any) -> None:
        try:
            job_types = load(settings.JOB_MODULES)
        except BadJobType as error:
            raise CommandError(str(error)) from error
        found = difference(job_types, using=database) if check else sync(job_types, reason=reason, using=database)
        self._report(found, done=not check)
        if check and not found.is_none:
            raise CommandError("Code and the job_type table differ; run `manage.py sync_job_types`.")

    def _report(self, found: Difference, *, done: bool) -> None:
        for name in found.added:
            self.stdout.write(f"{'added' if done else 'to add'}: {name}")
        for name in found.changed:
            self.stdout.write(f"{'changed' if done else 'to change'}: {name}")
        for name in found.unchanged:
            self.stdout.write(f"unchanged: {name}")
        for name in found.gone:
            self.stdout.write(f"no longer in code, kept: {name}")
        if not (found.added or found.changed or found.unchanged or found.gone):
            self.stdout.write("No job types: FENCEWATCH_JOB_MODULES names no module that registers one.")
