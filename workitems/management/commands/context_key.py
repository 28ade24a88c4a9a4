"""Let the database accept contexts that the pages sign with FENCEWATCH_CONTEXT_KEY."""

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from workitems.tenancy import install_context_key


class Command(BaseCommand):
    help = "Install FENCEWATCH_CONTEXT_KEY in the database (as the owner role); an earlier key stops counting."

    def handle(self, *args: Any, **options: Any) -> None:
        if settings.CONTEXT_KEY is None:
            raise CommandError("FENCEWATCH_CONTEXT_KEY is missing: make one with `openssl rand -hex 32`.")
        install_context_key(key=settings.CONTEXT_KEY)
        self.stdout.write("installed")
