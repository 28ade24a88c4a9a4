"""Whether a work table can be adopted as it is: each reason why not is one sentence with the next step."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from workitems.errors import BadIdentifier, FencewatchError
from workitems.guards import drift
from workitems.identifiers import check_tenant_id

# The article's columns and the types that hold them.
COLUMNS = {
    "tenant_id": "text",
    "operation_id": "text",
    "payload_hash": "bytea",
    "payload_ref": "text",
    "state": "text",
    "fence": "bigint",
    "lease_owner": "text",
    "lease_expires_at": "timestamp with time zone",
    "attempts": "integer",
    "max_attempts": "integer",
    "outcome_code": "text",
    "updated_at": "timestamp with time zone",
}
MAY_BE_NULL = ("lease_owner", "lease_expires_at", "outcome_code")
# What no adoption can put right: identity and payload of an item never change.
ROWS = {
    "tenant_id is not 1 to 100 characters": "char_length(tenant_id) NOT BETWEEN 1 AND 100 OR octet_length(tenant_id) > 128",
    "operation_id is not 1 to 1,000 characters of 2,500 bytes at most": (
        "char_length(operation_id) NOT BETWEEN 1 AND 1000 OR octet_length(operation_id) > 2500"
    ),
    "payload_hash is not 1 to 64 bytes": "octet_length(payload_hash) NOT BETWEEN 1 AND 64",
    "payload_ref is not 1 to 2,000 characters": "char_length(payload_ref) NOT BETWEEN 1 AND 2000",
    "state is none of the article's six": (
        "state NOT IN ('queued', 'claimed', 'succeeded', 'failed_terminal', 'unknown', 'quarantined')"
    ),
    "fence is beyond 2^61, from which the server's timeline cannot be told": "fence > 2305843009213693952",
}


def quoted(name: str) -> str:
    """A name that others chose, as a statement's identifier."""
    return '"' + name.replace('"', '""') + '"'


class CannotAdopt(FencewatchError):
    """Why an adoption does not start or go on, and what to do; nothing was changed by the step that says so."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """The work table as it was found."""

    owner: str
    rows: int  # the planner's estimate
    extra_columns: tuple[str, ...]
    others: tuple[str, ...]  # roles with rights on it, besides Fencewatch's and the named workers


def inspect(cursor: Any, *, workers: Iterable[str]) -> Table:
    """What is there; reads system tables only. Raises CannotAdopt with every reason, one a line."""
    named = tuple(workers)
    cursor.execute(
        "SELECT c.oid, pg_get_userbyid(c.relowner), c.relkind, c.relpersistence, c.relrowsecurity, c.relispartition,"
        "       EXISTS (SELECT FROM pg_inherits i WHERE c.oid IN (i.inhparent, i.inhrelid)), greatest(c.reltuples, 0)::bigint"
        "  FROM pg_class c WHERE c.relname = 'work_item' AND c.relnamespace = 'public'::regnamespace"
    )
    found = cursor.fetchone()
    if found is None:
        raise CannotAdopt(
            "There is no table public.work_item to adopt: `manage.py migrate --database=owner` makes one."
        )
    oid, owner, kind, persistence, secured, partition, inherits, rows = found
    why: list[str] = []
    if kind != "r" or persistence != "p" or partition or inherits:
        why.append("public.work_item is not an ordinary, logged table by itself: copy its rows into one.")
    if secured:
        why.append(
            "public.work_item has row security of its own: drop its policies and disable it, Fencewatch brings its own."
        )
    why += _columns(cursor, oid)
    why += _objects(cursor, oid)
    why += _roles(cursor, named)
    if owner != "fencewatch_owner":
        why.append(f"public.work_item belongs to {owner}: have the DBA run what `manage.py adopt --script` prints.")
    others = _others(cursor, oid, named)
    writers = sorted(role for role, writes in others.items() if writes)
    if writers:
        why.append(f"{', '.join(writers)} may write the table too: name each as a worker, or revoke its rights on it.")
    if why:
        raise CannotAdopt("\n".join(why))
    cursor.execute("SELECT attname FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped", [oid])
    columns = [name for (name,) in cursor.fetchall()]
    extra = tuple(sorted(set(columns) - _ours()))
    return Table(owner=owner, rows=rows, extra_columns=extra, others=tuple(sorted(others)))


def _ours() -> set[str]:
    return {name.partition(".")[2] for name in drift.manifest().objects if name.startswith("column work_item.")}


def _columns(cursor: Any, oid: int) -> list[str]:
    cursor.execute(
        "SELECT attname, format_type(atttypid, NULL), attnotnull FROM pg_attribute"
        " WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped",
        [oid],
    )
    live = {name: (type_, not_null) for name, type_, not_null in cursor.fetchall()}
    why = []
    for name, type_ in COLUMNS.items():
        if name not in live:
            why.append(f"column {name} is missing: add it as the article's table has it, {type_}.")
        elif live[name][0] != type_:
            why.append(f"column {name} is {live[name][0]}: change it to {type_} first.")
        elif not live[name][1] and name not in MAY_BE_NULL:
            why.append(f"column {name} may be null: fill it and set NOT NULL first.")
    cursor.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped AND attnotnull"
        "   AND NOT atthasdef AND attidentity = '' AND attname <> ALL (%s)",
        [oid, list(_ours() | COLUMNS.keys())],
    )
    for (name,) in cursor.fetchall():
        why.append(
            f"column {name} is NOT NULL without a default, and no enqueue of ours would fill it: give it a default."
        )
    cursor.execute("SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = %s AND contype = 'p'", [oid])
    key = cursor.fetchone()
    if key is None or key[0] != "PRIMARY KEY (tenant_id, operation_id)":
        why.append("the primary key is not (tenant_id, operation_id): make it so, it is an operation's identity.")
    return why


def _objects(cursor: Any, oid: int) -> list[str]:
    cursor.execute(
        "SELECT 'trigger ' || tgname FROM pg_trigger WHERE tgrelid = %(oid)s AND NOT tgisinternal"
        "   AND tgfoid NOT IN (SELECT p.oid FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace"
        "                       WHERE n.nspname = 'fencewatch')"
        " UNION ALL SELECT 'rule ' || rulename FROM pg_rewrite WHERE ev_class = %(oid)s"
        " UNION ALL SELECT 'policy ' || polname FROM pg_policy WHERE polrelid = %(oid)s"
        " ORDER BY 1",
        {"oid": oid},
    )
    return [
        f"{name} is on public.work_item: drop it, the guard decides alone what a write becomes."
        for (name,) in cursor.fetchall()
    ]


def taken_names(cursor: Any) -> list[str]:
    """Our tables' names that tables of other programs have already, before our migrations ran."""
    wanted = [
        name.removeprefix("table ")
        for name in drift.manifest().objects
        if name.startswith("table ") and "." not in name
    ]
    cursor.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relname = ANY (%s)"
        "   AND relname <> 'work_item' AND pg_get_userbyid(relowner) <> 'fencewatch_owner' ORDER BY 1",
        [wanted],
    )
    return [name for (name,) in cursor.fetchall()]


def _roles(cursor: Any, workers: tuple[str, ...]) -> list[str]:
    why = []
    for worker in workers:
        cursor.execute(
            "SELECT CASE WHEN r.rolsuper THEN 'is a superuser' WHEN r.rolbypassrls THEN 'has BYPASSRLS'"
            "            WHEN EXISTS (SELECT FROM pg_database d WHERE d.datname = current_database()"
            "                          AND pg_has_role(r.oid, d.datdba, 'MEMBER')) THEN 'owns the database'"
            "            WHEN pg_has_role(r.oid, 'fencewatch_owner', 'MEMBER') THEN 'is a member of fencewatch_owner' END,"
            "       EXISTS (SELECT FROM pg_auth_members m WHERE m.member = r.oid AND m.inherit_option"
            "                AND m.roleid = 'fencewatch_worker'::regrole)"
            "  FROM pg_roles r WHERE r.rolname = %s",
            [worker],
        )
        found = cursor.fetchone()
        if found is None:
            why.append(f"there is no role {worker}: name the role that the old workers sign in as.")
        elif found[0]:
            why.append(f"{worker} {found[0]}, so that no rule would bind it: give the old workers a role of their own.")
        elif not found[1]:
            why.append(
                f"{worker} is no member of fencewatch_worker: have the DBA run what `manage.py adopt --script` prints."
            )
    return why


def _others(cursor: Any, oid: int, workers: tuple[str, ...]) -> dict[str, bool]:
    """Other roles that the table's rights name, and whether each may write."""
    cursor.execute(
        "SELECT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_get_userbyid(a.grantee) END,"
        "       bool_or(a.privilege_type IN ('INSERT', 'UPDATE', 'DELETE', 'TRUNCATE'))"
        "  FROM (SELECT relacl AS acl FROM pg_class WHERE oid = %(oid)s"
        "        UNION ALL SELECT attacl FROM pg_attribute WHERE attrelid = %(oid)s) given, aclexplode(given.acl) a"
        " GROUP BY 1",
        {"oid": oid},
    )
    return {
        role: writes for role, writes in cursor.fetchall() if role not in workers and not role.startswith("fencewatch_")
    }


def inspect_rows(cursor: Any) -> int:
    """
    Read every row once for what no adoption can put right; returns the most attempts that a producer granted.

    Raises CannotAdopt with counts, and how to find the rows.
    """
    counts = ", ".join(f"count(*) FILTER (WHERE {condition})" for condition in ROWS.values())
    cursor.execute(f"SELECT coalesce(max(max_attempts), 1), {counts} FROM public.work_item")
    most, *bad = cursor.fetchone()
    why = [
        f"{count:,} rows, whose {what}: find them by `SELECT * FROM work_item WHERE {condition}` and mend or remove them."
        for (what, condition), count in zip(ROWS.items(), bad, strict=True)
        if count
    ]
    if why:
        raise CannotAdopt("\n".join(why))
    for tenant_id in tenants(cursor):
        try:
            check_tenant_id(tenant_id)
        except BadIdentifier as error:
            raise CannotAdopt(f"a tenant cannot be kept: {error}") from None
    return int(most)


def tenants(cursor: Any) -> list[str]:
    """Every tenant of the work table, by one look at the key for each."""
    cursor.execute(
        "WITH RECURSIVE each (tenant_id) AS ("
        "   (SELECT tenant_id FROM public.work_item ORDER BY tenant_id LIMIT 1)"
        "   UNION ALL"
        "   SELECT (SELECT w.tenant_id FROM public.work_item w WHERE w.tenant_id > each.tenant_id ORDER BY w.tenant_id LIMIT 1)"
        "     FROM each WHERE each.tenant_id IS NOT NULL)"
        " SELECT tenant_id FROM each WHERE tenant_id IS NOT NULL"
    )
    return [tenant_id for (tenant_id,) in cursor.fetchall()]
