from typing import ClassVar

from django.db import migrations


class Migration(migrations.Migration):
    """A tenant's key is in use or destroyed: there is no third state to keep a time for."""

    dependencies: ClassVar = [("workitems", "0005_lean_history")]
    operations: ClassVar = [
        migrations.RunSQL("ALTER TABLE fencewatch.tenant_key DROP COLUMN IF EXISTS retired_at"),
        migrations.CreateModel(name="FormerDigest", fields=[], options={"managed": False, "db_table": "former_digest"}),
    ]
