"""
A process does not work under a role that the database's rules do not bind: superusers, owners, roles beyond row security.

Asked at the start (Django's database checks, gunicorn, Celery) and once more by whatever connects first under an alias, so
that a process which started without its database does not get by.
"""

import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import structlog
from django.core.checks import CheckMessage, Error, Tags, register
from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from psycopg_pool import PoolTimeout

# Which variable names the role of an alias. The owner's alias is for migrations and administration, and not bound.
VARIABLES = {
    "default": "DATABASE_URL",
    "accounts": "ACCOUNTS_DATABASE_URL",
    "worker": "WORKER_DATABASE_URL",
    "keeper": "KEEPER_DATABASE_URL",
}
READERS = ("default", "accounts")  # may not change work by a statement of their own

# Membership in a role counts as the role: SET ROLE is one statement away. Superusers are members of every role, so the
# answers are in the order in which they are worth saying.
ROLE = """
WITH me AS (SELECT * FROM pg_roles WHERE rolname = session_user),
     work AS (SELECT c.* FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
               WHERE c.relname = 'work_item' AND n.nspname = 'public')
SELECT me.rolname,
       CASE WHEN me.rolsuper THEN 'is a superuser'
            WHEN me.rolbypassrls THEN 'has BYPASSRLS'
            WHEN me.rolcreaterole THEN 'has CREATEROLE'
            WHEN me.rolreplication THEN 'has REPLICATION'
            WHEN EXISTS (SELECT FROM work WHERE pg_has_role(me.oid, work.relowner, 'MEMBER')) THEN 'owns the work table'
            WHEN EXISTS (SELECT FROM pg_database d
                          WHERE d.datname = current_database() AND pg_has_role(me.oid, d.datdba, 'MEMBER'))
            THEN 'owns the database'
            WHEN near.name IS NOT NULL THEN 'is a member of ' || near.name
            WHEN %s AND EXISTS (SELECT FROM work WHERE has_table_privilege(me.oid, work.oid, 'DELETE, TRUNCATE')
                                   OR has_any_column_privilege(me.oid, work.oid, 'INSERT, UPDATE'))
            THEN 'may write the work table'
       END
  FROM me
  LEFT JOIN LATERAL (SELECT string_agg(r.rolname, ', ' ORDER BY r.rolname) AS name FROM pg_roles r
                      WHERE r.oid <> me.oid AND pg_has_role(me.oid, r.oid, 'MEMBER')
                        AND NOT (%s AND r.rolname = 'fencewatch_worker')  -- workers of some tenants only
                        AND (r.rolname LIKE 'fencewatch\\_%%' OR r.rolname LIKE 'pg\\_%%' OR r.rolsuper OR r.rolbypassrls)
                    ) near ON true
"""

log = structlog.get_logger(__name__)
_bound: set[tuple[str, ...]] = set()  # the aliases' roles and databases that were asked about and found bound


def unbound(alias: str) -> str | None:
    """
    Say in one sentence why the role behind an alias must not be used, or None where the database's rules bind it.

    Raises what connecting raises.
    """
    with connections[alias].cursor() as cursor:
        return _unbound(alias, cursor)


def _unbound(alias: str, cursor: Any) -> str | None:
    cursor.execute(ROLE, [alias in READERS, alias == "worker"])
    role, why = cursor.fetchone()
    if why is None:
        return None
    return (
        f"{VARIABLES[alias]} signs in as {role}, which {why}: the database's rules would not bind this process."
        " Use the role that `manage.py roles` makes for it."
    )


@register(Tags.database)
def check_roles(*, databases: Sequence[str] | None = None, **ignored: Any) -> list[CheckMessage]:
    """Django's check, for `manage.py check --database default` and every command that names databases."""
    return [
        Error(why, id="fencewatch.E001")
        for alias in databases or ()
        if alias in VARIABLES and (why := unbound(alias)) is not None
    ]


def refuse_unbound_role(connection: BaseDatabaseWrapper, **ignored: Any) -> None:
    """
    Receiver of connection_created: the first connection under an alias asks, later ones rely on its answer.

    Raises ImproperlyConfigured with the sentence of `unbound`.
    """
    alias = connection.alias
    if alias not in VARIABLES:
        return
    asked = (alias, *(str(connection.settings_dict[part]) for part in ("HOST", "PORT", "NAME", "USER")))
    if asked in _bound:
        return
    with connection.cursor() as cursor:
        why = _unbound(alias, cursor)
    if why is not None:
        connection.close()
        raise ImproperlyConfigured(why)
    _bound.add(asked)


def listen() -> None:
    """Connect the receiver; from the app's ready()."""
    connection_created.connect(refuse_unbound_role, dispatch_uid="dashboard.checks")


def require_bound_roles(*aliases: str) -> None:
    """
    End the process with one sentence if one of these aliases' roles is not bound; for the start of a server.

    A database that does not answer is no reason: the first connection asks again.
    """
    for alias in aliases:
        try:
            why = unbound(alias)
        except ImproperlyConfigured as error:
            _stop(str(error))
        except (OperationalError, PoolTimeout):
            log.warning("database_does_not_answer", alias=alias)
            continue
        finally:
            _let_go(connections[alias])
        if why is not None:
            _stop(why)


def _let_go(connection: Any) -> None:
    # The server forks after this.
    connection.close()
    connection.close_pool()


def _stop(why: str) -> NoReturn:
    sys.exit(f"Fencewatch cannot start: {why}")
