from typing import ClassVar

from django.db import migrations

from workitems.guards import sql


class Migration(migrations.Migration):
    """The work table, tenants and their keys, history, payloads. What guards them is laid after the migrations (install.py)."""

    initial = True
    operations: ClassVar = [migrations.RunSQL(sql("guards/tables.sql"))]
