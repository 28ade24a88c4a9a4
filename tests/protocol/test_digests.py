import unicodedata
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.stage import add_job_type, enqueue, row
from workitems.errors import BadIdentifier
from workitems.identifiers import full, item_digest, pads, parse_full, reference_digest, show, tenant_digest
from workitems.operations.rotation import rotate_tenant_key

KEY = bytes(range(32))
text = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), min_size=1, max_size=40)


def key_of(superuser: Any, tenant_id: str, version: int) -> bytes:
    """The tenant's key, got back from its stored pad."""
    (inner,) = superuser.execute(
        "SELECT inner_pad FROM fencewatch.tenant_key WHERE tenant_id = %s AND version = %s", [tenant_id, version]
    ).fetchone()
    return bytes(byte ^ 0x36 for byte in inner[:32])


@given(text, text, text, text)
def test_two_identities_never_share_a_digest_whatever_separator_they_hold(
    tenant: str, operation: str, other_tenant: str, other_operation: str
) -> None:
    same = (tenant, operation) == (other_tenant, other_operation)
    assert (
        item_digest(KEY, tenant_id=tenant, operation_id=operation)
        == item_digest(KEY, tenant_id=other_tenant, operation_id=other_operation)
    ) is same


def test_moving_the_boundary_or_forging_a_length_prefix_gives_another_digest() -> None:
    forged = [
        ("ab", "c"),
        ("a", "bc"),
        ("a\x01", "c"),
        ("a", "\x00\x00\x00\x01c"),
        ("a\x00\x00\x00\x01b", "c"),
        ("abc", ""),
    ]
    assert len({item_digest(KEY, tenant_id=t, operation_id=o) for t, o in forged}) == len(forged)


def test_a_digest_made_for_one_purpose_is_worthless_for_another() -> None:
    assert (
        len(
            {
                item_digest(KEY, tenant_id="t", operation_id="x"),
                tenant_digest(KEY, tenant_id="t"),
                reference_digest(KEY, tenant_id="t", payload_ref="x"),
            }
        )
        == 3
    )


def test_composed_and_decomposed_letters_are_two_identities() -> None:
    assert (
        len({item_digest(KEY, tenant_id="t", operation_id=unicodedata.normalize(form, "é")) for form in ("NFC", "NFD")})
        == 2
    )


def test_the_database_computes_the_same_digests_as_python(
    database: Any, superuser: Any, tenants: tuple[str, str]
) -> None:
    add_job_type()
    key = key_of(superuser, tenants[0], 1)
    for operation in ("plain", "🎉/%", "x" * 1_000):
        answer = enqueue(tenants[0], operation)
        assert answer.op_digest == item_digest(key, tenant_id=tenants[0], operation_id=operation)
        assert row(tenants[0], operation)["tenant_digest"] == tenant_digest(key, tenant_id=tenants[0])
    assert (
        pads(key)[0]
        == superuser.execute(
            "SELECT inner_pad FROM fencewatch.tenant_key WHERE tenant_id = %s", [tenants[0]]
        ).fetchone()[0]
    )


def test_rotating_one_tenants_key_changes_its_new_rows_only(
    database: Any, superuser: Any, tenants: tuple[str, str]
) -> None:
    add_job_type()
    for tenant in tenants:
        enqueue(tenant, "before")
    old = [row(tenant, "before") for tenant in tenants]
    assert rotate_tenant_key(tenant_id=tenants[0]) == 2
    for tenant in tenants:
        enqueue(tenant, "after")
    assert [row(tenant, "before") for tenant in tenants] == old
    assert [row(tenant, "after")["digest_key_version"] for tenant in tenants] == [2, 1]
    assert row(tenants[0], "after")["tenant_digest"] == old[0]["tenant_digest"]
    for version, operation in ((1, "before"), (2, "after")):
        expected = item_digest(key_of(superuser, tenants[0], version), tenant_id=tenants[0], operation_id=operation)
        assert row(tenants[0], operation)["op_digest"] == expected
    assert enqueue(tenants[0], "before").op_digest == old[0]["op_digest"]


def test_a_short_digest_is_for_reading_and_a_full_one_for_links() -> None:
    digest = item_digest(KEY, tenant_id="t", operation_id="o")
    short = show(digest)
    assert short.startswith("op_")
    assert [len(group) for group in short.removeprefix("op_").split("-")] == [4, 4, 4, 4]
    assert parse_full(full(digest)) == digest
    for bad in (short, full(digest).upper(), full(digest) + "0", "", "g" * 64):
        try:
            parse_full(bad)
        except BadIdentifier:
            continue
        raise AssertionError(f"{bad!r} was read as a digest")
