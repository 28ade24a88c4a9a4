"""Where a list goes on: the ends of a page as a signed text that fits one list only."""

import datetime
from dataclasses import dataclass
from typing import Any

from django.core import signing

from workitems.errors import FencewatchError


class BadCursor(FencewatchError):
    """This link into the middle of a list is not one of ours, or belongs to another filter; start from the first page."""


@dataclass(frozen=True, kw_only=True)
class Position:
    """Between two rows: after the row with this time and digest, or before it when `back`."""

    since: datetime.datetime
    digest: bytes
    back: bool = False


def seal(position: Position, *, of_list: str) -> str:
    """The position as text. `of_list` names the list, its filters and its order; the text opens with no other."""
    return signing.dumps(
        [position.since.isoformat(), position.digest.hex(), int(position.back)], salt=f"fencewatch.cursor.{of_list}"
    )


def unseal(cursor: str, *, of_list: str) -> Position:
    """Read a position back.

    Raises: BadCursor when it was altered, cut, or sealed for another list.
    """
    if len(cursor) > 500:
        raise BadCursor
    try:
        value: Any = signing.loads(cursor, salt=f"fencewatch.cursor.{of_list}")
        since, digest, back = value
        return Position(since=datetime.datetime.fromisoformat(since), digest=bytes.fromhex(digest), back=bool(back))
    except (signing.BadSignature, ValueError, TypeError) as error:
        raise BadCursor from error
