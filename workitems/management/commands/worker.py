"""Workers by tenant group: which tenants the workers of a role see."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import IntegrityError, connections

from workitems.identifiers import show
from workitems.tenancy import allow_worker, withdraw_worker


class Command(BaseCommand):
    help = (
        "Say which tenants the workers of a database role see (as the owner role). fencewatch_worker itself sees all; any other"
        " member of it sees those that are named for it, and none where nothing is."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="what", required=True)
        for word, text in (("allow", "let a role see a tenant"), ("withdraw", "take a tenant from a role")):
            one = verbs.add_parser(word, help=text)
            one.add_argument("role")
            whom = one.add_mutually_exclusive_group(required=True)
            whom.add_argument("--tenant", metavar="TENANT_ID")
            whom.add_argument("--all", action="store_true", help="every tenant, those to come among them")
            one.add_argument("--reason", required=True, help="why, for the audit log")
        verbs.add_parser("list", help="every role and its tenants")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["what"] == "list":
            self._list()
            return
        if not options["reason"].strip():
            raise CommandError("the reason is empty; say why in a sentence.")
        change = allow_worker if options["what"] == "allow" else withdraw_worker
        try:
            changed = change(role=options["role"], tenant_id=options["tenant"], reason=options["reason"])
        except IntegrityError:
            raise CommandError("there is no such tenant; `manage.py tenant list` shows what is there.") from None
        if changed is None:
            raise CommandError(
                "there is no such role. A DBA makes it and says GRANT fencewatch_worker TO it WITH INHERIT TRUE, SET FALSE."
            )
        self.stdout.write("done" if changed else "nothing to do: it is so already")

    def _list(self) -> None:
        with connections["owner"].cursor() as cursor:
            cursor.execute(
                "SELECT role::text, tenant_digest FROM fencewatch.worker_scope ORDER BY role, tenant_digest NULLS FIRST"
            )
            for role, digest in cursor.fetchall():
                self.stdout.write(f"{role}  {show(bytes(digest), prefix='tn') if digest else 'every tenant'}")
