from typing import ClassVar

from django.db import migrations


class Migration(migrations.Migration):
    """Users and sessions belong to a database role of their own, which can do nothing else."""

    dependencies: ClassVar = [
        ("workitems", "0001_work"),
        ("auth", "0012_alter_user_first_name_max_length"),
        ("contenttypes", "0002_remove_content_type_name"),
        ("sessions", "0001_initial"),
    ]
    operations: ClassVar = [
        migrations.RunSQL(
            """
            GRANT SELECT, INSERT, UPDATE, DELETE
                ON auth_user, auth_group, auth_permission, auth_user_groups, auth_user_user_permissions, auth_group_permissions,
                   django_content_type, django_session
                TO fencewatch_accounts;
            """
        )
    ]
