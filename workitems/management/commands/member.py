"""Memberships: give a person a role in one tenant or in all of them, take it away, list."""

from argparse import ArgumentParser
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from workitems.identifiers import show
from workitems.tenancy import ROLES, add_membership, remove_membership


class Command(BaseCommand):
    help = "Give or take roles in tenants (as the owner role). Nobody sees anything without one."

    def add_arguments(self, parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        for verb, text in (("add", "give a role"), ("remove", "take a role away")):
            one = verbs.add_parser(verb, help=text)
            one.add_argument("username")
            one.add_argument("role", choices=ROLES)
            where = one.add_mutually_exclusive_group(required=True)
            where.add_argument("--tenant", metavar="ID")
            where.add_argument("--all-tenants", action="store_true")
            one.add_argument("--reason", default="", help="why, for the audit log")
        verbs.add_parser("list", help="every membership")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["verb"] == "list":
            self._list()
            return
        user = get_user_model().objects.using("owner").filter(username=options["username"]).first()
        if user is None:
            raise CommandError(
                "no such user; make one with `manage.py createsuperuser --database accounts`, then come back."
            )
        tenant = None if options["all_tenants"] else options["tenant"]
        if tenant is not None and not self._tenant_exists(tenant):
            raise CommandError("no such tenant; `manage.py tenant list` shows what is there.")
        if options["verb"] == "add":
            changed = add_membership(user_id=user.pk, tenant_id=tenant, role=options["role"], reason=options["reason"])
            self.stdout.write(f"{options['username']} is {options['role']} {'now' if changed else 'already'}")
        elif remove_membership(user_id=user.pk, tenant_id=tenant, role=options["role"], reason=options["reason"]):
            self.stdout.write(f"{options['username']} is no longer {options['role']}")
        else:
            raise CommandError("nothing to take away: this person does not have that role there.")

    def _tenant_exists(self, tenant_id: str) -> bool:
        with connections["owner"].cursor() as cursor:
            cursor.execute("SELECT FROM tenant WHERE tenant_id = %s", [tenant_id])
            return cursor.fetchone() is not None

    def _list(self) -> None:
        with connections["owner"].cursor() as cursor:
            cursor.execute(
                "SELECT u.username, m.role, m.tenant_digest FROM membership m JOIN auth_user u ON u.id = m.user_id"
                " ORDER BY u.username, m.role, m.membership_id"
            )
            for username, role, digest in cursor.fetchall():
                self.stdout.write(
                    f"{username}  {role}  {show(bytes(digest), prefix='tn') if digest else 'all tenants'}"
                )
