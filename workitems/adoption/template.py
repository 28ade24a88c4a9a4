"""The work table as it ought to be: made anew beside the old one, read from the catalog, and gone again."""

from dataclasses import dataclass
from typing import Any

from workitems.guards import sql

SCHEMA = "fencewatch_template"


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column's definition. ``default`` is the expression, or None."""

    name: str
    type: str
    default: str | None
    not_null: bool
    is_identity: bool
    is_constant: bool  # the default is the same for each row, so that adding it rewrites nothing


@dataclass(frozen=True, kw_only=True)
class Template:
    """Columns in their order; definitions of constraints and indexes by name; the table's own settings."""

    columns: tuple[Column, ...]
    constraints: dict[str, str]
    indexes: dict[str, str]
    settings: tuple[str, ...]


def read(cursor: Any) -> Template:
    """Make the table in a schema of its own, read it, and take it away; within the caller's transaction."""
    cursor.execute(f"CREATE SCHEMA {SCHEMA}")
    cursor.execute("SELECT current_setting('search_path')")
    (path,) = cursor.fetchone()
    cursor.execute(f"SET LOCAL search_path = {SCHEMA}")
    cursor.connection.execute(sql("guards/work_item.sql").encode())
    table = f"'{SCHEMA}.work_item'::regclass"
    cursor.execute(
        "SELECT a.attname, format_type(a.atttypid, a.atttypmod), pg_get_expr(d.adbin, d.adrelid), a.attnotnull,"
        "       a.attidentity <> '', NOT EXISTS (SELECT FROM pg_depend x WHERE x.classid = 'pg_attrdef'::regclass"
        "           AND x.objid = d.oid AND x.refclassid = 'pg_proc'::regclass)"
        "       AND pg_get_expr(d.adbin, d.adrelid) !~ '\\('"
        "  FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum"
        f" WHERE a.attrelid = {table} AND a.attnum > 0 ORDER BY a.attnum"
    )
    columns = tuple(
        Column(
            name=name, type=type_, default=default, not_null=not_null, is_identity=identity, is_constant=bool(constant)
        )
        for name, type_, default, not_null, identity, constant in cursor.fetchall()
    )
    cursor.execute(
        f"SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = {table} AND contype = 'c'"
    )
    constraints = dict(cursor.fetchall())
    cursor.execute(
        "SELECT i.relname, replace(pg_get_indexdef(x.indexrelid), %s, ' public.') FROM pg_index x"
        f" JOIN pg_class i ON i.oid = x.indexrelid WHERE x.indrelid = {table} AND NOT x.indisprimary",
        [f" {SCHEMA}."],
    )
    indexes = dict(cursor.fetchall())
    cursor.execute(f"SELECT unnest(reloptions) FROM pg_class WHERE oid = {table}")
    settings = tuple(setting for (setting,) in cursor.fetchall())
    cursor.execute(f"DROP SCHEMA {SCHEMA} CASCADE")
    cursor.execute("SELECT set_config('search_path', %s, true)", [path])
    return Template(columns=columns, constraints=constraints, indexes=indexes, settings=settings)
