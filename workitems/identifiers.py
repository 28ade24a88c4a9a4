"""Identifiers: what may be one, and the keyed digests that stand for them outside the database.

Every digest is HMAC-SHA256 over a label and length-prefixed parts, so that no choice of separator inside an id can make
two identities collide, and a digest made for one purpose is worthless for another. The database computes the same
digests on insert (`guards/identity.sql`); the tests hold both against each other.
"""

import base64
import hashlib
import hmac

from workitems.errors import BadIdentifier

OPERATION_ID_CHARS = 1_000
OPERATION_ID_BYTES = 2_500  # what still fits a btree entry beside the tenant
TENANT_ID_CHARS = 100
TENANT_ID_BYTES = 128
REFERENCE_CHARS = 2_000

ITEM_LABEL = b"fencewatch/item/1"
TENANT_LABEL = b"fencewatch/tenant/1"
REFERENCE_LABEL = b"fencewatch/reference/1"

_BLOCK = 64  # bytes in a SHA-256 block


def check_operation_id(operation_id: str) -> None:
    """Refuse, with the reason, an operation id that the database could not hold.

    Raises: BadIdentifier when it is no text, empty, holds NUL or a lone surrogate, or is over 1,000 characters or
    2,500 bytes. The message never repeats the id.
    """
    _check("operation_id", operation_id, chars=OPERATION_ID_CHARS, octets=OPERATION_ID_BYTES)


def check_tenant_id(tenant_id: str) -> None:
    """Refuse, with the reason, a tenant id that the database could not hold (100 characters, 128 bytes at most)."""
    _check("tenant_id", tenant_id, chars=TENANT_ID_CHARS, octets=TENANT_ID_BYTES)


def check_reference(payload_ref: str) -> None:
    """Refuse, with the reason, a payload reference that the database could not hold (2,000 characters at most)."""
    _check("payload_ref", payload_ref, chars=REFERENCE_CHARS, octets=4 * REFERENCE_CHARS)


def _check(field: str, value: object, *, chars: int, octets: int) -> None:
    if not isinstance(value, str):
        raise BadIdentifier(f"{field} must be text, not {type(value).__name__}; give a string.")
    if not value:
        raise BadIdentifier(f"{field} is empty; give the identity that the business intent has.")
    if "\x00" in value:
        raise BadIdentifier(f"{field} holds a NUL character, which no database text can; remove it at the producer.")
    if len(value) > chars:
        raise BadIdentifier(f"{field} has {len(value):,} characters; the limit is {chars:,}.")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise BadIdentifier(
            f"{field} holds half of a surrogate pair, which is not text; mend it at the producer."
        ) from None
    if size > octets:
        raise BadIdentifier(f"{field} takes {size:,} bytes in UTF-8; the limit is {octets:,}.")


def pads(key: bytes) -> tuple[bytes, bytes]:
    """The inner and outer 64-byte pads of an HMAC-SHA256 key (RFC 2104): what the database stores. As secret as the key."""
    block = (hashlib.sha256(key).digest() if len(key) > _BLOCK else key).ljust(_BLOCK, b"\0")
    return bytes(b ^ 0x36 for b in block), bytes(b ^ 0x5C for b in block)


def _digest(key: bytes, label: bytes, *parts: str) -> bytes:
    message = label + b"".join(len(part).to_bytes(4, "big") + part for part in (p.encode() for p in parts))
    return hmac.digest(key, message, "sha256")


def item_digest(key: bytes, *, tenant_id: str, operation_id: str) -> bytes:
    """The 32 bytes that stand for an operation in pages, links, logs and metrics, under the tenant's key."""
    return _digest(key, ITEM_LABEL, tenant_id, operation_id)


def tenant_digest(key: bytes, *, tenant_id: str) -> bytes:
    """The 32 bytes that stand for a tenant, under the tenant's own first key."""
    return _digest(key, TENANT_LABEL, tenant_id)


def reference_digest(key: bytes, *, tenant_id: str, payload_ref: str) -> bytes:
    """The 32 bytes that stand for a payload reference, which often holds an id or a name."""
    return _digest(key, REFERENCE_LABEL, tenant_id, payload_ref)


def show(digest: bytes, *, prefix: str = "op") -> str:
    """A digest for people: `op_` and 16 base32 characters (80 bits) in groups of four. A name, never a key to act on."""
    short = base64.b32encode(digest[:10]).decode()
    return f"{prefix}_" + "-".join(short[i : i + 4] for i in range(0, 16, 4))


def full(digest: bytes) -> str:
    """A digest for links: all 64 hexadecimal digits."""
    return bytes(digest).hex()


def parse_full(text: str) -> bytes:
    """Read a digest from a link.

    Raises: BadIdentifier unless it is exactly 64 lower-case hexadecimal digits.
    """
    if len(text) != 64 or set(text) - set("0123456789abcdef"):
        raise BadIdentifier("a digest is 64 hexadecimal digits; copy it from an item's page.")
    return bytes.fromhex(text)
