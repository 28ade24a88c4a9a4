"""Rights: which role may use which verb."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from workitems.tenancy import ROLES, give_right, take_right


class Command(BaseCommand):
    help = "Say which role may use which verb (as the owner role). A verb that no role has is nobody's."

    def add_arguments(self, parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="what", required=True)
        for word, text in (("give", "let a role use a verb"), ("take", "take a verb from a role")):
            one = verbs.add_parser(word, help=text)
            one.add_argument("role", choices=ROLES)
            one.add_argument("verb")
            one.add_argument("--reason", required=True, help="why, for the audit log")
        verbs.add_parser("list", help="every right")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["what"] == "list":
            with connections["owner"].cursor() as cursor:
                cursor.execute("SELECT r.role, r.verb FROM verb_right r ORDER BY r.role, r.verb")
                for role, verb in cursor.fetchall():
                    self.stdout.write(f"{role}  {verb}")
            return
        if not options["reason"].strip():
            raise CommandError("the reason is empty; say why in a sentence.")
        given = {"role": options["role"], "verb": options["verb"], "reason": options["reason"]}
        if options["what"] == "give":
            self.stdout.write("done" if give_right(**given) else "nothing to do: this role has it already")
        elif take_right(**given):
            self.stdout.write("done")
        else:
            raise CommandError(
                "nothing to take away: this role does not have that verb; `manage.py right list` shows all."
            )
