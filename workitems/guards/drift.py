"""Whether the database still has the rules that this version laid: the live catalog against manifest.txt, object by object."""

from collections.abc import Iterable
from dataclasses import dataclass

from django.db import connections, transaction

from workitems.guards import HERE, sql

MANIFEST = HERE / "manifest.txt"
SEPARATOR = " :: "
HEAD = """\
# The catalog of a fresh database on PostgreSQL {server}
# Written by `manage.py drift --write`. Its difference shows which rules a change moves: read it before you commit it.
"""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One object that is not what the repository says. ``live`` or ``wanted`` is None where there is none."""

    object: str
    live: str | None
    wanted: str | None

    @property
    def sentence(self) -> str:
        """What is different, for a person who knows the database and not this project."""
        if self.live is None:
            return f"{self.object}: missing. The repository says: {self.wanted}"
        if self.wanted is None:
            return f"{self.object}: nothing of the repository's. The database says: {self.live}"
        return f"{self.object}: changed. The database says: {self.live}. The repository says: {self.wanted}"


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What the catalog of a fresh database says of each object, and the server's major version that said so."""

    server: int
    objects: dict[str, str]

    @property
    def text(self) -> str:
        """The manifest's file."""
        return HEAD.format(server=self.server) + "".join(
            f"{name}{SEPARATOR}{detail}\n" for name, detail in sorted(self.objects.items())
        )


def manifest() -> Manifest:
    """The manifest that this version carries."""
    head, *lines = MANIFEST.read_text(encoding="utf-8").splitlines()
    parts = (line.partition(SEPARATOR) for line in lines if not line.startswith("#"))
    return Manifest(server=int(head.rpartition(" ")[2]), objects={name: detail for name, _, detail in parts})


def live(*, using: str = "owner", tables: Iterable[str] = ()) -> Manifest:
    """What this database's catalog says; reads system tables only, so it locks nothing.

    ``tables``: names in public that are ours, whoever owns them now.
    """
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        # What expressions are worded by, whatever the role's own settings are.
        cursor.execute("SET LOCAL search_path = public; SET LOCAL timezone = 'UTC'")
        cursor.execute(sql("guards/catalog.sql"), {"known": list(tables)})
        found = dict(cursor.fetchall())
        cursor.execute("SHOW server_version_num")
        return Manifest(server=int(cursor.fetchone()[0]) // 10_000, objects=found)


def differences(*, using: str = "owner") -> tuple[Difference, ...]:
    """Every object of this database that differs from the manifest, by name; empty where the rules are as they were laid."""
    wanted = manifest().objects
    found = live(using=using, tables=[name.split()[-1] for name in wanted if name.startswith("table ")]).objects
    return tuple(
        Difference(object=name, live=found.get(name), wanted=wanted.get(name))
        for name in sorted(found.keys() | wanted.keys())
        if found.get(name) != wanted.get(name)
    )
