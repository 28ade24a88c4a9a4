from typing import ClassVar

from django.db import migrations

TABLES = {
    "JobType": "job_type",
    "Membership": "membership",
    "Tenant": "tenant",
    "WorkEvent": "work_event",
    "WorkItem": "work_item",
}


class Migration(migrations.Migration):
    """
    Tell Django that the models which only read exist; runs no SQL.

    Their columns are those of the SQL files, which a test compares with the models, and Django does not track the
    fields of unmanaged models: none are repeated here.
    """

    dependencies: ClassVar = [("workitems", "0002_accounts")]
    operations: ClassVar = [
        migrations.CreateModel(name=name, fields=[], options={"managed": False, "db_table": table})
        for name, table in TABLES.items()
    ]
