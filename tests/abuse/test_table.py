"""The table in this room's docstring names tests that exist."""

import re

from tests import abuse
from tests.processes import ROOT

CASES = re.findall(r"^(\d+)  (.+)\n((?:    tests/.+\n)+)", abuse.__doc__ or "", re.MULTILINE)


def test_every_case_of_the_table_names_its_tests() -> None:
    assert [int(number) for number, _, _ in CASES] == list(range(20, 40))


def test_every_test_that_the_table_names_exists() -> None:
    for number, _, named in CASES:
        for test in named.split():
            path, _, name = test.partition("::")
            assert re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.MULTILINE), f"case {number}: {test}"
