from django.apps import AppConfig
from django.db.models.signals import post_migrate


class WorkitemsConfig(AppConfig):
    name = "workitems"
    verbose_name = "Work items"

    def ready(self) -> None:
        """Lay the SQL files after every migration."""
        from workitems.guards.install import after_migrate

        post_migrate.connect(after_migrate, sender=self)
