"""Failovers that lost nothing: propose, confirm, withdraw, list, as a person who signs in."""

from argparse import ArgumentParser
from getpass import getpass
from typing import Any

from django.contrib.auth import authenticate
from django.core.management.base import BaseCommand, CommandError

from dashboard.access import operator_context
from workitems.operations import failovers


class Command(BaseCommand):
    help = (
        "Put on record, as two different persons, that a failover lost no claim, so that items enqueued before it need no"
        " reconcile. Runs where the pages run; asks for the person's password."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        verbs.add_parser("list", help="every record and where it stands").add_argument("username")
        propose = verbs.add_parser("propose", help="say, with evidence, that nothing was lost")
        propose.add_argument("username")
        propose.add_argument("from_timeline", type=int)
        propose.add_argument("to_timeline", type=int)
        propose.add_argument("--evidence", required=True)
        for verb, text in (("confirm", "confirm what somebody else proposed"), ("withdraw", "take it back")):
            one = verbs.add_parser(verb, help=text)
            one.add_argument("username")
            one.add_argument("failover", type=int)
        for name in ("propose", "confirm", "withdraw"):
            verbs.choices[name].add_argument("--reason", required=True)

    def handle(self, *args: Any, **options: Any) -> None:
        user = authenticate(username=options["username"], password=getpass(f"Password of {options['username']}: "))
        if user is None or user.pk is None:
            raise CommandError("this name and password do not go together, or the account is closed.")
        verb = options["verb"]
        with operator_context(user.pk, username=user.get_username(), writes=verb != "list"):
            match verb:
                case "list":
                    self._list()
                    return
                case "propose":
                    answer = failovers.propose(
                        since=options["from_timeline"],
                        until=options["to_timeline"],
                        reason=options["reason"],
                        evidence=options["evidence"],
                    )
                case "confirm":
                    answer = failovers.confirm(options["failover"], reason=options["reason"])
                case _:
                    answer = failovers.withdraw(options["failover"], reason=options["reason"])
        if answer.because is not None:
            raise CommandError(answer.sentence)
        number = f" Its number is {answer.failover_id}; it waits for a second person." if answer.failover_id else ""
        self.stdout.write(answer.sentence + number)

    def _list(self) -> None:
        found = failovers.everything()
        for one in found:
            at = f"{one.proposed_at:%Y-%m-%d %H:%M}"
            self.stdout.write(
                f"{one.failover_id}  timeline {one.from_timeline} to {one.to_timeline}  {one.stands}  {at} UTC"
            )
        if not found:
            self.stdout.write("None on record, or none that you may see.")
