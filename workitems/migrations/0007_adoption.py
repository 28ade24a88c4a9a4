from typing import ClassVar

from django.db import migrations


class Migration(migrations.Migration):
    """What an adoption of an existing work table did, and how far it is; empty where the table was made by us."""

    dependencies: ClassVar = [("workitems", "0006_keys")]
    operations: ClassVar = [
        migrations.RunSQL(
            """
            CREATE TABLE fencewatch.adoption (
                only_row    boolean     PRIMARY KEY DEFAULT true CHECK (only_row),
                started_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
                flipped_at  timestamptz,            -- from when on the guard binds every write
                finished_at timestamptz,
                most_attempts int       NOT NULL,   -- that its producers granted
                workers     name[]      NOT NULL,   -- roles of workers that were there before: members of fencewatch_worker
                rows        bigint      NOT NULL DEFAULT 0,
                normalised  jsonb       NOT NULL DEFAULT '{}'   -- what was put right, and how many rows of each
            );
            """
        )
    ]
