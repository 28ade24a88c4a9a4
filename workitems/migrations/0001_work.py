from typing import ClassVar

from django.db import migrations

from workitems.guards import sql
from workitems.guards.install import make_work_item


class Migration(migrations.Migration):
    """The work table, tenants and their keys, history, payloads. What guards them is laid after the migrations (install.py)."""

    initial = True
    operations: ClassVar = [migrations.RunSQL(sql("guards/tables.sql")), migrations.RunPython(make_work_item)]
