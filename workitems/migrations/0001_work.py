from typing import ClassVar

from django.db import migrations

from workitems.guards import sql

FILES = (
    "guards/tables.sql",
    "guards/identity.sql",
    "guards/guard.sql",
    "protocol/functions.sql",
    "guards/triggers.sql",
    "guards/policies.sql",
)


class Migration(migrations.Migration):
    """The work table, its guard, its history, its policies."""

    initial = True
    operations: ClassVar = [migrations.RunSQL(sql(name)) for name in FILES]
