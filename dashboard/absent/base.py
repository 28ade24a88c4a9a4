"""The module that Django looks for in a backend, under the name that it asks for."""

from typing import Any, NoReturn

from django.core.exceptions import ImproperlyConfigured
from django.db.backends.dummy import base


def refuse(*args: Any, **kwargs: Any) -> NoReturn:
    """Stand in for whatever needs a connection."""
    raise ImproperlyConfigured("DATABASE_URL is missing: this process has no connection under the pages' role.")


class DatabaseOperations(base.DatabaseOperations):
    """Quotes nothing."""

    quote_name = refuse


class DatabaseClient(base.DatabaseClient):
    """Has no shell."""

    runshell = refuse


class DatabaseWrapper(base.DatabaseWrapper):
    """What Django makes of the alias: it refuses to connect."""

    client_class = DatabaseClient
    ops_class = DatabaseOperations

    ensure_connection = refuse
    _commit = refuse
    _rollback = refuse
    _savepoint = refuse
    _savepoint_commit = refuse
    _savepoint_rollback = refuse
    _set_autocommit = refuse
    _cursor = refuse
