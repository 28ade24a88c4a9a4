from typing import ClassVar

from django.db import migrations

from workitems.guards import sql


class Migration(migrations.Migration):
    """Audit log, rights, failovers, tombstones, former digests."""

    dependencies: ClassVar = [("workitems", "0003_read_models")]
    operations: ClassVar = [migrations.RunSQL(sql("guards/records.sql"))]
