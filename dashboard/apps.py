from django.apps import AppConfig


class DashboardConfig(AppConfig):
    """The pages. Owns no table: what it shows belongs to `workitems`."""

    name = "dashboard"
    default = True

    def ready(self) -> None:
        # Binds the shared tasks to this project's broker in every process, so that producers can send wake-ups.
        from dashboard import celery, checks  # noqa: F401

        checks.listen()
