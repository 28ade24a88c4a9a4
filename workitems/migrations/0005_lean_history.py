from typing import ClassVar

from django.db import migrations


class Migration(migrations.Migration):
    """One index on the history instead of two, for databases that were made with two."""

    dependencies: ClassVar = [("workitems", "0004_records")]
    operations: ClassVar = [
        migrations.RunSQL(
            """
            DO $lean$
            BEGIN
                IF to_regclass('public.work_event_of_item') IS NOT NULL THEN
                    ALTER TABLE public.work_event DROP CONSTRAINT work_event_pkey;
                    ALTER TABLE public.work_event ADD PRIMARY KEY (item_id, event_id);
                    DROP INDEX public.work_event_of_item;
                END IF;
            END
            $lean$;
            """
        )
    ]
