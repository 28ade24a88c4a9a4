"""What sealing and checking the audit log cost, printed by `make bench`; asserts that everything was sealed once."""

import time
from typing import Any

import pytest
from django.db import connections

from workitems.oversight import audit

ENTRIES = 50_000


@pytest.mark.long
@pytest.mark.bench
def test_sealing_and_checking_keep_up_with_any_log(database: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with connections["owner"].cursor() as cursor:
        started = time.perf_counter()
        cursor.execute(
            "SELECT count(fencewatch.enter('test', 'applied', why => 'x' || n, of_subject => jsonb_build_object('n', n)))"
            " FROM generate_series(1, %s) n",
            [ENTRIES],
        )
        appended = time.perf_counter() - started
    started = time.perf_counter()
    while audit.seal():
        pass
    sealed = time.perf_counter() - started
    started = time.perf_counter()
    found = audit.verify()
    verified = time.perf_counter() - started
    assert (found.faults, found.entries, found.unsealed) == ((), ENTRIES, 0)
    with capsys.disabled():
        print(
            f"\naudit log: {ENTRIES / appended:,.0f} entries/s appended, {ENTRIES / sealed:,.0f} sealed,"
            f" {ENTRIES / verified:,.0f} checked; sealing takes {sealed / appended:.2f} of appending's time"
        )
