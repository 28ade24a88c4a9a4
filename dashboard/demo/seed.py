"""Brings the demo's database to where the programs can start. Running it again changes nothing.

A program of its own: it needs the settings of every role, which the demo makes up only after it has started.
"""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import django
import psycopg
from botocore.exceptions import ClientError
from django.conf import settings
from django.core.management import call_command
from django.db import connections

from dashboard.demo import keys
from dashboard.demo.company import ANYBODY, LEDGER_TABLE, PEOPLE, REGION, TENANTS, Person, address_of

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient

LEGACY_PROGRESS_SECONDS = 15  # so that a lying old worker shows within the demo's first minute


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
    kept = keys.load(folder=Path(os.environ["FENCEWATCH_DEMO_DIR"]))
    django.setup()
    from workitems.jobs.targets.conditional_store import dynamodb

    _tell("roles")
    _make_roles(kept)
    _tell("tables")
    call_command("migrate", database="owner", verbosity=0, interactive=False)
    with connections["owner"].cursor() as cursor:
        cursor.execute(Path(__file__).with_name("company.sql").read_text())
        legacy = json.dumps({"name": "legacy", "progress_seconds": LEGACY_PROGRESS_SECONDS})
        cursor.execute("SELECT fencewatch.put_job_type(%s::jsonb)", [legacy])
    _tell("tenants, people, job types")
    _add_company(kept)
    call_command("sync_job_types", stdout=sys.stderr)
    make_ledger(dynamodb(region=REGION, endpoint=address_of("ledger"), access_key=ANYBODY, secret_key=ANYBODY))
    _tell("static files")
    call_command("collectstatic", interactive=False, verbosity=0)


def _tell(step: str) -> None:
    """One line per step for the demo, which shows it with its duration."""
    print(step, flush=True)


def _make_roles(kept: keys.Keys) -> None:
    from workitems.management.commands.roles import script

    # As bytes: the script is no literal that a type checker could vouch for.
    with psycopg.connect(os.environ["FENCEWATCH_SUPERUSER_URL"]) as connection:
        connection.execute(script(passwords=kept.roles).encode())


def _add_company(kept: keys.Keys) -> None:
    from workitems.tenancy import add_membership, add_tenant, install_context_key

    assert settings.CONTEXT_KEY is not None  # the demo gives it
    install_context_key(key=settings.CONTEXT_KEY)
    with connections["owner"].cursor() as cursor:
        cursor.execute("SELECT tenant_id FROM tenant")
        there = {tenant_id for (tenant_id,) in cursor.fetchall()}
    for tenant in TENANTS:
        if tenant.tenant_id not in there:
            add_tenant(tenant_id=tenant.tenant_id, label=tenant.label)
    for person in PEOPLE:
        user_id = _add_user(person, password=kept.people[person.username])
        for tenant_id in person.tenants or (None,):
            add_membership(user_id=user_id, tenant_id=tenant_id, role=person.role)


def _add_user(person: Person, *, password: str) -> int:
    from django.contrib.auth.models import User

    user = User.objects.using("accounts").filter(username=person.username).first()
    if user is None:
        user = User(username=person.username)
    if not user.check_password(password):
        user.set_password(password)
        user.save(using="accounts")
    return int(user.pk)


def make_ledger(client: "DynamoDBClient") -> None:
    """Create the ledger's table if it is not there."""
    try:
        client.create_table(
            TableName=LEDGER_TABLE,
            KeySchema=[
                {"AttributeName": "tenant", "KeyType": "HASH"},
                {"AttributeName": "operation", "KeyType": "RANGE"},
            ],
            AttributeDefinitions=[
                {"AttributeName": "tenant", "AttributeType": "S"},
                {"AttributeName": "operation", "AttributeType": "S"},
            ],
            BillingMode="PAY_PER_REQUEST",
        )
    except ClientError as error:
        if error.response["Error"]["Code"] != "ResourceInUseException":
            raise


if __name__ == "__main__":
    main()
