import base64
import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Mapping
from typing import Any

import psycopg
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from workitems.guards import sql

# Which alias holds the password of which role in roles.sql.
ALIASES = {
    "migrator": "owner",
    "web": "default",
    "accounts": "accounts",
    "worker": "worker",
    "reconciler": "reconciler",
    "keeper": "keeper",
}
ITERATIONS = 4096  # PostgreSQL's own default


def verifier(password: str, *, iterations: int = ITERATIONS, salt: bytes | None = None) -> str:
    """
    What PostgreSQL stores for a password (RFC 5803), so that neither the script nor a statement log holds the password.

    Raises ValueError for other than printable ASCII characters, which clients would have to normalise (RFC 4013).
    """
    if not re.fullmatch(r"[!-~]{1,200}", password):
        raise ValueError("A role's password must be 1 to 200 printable ASCII characters without spaces.")
    salt = salt or secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, iterations)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server = hmac.digest(salted, b"Server Key", "sha256")
    coded = [base64.b64encode(part).decode() for part in (salt, stored, server)]
    return f"SCRAM-SHA-256${iterations}:{coded[0]}${coded[1]}:{coded[2]}"


def script(*, passwords: Mapping[str, str | None], iterations: int = ITERATIONS) -> str:
    """roles.sql with each '{{role_password}}' filled; a role without a password gets none and cannot sign in with one."""

    def fill(found: re.Match[str]) -> str:
        password = passwords.get(found[1])
        return f"'{verifier(password, iterations=iterations)}'" if password else "NULL"

    return re.sub(r"'\{\{(\w+)_password\}\}'", fill, sql("guards/roles.sql"))


class Command(BaseCommand):
    help = (
        "Print the script that makes the database roles, for a DBA to run in the database as superuser. Passwords are"
        " those of the URLs in the environment, written as SCRAM verifiers. --execute runs it instead."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--execute", action="store_true", help="run it as the role in FENCEWATCH_SUPERUSER_URL")

    def handle(self, *args: Any, execute: bool, **options: Any) -> None:
        passwords = {role: settings.DATABASES.get(alias, {}).get("PASSWORD") for role, alias in ALIASES.items()}
        try:
            text = script(passwords=passwords)
        except ValueError as error:
            raise CommandError(str(error)) from None
        if not execute:
            self.stdout.write(text)
            return
        url = os.environ.get("FENCEWATCH_SUPERUSER_URL", "")
        if not url:
            raise CommandError("FENCEWATCH_SUPERUSER_URL is missing: --execute connects as that role.")
        with psycopg.connect(url) as connection:
            connection.execute(text.encode())
        self.stdout.write("The roles are there.")
