"""Payloads: kept by (tenant, reference), and understood with confidence or not at all."""

import hashlib
import hmac
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

import referencing
from django.db import connections
from django.db.backends.utils import CursorWrapper
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match

from workitems.errors import BadItem
from workitems.identifiers import check_reference, check_tenant_id
from workitems.jobs.definition import JsonSchema
from workitems.protocol.statements import statements
from workitems.states import QuarantineReason

LIMIT_BYTES = 1_048_576
LIMIT_DEPTH = 64
VALIDATOR = Draft202012Validator
FORMATS = Draft202012Validator.FORMAT_CHECKER

_JOBS = Path(__file__).with_name("jobs.sql")
_BOM = b"\xef\xbb\xbf"
# Strings whole, closed or not, so that brackets in them do not count; possessive, so that no input makes it slow.
_NESTING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


@contextmanager
def run(name: str, parameters: Mapping[str, Any], *, using: str) -> Iterator[CursorWrapper]:
    """Run a statement of jobs.sql; the cursor gives its rows."""
    with connections[using].cursor() as cursor:
        cursor.execute(statements(_JOBS)[name], parameters)
        yield cursor


class PayloadStore(Protocol):
    """Where payload bytes live. Every call names the tenant: a reference alone never finds anything."""

    def put(self, *, tenant_id: str, payload_ref: str, body: bytes) -> bytes:
        """Keep a body and return its SHA-256. The same bytes again change nothing; others raise BadItem."""

    def get(self, *, tenant_id: str, payload_ref: str) -> bytes | None:
        """The exact bytes, or None when there are none. What is over LIMIT_BYTES comes back cut after one byte more."""

    def exists(self, *, tenant_id: str, payload_ref: str) -> bool:
        """Whether the tenant has a payload under this reference."""


@dataclass(frozen=True, slots=True)
class PostgresPayloads:
    """Payloads in the `payload` table of the work table's own database."""

    using: str = "worker"

    def put(self, *, tenant_id: str, payload_ref: str, body: bytes) -> bytes:
        return store(tenant_id=tenant_id, payload_ref=payload_ref, body=body, using=self.using)

    def get(self, *, tenant_id: str, payload_ref: str) -> bytes | None:
        return fetch(tenant_id=tenant_id, payload_ref=payload_ref, using=self.using)

    def exists(self, *, tenant_id: str, payload_ref: str) -> bool:
        with run("payload_exists", {"tenant_id": tenant_id, "payload_ref": payload_ref}, using=self.using) as cursor:
            return bool(cursor.fetchone()[0])


def store(*, tenant_id: str, payload_ref: str, body: bytes, using: str = "worker") -> bytes:
    """Keep a payload inside the caller's transaction and return its SHA-256, which is what `enqueue` wants.

    Raises: BadIdentifier; BadItem when it is too large, or the tenant has other bytes under the reference, for a payload
    is never edited.
    """
    check_tenant_id(tenant_id)
    check_reference(payload_ref)
    if len(body) > LIMIT_BYTES:
        raise BadItem(f"the payload has {len(body):,} bytes; the limit is {LIMIT_BYTES:,}.")
    parameters = {"tenant_id": tenant_id, "payload_ref": payload_ref, "body": body}
    with run("put_payload", parameters, using=using) as cursor:
        is_new = cursor.fetchone() is not None
    if not is_new:
        with run("payload_is", parameters, using=using) as cursor:
            if cursor.fetchone() != (True,):
                raise BadItem(
                    "payload_ref holds other bytes already, and a payload is never edited; use a new reference."
                )
    return hashlib.sha256(body).digest()


def fetch(*, tenant_id: str, payload_ref: str, using: str = "worker") -> bytes | None:
    """A payload's exact bytes, or None when there is none. What is over LIMIT_BYTES comes back cut after one byte more."""
    parameters = {"tenant_id": tenant_id, "payload_ref": payload_ref, "limit": LIMIT_BYTES + 1}
    with run("get_payload", parameters, using=using) as cursor:
        row = cursor.fetchone()
    return None if row is None else bytes(row[0])


@dataclass(frozen=True, slots=True)
class NotUnderstood:
    """Why a payload cannot be worked on: a reason of the closed list, and which rule where. Never a value of it."""

    reason: QuarantineReason
    detail: Mapping[str, Any]


class _Strict(ValueError):
    """What strict JSON refuses; the message is the rule's name."""


def check(
    *, body: bytes | None, payload_hash: bytes, schemas: Mapping[int, JsonSchema]
) -> Mapping[str, Any] | NotUnderstood:
    """Parse a payload if it is exactly what was approved and follows the schema of a version that the job type knows.

    The bytes must hash to `payload_hash`, be strict JSON (UTF-8 without a mark, no duplicate keys, no NaN, bounded in
    size and depth), an object with a known whole-number `version`, and satisfy that version's schema.
    """
    if body is None:
        return NotUnderstood(QuarantineReason.PAYLOAD_MISSING, {"rule": "exists"})
    if len(body) > LIMIT_BYTES:
        return NotUnderstood(QuarantineReason.UNPARSEABLE, {"rule": "size"})
    if not hmac.compare_digest(hashlib.sha256(body).digest(), payload_hash):
        return NotUnderstood(QuarantineReason.HASH_MISMATCH, {"rule": "sha256"})
    try:
        value = parse(body)
    except _Strict as refused:
        return NotUnderstood(QuarantineReason.UNPARSEABLE, {"rule": str(refused)})
    if not isinstance(value, dict):
        return NotUnderstood(QuarantineReason.UNPARSEABLE, {"rule": "object"})
    version = value.get("version")
    if isinstance(version, bool) or not isinstance(version, int) or version not in schemas:
        return NotUnderstood(
            QuarantineReason.UNKNOWN_VERSION, {"path": "/version", "rule": "known", "known": sorted(schemas)}
        )
    fault = _first_fault(value, dict(schemas[version]))
    if fault is not None:
        return NotUnderstood(QuarantineReason.SCHEMA_INVALID, {**fault, "version": version})
    return value


def parse(body: bytes) -> Any:
    """Read strict JSON. Raises: ValueError whose message is the name of the rule that was broken."""
    if body.startswith(_BOM):
        raise _Strict("no_byte_order_mark")
    if _depth(body) > LIMIT_DEPTH:
        raise _Strict("depth")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise _Strict("utf8") from None
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)
    except _Strict:
        raise
    except (ValueError, RecursionError):  # a number of thousands of digits is a ValueError too
        raise _Strict("json") from None
    if _SURROGATE.search(body):
        _refuse_half_pairs(value)
    return value


def _depth(body: bytes) -> int:
    depth = deepest = 0
    for match in _NESTING.finditer(body):
        match match.group()[:1]:
            case b"[" | b"{":
                depth += 1
                deepest = max(deepest, depth)
            case b"]" | b"}":
                depth -= 1
    return deepest


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _Strict("unique_keys")
    return members


def _no_constant(_: str) -> NoReturn:
    raise _Strict("finite_numbers")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _Strict("finite_numbers")
    return number


def _refuse_half_pairs(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise _Strict("whole_surrogate_pairs") from None


def _first_fault(value: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, str] | None:
    validator = VALIDATOR(schema, registry=referencing.Registry(), format_checker=FORMATS)
    fault = best_match(validator.iter_errors(value))
    return None if fault is None else {"path": _path(fault, schema), "rule": str(fault.validator)}


def _path(fault: ValidationError, schema: Mapping[str, Any]) -> str:
    """Where in the payload a rule was broken. A key that the schema does not spell out may be data: it shows as `*`."""
    declared = set(_declared(schema))
    steps = (str(step) if isinstance(step, int) or step in declared else "*" for step in fault.absolute_path)
    return "/" + "/".join(steps)


def _declared(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        properties = schema.get("properties")
        if isinstance(properties, Mapping):
            yield from (str(name) for name in properties)
        for part in schema.values():
            yield from _declared(part)
    elif isinstance(schema, list | tuple):
        for part in schema:
            yield from _declared(part)
