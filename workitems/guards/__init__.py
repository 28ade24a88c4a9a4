"""The database's side: roles, tables, guard, policies. The SQL files are the truth; migrations install them."""

from pathlib import Path

HERE = Path(__file__).parent


def sql(name: str) -> str:
    """The text of one SQL file, named from the package workitems: `guards/guard.sql`, `protocol/functions.sql`."""
    return (HERE.parent / name).read_text(encoding="utf-8")
