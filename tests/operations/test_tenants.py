"""A tenant's label, as a person at a command line gives it."""

from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command


def labels(superuser: Any) -> list[str]:
    return [label for (label,) in superuser.execute("SELECT label FROM tenant ORDER BY tenant_id").fetchall()]


def test_a_tenant_is_called_what_its_label_says(tenants: tuple[str, str], superuser: Any) -> None:
    call_command("tenant", "label", tenants[0], "Nordwind", stdout=StringIO())
    assert labels(superuser) == ["Nordwind", "South"]
    call_command("tenant", "label", tenants[0], "", stdout=StringIO())
    assert labels(superuser) == ["", "South"]


@pytest.mark.parametrize(
    ("tenant_id", "label", "sentence"),
    [
        ("tenant-north", "tenant-north", "the label repeats it"),
        ("tenant-north", "x" * 61, "over 60 characters"),
        ("nobody", "Nobody", "there is no such tenant"),
        ("", "Nobody", "tenant_id is empty"),
    ],
)
@pytest.mark.usefixtures("tenants")
def test_a_label_that_cannot_be_is_refused_with_the_reason(
    tenant_id: str, label: str, sentence: str, superuser: Any
) -> None:
    with pytest.raises(CommandError, match=sentence):
        call_command("tenant", "label", tenant_id, label)
    assert labels(superuser) == ["North", "South"]
