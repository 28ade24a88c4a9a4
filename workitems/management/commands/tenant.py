"""Tenants: add one, list them, give one a new key."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import IntegrityError, connections

from workitems.errors import FencewatchError
from workitems.identifiers import show
from workitems.tenancy import add_tenant, rotate_tenant_key


class Command(BaseCommand):
    help = "Add a tenant, list tenants, or rotate a tenant's digest key (as the owner role)."

    def add_arguments(self, parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        add = verbs.add_parser("add", help="a new tenant, with a random key of its own")
        add.add_argument("tenant_id")
        add.add_argument("--label", default="", help="what pages call it; never the id (default: its digest)")
        verbs.add_parser("list", help="every tenant: digest, label, key version")
        rotate = verbs.add_parser("rotate-key", help="a new key for the tenant's rows from now on")
        rotate.add_argument("tenant_id")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            match options["verb"]:
                case "add":
                    digest = add_tenant(tenant_id=options["tenant_id"], label=options["label"])
                    self.stdout.write(f"added {show(digest, prefix='tn')}")
                case "rotate-key":
                    self.stdout.write(f"key version {rotate_tenant_key(tenant_id=options['tenant_id'])} from now on")
                case "list":
                    self._list()
        except FencewatchError as error:
            raise CommandError(str(error)) from None
        except IntegrityError:
            raise CommandError(
                "not added: the id exists already, or the label repeats it; `tenant list` shows what is there."
            ) from None

    def _list(self) -> None:
        with connections["owner"].cursor() as cursor:
            cursor.execute(
                "SELECT t.tenant_digest, t.label, max(k.version)"
                " FROM tenant t LEFT JOIN fencewatch.tenant_key k USING (tenant_id)"
                " GROUP BY t.tenant_id ORDER BY t.created_at"
            )
            for digest, label, version in cursor.fetchall():
                self.stdout.write(f"{show(bytes(digest), prefix='tn')}  key {version}  {label or '-'}")
