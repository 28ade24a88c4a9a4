"""Whether the database's rules are still those that this version laid."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from workitems.guards import drift, install


class Command(BaseCommand):
    help = (
        "Compare roles, rights, policies, triggers, functions, columns, constraints and indexes with the repository's, and "
        "name each object that differs. Exits with 1 when one does. Reads system tables only, as the owner role."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--lay",
            action="store_true",
            help="lay functions, triggers, policies and table rights anew, then compare; takes the work table for a moment",
        )
        parser.add_argument(
            "--write",
            action="store_true",
            help="for developers: write the manifest anew from this database, a fresh one",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if not install.is_current():
            raise CommandError("this database was laid by another version, or by none: run `manage.py migrate` first.")
        if options["write"]:
            drift.MANIFEST.write_text(drift.live().text, encoding="utf-8")
            self.stdout.write(f"written: {drift.MANIFEST}")
            return
        if options["lay"]:
            install.install(again=True)
        found = drift.differences()
        for difference in found:
            self.stderr.write(difference.sentence)
        if found:
            here, there = drift.live().server, drift.manifest().server
            worded = f" The manifest was written on PostgreSQL {there}; {here} may word the same rule in another way."
            raise CommandError(
                f"{len(found):,} of the database's rules are not this version's. Find out who changed them and why;"
                " `manage.py drift --lay` lays functions, triggers, policies and table rights anew, the DBA's script from"
                f" `manage.py roles` the roles.{worded if here != there else ''}"
            )
        self.stdout.write(f"{len(drift.manifest().objects):,} objects: as this version laid them")
