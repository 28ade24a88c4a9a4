"""Tenants: add one, list them, rotate one's digest key."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import IntegrityError, connections

from workitems.errors import FencewatchError
from workitems.identifiers import show
from workitems.operations.rotation import RESOLVE_DAYS, redigest, retire_tenant_key, rotate_tenant_key, rows_left
from workitems.tenancy import add_tenant, label_tenant


class Command(BaseCommand):
    help = "Add or label a tenant, list tenants, or rotate a tenant's digest key (as the owner role)."

    def add_arguments(self, parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        add = verbs.add_parser("add", help="a new tenant, with a random key of its own")
        add.add_argument("tenant_id")
        add.add_argument("--label", default="", help="what pages call it; never the id (default: its digest)")
        label = verbs.add_parser("label", help="what pages call a tenant from now on")
        label.add_argument("tenant_id")
        label.add_argument("label", help="never the id; '' shows its digest")
        verbs.add_parser("list", help="every tenant: digest, label, key version")
        rotate = verbs.add_parser("rotate-key", help="a new key for the tenant's rows from now on")
        anew = verbs.add_parser("redigest", help="carry the tenant's earlier rows over to its newest key, in batches")
        retire = verbs.add_parser("retire-key", help="destroy a key that no row and no tombstone needs any more")
        for one in (rotate, anew, retire):
            one.add_argument("tenant_id")
            one.add_argument("--reason", required=True, help="why, for the audit log")
        anew.add_argument(
            "--resolve-days", type=int, default=RESOLVE_DAYS, help=f"how long old links resolve ({RESOLVE_DAYS})"
        )
        anew.add_argument("--batch", type=int, default=1_000, help="rows in one transaction (1000)")
        retire.add_argument("version", type=int)

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            match options["verb"]:
                case "add":
                    digest = add_tenant(tenant_id=options["tenant_id"], label=options["label"])
                    self.stdout.write(f"added {show(digest, prefix='tn')}")
                case "label":
                    if not label_tenant(tenant_id=options["tenant_id"], label=options["label"]):
                        raise CommandError("there is no such tenant; `tenant list` shows what is there.")
                    self.stdout.write("labelled")
                case "rotate-key":
                    version = rotate_tenant_key(tenant_id=options["tenant_id"], reason=_reason(options))
                    self.stdout.write(
                        f"key version {version} for rows from now on; `tenant redigest` carries the others"
                    )
                case "redigest":
                    self._redigest(options)
                case "retire-key":
                    self._retire(options)
                case "list":
                    self._list()
        except FencewatchError as error:
            raise CommandError(str(error)) from None
        except IntegrityError:
            raise CommandError(
                "nothing is changed: the id exists already, or the label repeats it or is over 60 characters;"
                " `tenant list` shows what is there."
            ) from None

    def _redigest(self, options: dict[str, Any]) -> None:
        if not 1 <= options["batch"] <= 10_000 or not 0 <= options["resolve_days"] <= 3_650:
            raise CommandError("a batch has 1 to 10,000 rows, and old links resolve for 0 to 3,650 days.")
        tenant_id, total = options["tenant_id"], 0
        for batch in redigest(
            tenant_id=tenant_id,
            resolve_days=options["resolve_days"],
            batch=options["batch"],
            reason=_reason(options),
        ):
            total = batch.total
            if options["verbosity"] > 1:
                self.stdout.write(f"{total:,} rows so far")
        self.stdout.write(f"{total:,} rows digested anew; their old links lead on for {options['resolve_days']} days")
        if rows_left(tenant_id=tenant_id):
            raise CommandError("some rows were locked by others all the while: run it again.")

    def _retire(self, options: dict[str, Any]) -> None:
        version = options["version"]
        answer = retire_tenant_key(tenant_id=options["tenant_id"], version=version, reason=_reason(options))
        if answer is None:
            raise CommandError("there is no such tenant or no such key; `tenant list` shows what is there.")
        if answer.is_newest:
            raise CommandError("this is the tenant's newest key, which new rows need: `tenant rotate-key` first.")
        if answer.rows_left:
            raise CommandError("rows still carry this key: `tenant redigest` first.")
        if answer.tombstones_left:
            raise CommandError(
                f"{answer.tombstones_left:,} tombstones carry this key, and their ids are gone: without it, work that"
                " was done and removed would be enqueued as new. The key stays."
            )
        self.stdout.write(f"key version {version} is destroyed")

    def _list(self) -> None:
        with connections["owner"].cursor() as cursor:
            cursor.execute(
                "SELECT t.tenant_digest, t.label, string_agg(k.version::text, ', ' ORDER BY k.version)"
                " FROM tenant t LEFT JOIN fencewatch.tenant_key k USING (tenant_id)"
                " GROUP BY t.tenant_id ORDER BY t.created_at"
            )
            for digest, label, versions in cursor.fetchall():
                self.stdout.write(f"{show(bytes(digest), prefix='tn')}  key {versions}  {label or '-'}")


def _reason(options: dict[str, Any]) -> str:
    if not options["reason"].strip():
        raise CommandError("the reason is empty; say why in a sentence.")
    return str(options["reason"])
