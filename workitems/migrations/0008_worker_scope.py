from typing import ClassVar

from django.db import migrations


class Migration(migrations.Migration):
    """Which tenants a role of workers sees, besides fencewatch_worker itself, which sees all."""

    dependencies: ClassVar = [("workitems", "0007_adoption")]
    operations: ClassVar = [
        migrations.RunSQL(
            """
            CREATE TABLE fencewatch.worker_scope (
                role          name  NOT NULL,
                tenant_id     text  REFERENCES public.tenant,   -- null: every tenant
                tenant_digest bytea,
                CONSTRAINT worker_scope_once UNIQUE NULLS NOT DISTINCT (role, tenant_id)
            );
            """
        )
    ]
