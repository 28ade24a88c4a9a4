"""A payload is understood with confidence or not at all; what is said of it never holds a value of it."""

import hashlib
import json
from typing import Any

import pytest

from tests.jobs.stage import BODY, SCHEMA
from workitems.errors import BadItem
from workitems.jobs.payloads import LIMIT_BYTES, NotUnderstood, PostgresPayloads, check, fetch, store
from workitems.states import QuarantineReason


def checked(body: bytes | None, schemas: Any = SCHEMA) -> Any:
    return check(body=body, payload_hash=hashlib.sha256(body or b"").digest(), schemas=schemas)


def test_a_good_payload_is_parsed() -> None:
    assert checked(BODY) == {"version": 1, "amount": 250}


def test_brackets_inside_strings_are_no_nesting() -> None:
    body = json.dumps({"version": 1, "text": "[" * 500 + '\\" {'}).encode()

    assert checked(body, {1: {}})["text"].startswith("[")


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        (BODY[:-1], "json"),
        (b"", "json"),
        (b"\xef\xbb\xbf" + BODY, "no_byte_order_mark"),
        (BODY.decode().encode("utf-16"), "utf8"),
        (b'{"version": 1, "amount": 250, "amount": 1}', "unique_keys"),
        (b'{"version": 1, "nested": {"a": 1, "\\u0061": 2}}', "unique_keys"),
        (b'{"version": 1, "amount": NaN}', "finite_numbers"),
        (b'{"version": 1, "amount": -Infinity}', "finite_numbers"),
        (b'{"version": 1, "amount": 1e999}', "finite_numbers"),
        (b'{"version": 1, "amount": ' + b"9" * 5_000 + b"}", "json"),
        (b'{"version": 1, "amount": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "depth"),
        (b'{"version": 1, "amount": ' + b'{"a":' * 65 + b"1" + b"}" * 65 + b"}", "depth"),
        (b'{"version": 1, "name": "\\ud800"}', "whole_surrogate_pairs"),
        (b'{"version": 1, "name": "' + b"x" * LIMIT_BYTES + b'"}', "size"),
        (b"[1]", "object"),
        (BODY + b"{}", "json"),
    ],
)
def test_what_is_no_strict_json_is_unparseable(body: bytes, rule: str) -> None:
    assert checked(body) == NotUnderstood(QuarantineReason.UNPARSEABLE, {"rule": rule})


def test_a_missing_payload_is_said_to_be_missing() -> None:
    assert checked(None).reason == QuarantineReason.PAYLOAD_MISSING


def test_other_bytes_than_the_approved_ones_are_a_hash_mismatch_even_if_they_are_good() -> None:
    fault = check(body=BODY + b" ", payload_hash=hashlib.sha256(BODY).digest(), schemas=SCHEMA)

    assert isinstance(fault, NotUnderstood)
    assert fault.reason == QuarantineReason.HASH_MISMATCH


@pytest.mark.parametrize("version", [2, "1", 1.5, True, None, [1]])
def test_a_version_that_the_job_type_does_not_know_is_not_guessed_at(version: Any) -> None:
    fault = checked(json.dumps({"version": version, "amount": 1}).encode())

    assert fault == NotUnderstood(QuarantineReason.UNKNOWN_VERSION, {"path": "/version", "rule": "known", "known": [1]})


def test_a_payload_without_a_version_is_of_an_unknown_one() -> None:
    assert checked(b'{"amount": 1}').reason == QuarantineReason.UNKNOWN_VERSION


def test_a_broken_schema_rule_is_named_by_path_and_rule() -> None:
    fault = checked(b'{"version": 1, "amount": "4000 secret"}')

    assert fault == NotUnderstood(QuarantineReason.SCHEMA_INVALID, {"path": "/amount", "rule": "type", "version": 1})


def test_a_key_that_the_schema_does_not_spell_out_is_data_and_not_shown() -> None:
    schema = {1: {"properties": {"people": {"additionalProperties": {"type": "integer"}}}}}

    fault = checked(b'{"version": 1, "people": {"ann@example.org": "x"}}', schema)

    assert fault.detail == {"path": "/people/*", "rule": "type", "version": 1}


@pytest.mark.timeout(20)
def test_a_hostile_payload_does_not_take_long() -> None:
    assert checked(b'"\\' * (LIMIT_BYTES // 2)).reason == QuarantineReason.UNPARSEABLE


def test_a_payload_is_found_by_tenant_and_reference_only(tenants: tuple[str, str]) -> None:
    north, south = tenants
    digest = store(tenant_id=north, payload_ref="same", body=b"north's")
    store(tenant_id=south, payload_ref="same", body=b"south's")

    assert digest == hashlib.sha256(b"north's").digest()
    assert fetch(tenant_id=north, payload_ref="same") == b"north's"
    assert fetch(tenant_id=south, payload_ref="same") == b"south's"
    assert fetch(tenant_id=south, payload_ref="other") is None
    assert PostgresPayloads().exists(tenant_id=south, payload_ref="same")
    assert not PostgresPayloads().exists(tenant_id=south, payload_ref="other")


def test_a_payload_is_never_edited(tenants: tuple[str, str]) -> None:
    store(tenant_id=tenants[0], payload_ref="ref", body=b"first")
    store(tenant_id=tenants[0], payload_ref="ref", body=b"first")

    with pytest.raises(BadItem, match="never edited"):
        store(tenant_id=tenants[0], payload_ref="ref", body=b"second")

    assert fetch(tenant_id=tenants[0], payload_ref="ref") == b"first"


def test_a_payload_over_the_limit_is_neither_taken_nor_read_whole(tenants: tuple[str, str], superuser: Any) -> None:
    with pytest.raises(BadItem, match="the limit is 1,048,576"):
        store(tenant_id=tenants[0], payload_ref="ref", body=b"x" * (LIMIT_BYTES + 1))
    superuser.execute(
        "INSERT INTO payload (tenant_id, payload_ref, body) VALUES (%s, 'ref', %s)", [tenants[0], b"x" * 3_000_000]
    )

    assert len(fetch(tenant_id=tenants[0], payload_ref="ref") or b"") == LIMIT_BYTES + 1
