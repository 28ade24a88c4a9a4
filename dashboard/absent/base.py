from typing import Any, NoReturn

from django.core.exceptions import ImproperlyConfigured
from django.db.backends.dummy import base


def refuse(*args: Any, **kwargs: Any) -> NoReturn:
    raise ImproperlyConfigured("DATABASE_URL is missing: this process has no connection under the pages' role.")


class DatabaseOperations(base.DatabaseOperations):
    quote_name = refuse


class DatabaseClient(base.DatabaseClient):
    runshell = refuse


class DatabaseWrapper(base.DatabaseWrapper):
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
