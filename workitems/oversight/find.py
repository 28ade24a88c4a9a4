"""From what a person pastes to an item: a full digest names one, a short one is looked up and only ever listed."""

import datetime
import re
from collections.abc import Sequence
from dataclasses import dataclass

from workitems.models import FormerDigest, WorkItem
from workitems.oversight.lists import database_clock
from workitems.oversight.rows import Row, rows_of
from workitems.oversight.scope import Scope
from workitems.querysets import WorkItemQuerySet

MOST = 20
_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_BITS = 256
_SHORT = re.compile(r"(?:OP_)?([A-Z2-7]{4,16})")
_FULL = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What was asked for: a full digest, or the beginning of one as its base32 characters."""

    full: str = ""
    short: str = ""
    says_so: bool = False  # it begins with op_: no guess of ours

    @property
    def range(self) -> tuple[bytes, bytes]:
        """The first and the last digest that begin so."""
        bare = self.short.removeprefix("op_").replace("-", "")
        value = 0
        for character in bare:
            value = value * 32 + _ALPHABET.index(character)
        rest = _BITS - 5 * len(bare)
        first = value << rest
        return first.to_bytes(32, "big"), (first | ((1 << rest) - 1)).to_bytes(32, "big")


@dataclass(frozen=True, kw_only=True)
class Found:
    """The items whose digests begin so: `MOST` at most, `more` when there are others."""

    rows: tuple[Row, ...]
    at: datetime.datetime
    more: bool


def read(text: str) -> Wanted | None:
    """Understand a pasted digest; None when it is none. Spaces around and gaps between groups do not matter."""
    bare = re.sub(r"[\s-]", "", text)
    if _FULL.fullmatch(bare):
        return Wanted(full=bare.lower())
    short = _SHORT.fullmatch(bare.upper())
    if short is None:
        return None
    groups = [short[1][i : i + 4] for i in range(0, len(short[1]), 4)]
    return Wanted(short="op_" + "-".join(groups), says_so=bare.upper().startswith("OP_"))


def current(scope: Scope, digest: bytes) -> bytes | None:
    """The digest by which an item is found today: this one, or its successor while the old link resolves; else None."""
    if _whose(scope).filter(op_digest=digest).exists():
        return digest
    moved = FormerDigest.objects.filter(former=digest).values_list("op_digest", flat=True).first()
    if moved is None or not _whose(scope).filter(op_digest=moved).exists():
        return None
    return bytes(moved)


def listed(digests: Sequence[bytes], *, more: bool) -> Found:
    """These items, as a list."""
    at = database_clock()
    return Found(rows=rows_of(digests, at=at), at=at, more=more)


def find(scope: Scope, wanted: Wanted) -> Found:
    """The items in `scope` whose digest begins as `wanted` does, in the digests' order.

    A range, not LIKE: under row security LIKE could not use the index.
    """
    first, last = wanted.range
    inside = _whose(scope).filter(op_digest__gte=first, op_digest__lte=last).order_by("op_digest")
    digests = [bytes(digest) for digest in inside.values_list("op_digest", flat=True)[: MOST + 1]]
    return listed(digests[:MOST], more=len(digests) > MOST)


def _whose(scope: Scope) -> WorkItemQuerySet[WorkItem]:
    return WorkItem.objects.for_all() if scope.sees_all else WorkItem.objects.for_tenants(scope.tenants)
