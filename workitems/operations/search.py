"""Search by a raw operation id: masked on its way to the database, which alone holds the tenants' keys."""

import datetime
import hmac
import secrets
import unicodedata
from dataclasses import dataclass

from django.db import connections

from workitems.errors import BadIdentifier
from workitems.identifiers import check_operation_id

LABEL = b"fencewatch/search/1"
MOST = 20
_BLOCK = 32  # bytes of keystream from one HMAC-SHA256
_NONCE = 16


@dataclass(frozen=True, kw_only=True)
class Searched:
    """The answer to one search: `applied`, `refused` or `busy` and why; the digests of what was found, `MOST` at most.

    `ended_state` and `ended_at` are of work that retention removed and of which only the identity is kept.
    """

    outcome: str
    because: str | None = None
    digests: tuple[bytes, ...] = ()
    more: bool = False
    ended_state: str | None = None
    ended_at: datetime.datetime | None = None


def search(text: str, *, key: bytes, using: str = "default") -> Searched:
    """Find items by the operation id that a person pasted, as it is, trimmed, and in Unicode's two normal forms.

    `key` is the one that signs contexts. Runs inside a signed context that writes, for it leaves an audit entry.

    Raises: BadIdentifier for what cannot be an operation id; its message does not repeat the text.
    """
    nonce = secrets.token_bytes(_NONCE)
    masked = [mask(form, key=key, nonce=nonce, place=place) for place, form in enumerate(_forms(text), start=1)]
    with connections[using].cursor() as cursor:
        cursor.execute(
            "SELECT outcome, because, hits, ended_state, ended_at FROM fencewatch.search(%s::bytea[], %s)",
            [masked, nonce],
        )
        outcome, because, hits, ended_state, ended_at = cursor.fetchone()
    return Searched(
        outcome=outcome,
        because=because,
        digests=tuple(bytes(digest) for digest in hits[:MOST]),
        more=len(hits) > MOST,
        ended_state=ended_state,
        ended_at=ended_at,
    )


def mask(text: str, *, key: bytes, nonce: bytes, place: int) -> bytes:
    """XOR with a keystream that nobody repeats: what `fencewatch.unmask` undoes."""
    plain = text.encode()
    blocks = range((len(plain) + _BLOCK - 1) // _BLOCK)
    stream = b"".join(
        hmac.digest(key, LABEL + nonce + place.to_bytes(4, "big") + block.to_bytes(4, "big"), "sha256")
        for block in blocks
    )
    return bytes(one ^ other for one, other in zip(plain, stream, strict=False))


def _forms(text: str) -> list[str]:
    bare = text.strip()
    check_operation_id(bare)
    forms = [text, bare, unicodedata.normalize("NFC", bare), unicodedata.normalize("NFD", bare)]
    found = []
    for form in dict.fromkeys(forms):
        try:
            check_operation_id(form)
        except BadIdentifier:
            continue  # another form of a long id may not fit
        found.append(form)
    return found
