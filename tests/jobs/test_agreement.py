"""Code and the job_type table agree, or workers do not claim."""

from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from tests.jobs.stage import define, defined, enqueue, standing
from workitems.errors import JobTypesDiffer
from workitems.jobs import Target, agreement
from workitems.jobs.registry import isolated, job_types
from workitems.jobs.worker import Ended, run_one, work_until_idle


def sync_job_types(*arguments: str) -> list[str]:
    out = StringIO()
    with override_settings(JOB_MODULES=[]):
        call_command("sync_job_types", *arguments, stdout=out)
    return out.getvalue().splitlines()


@pytest.mark.usefixtures("database")
def test_a_sync_says_what_it_added_changed_and_found_without_code() -> None:
    define(Target.A, name="one.stays")
    define(Target.B, name="one.changes")
    define(Target.D, name="one.goes")
    assert sync_job_types() == ["added: one.stays", "added: one.changes", "added: one.goes"]

    with isolated():
        define(Target.A, name="one.stays")
        define(Target.B, name="one.changes", lease=61)
        define(Target.C, name="one.comes")

        assert sync_job_types() == [
            "added: one.comes",
            "changed: one.changes",
            "unchanged: one.stays",
            "no longer in code, kept: one.goes",
        ]
        assert sync_job_types("--check") == [
            "unchanged: one.stays",
            "unchanged: one.changes",
            "unchanged: one.comes",
            "no longer in code, kept: one.goes",
        ]


@pytest.mark.usefixtures("database")
def test_a_check_changes_nothing_and_fails_on_a_difference() -> None:
    define(Target.C)

    with pytest.raises(CommandError, match="differ"):
        sync_job_types("--check")

    assert agreement.difference(job_types()).added == ["billing.refund"]


def test_every_column_reaches_the_table(superuser: Any, database: Any) -> None:
    job = defined(Target.C, settle=7, answer_valid=8, backoff=9, auto_redrives=2)

    names = ", ".join(job.row)
    found = superuser.execute(f"SELECT {names}, fingerprint FROM job_type WHERE name = 'billing.refund'").fetchone()

    assert dict(zip([*job.row, "fingerprint"], found, strict=True)) == {**job.row, "fingerprint": job.fingerprint}


def test_a_sync_leaves_a_hold_alone(superuser: Any, database: Any) -> None:
    defined(Target.A)
    superuser.execute(
        "UPDATE job_type SET held_until = 'infinity', held_reason = 'outage' WHERE name = 'billing.refund'"
    )

    with isolated():
        defined(Target.A, lease=61)

    held = superuser.execute("SELECT lease_seconds, held_reason FROM job_type WHERE name = 'billing.refund'").fetchone()
    assert held == (61, "outage")


def test_a_worker_does_not_claim_a_job_type_that_the_table_lacks(tenants: tuple[str, str]) -> None:
    job = define(Target.A)
    enqueue(tenants[0], job=job)

    with pytest.raises(
        JobTypesDiffer, match=r"billing\.refund is not in the job_type table.*manage\.py sync_job_types"
    ):
        run_one(job)

    assert standing(tenants[0]) == ("queued", None)


def test_a_worker_of_other_code_does_not_claim(tenants: tuple[str, str]) -> None:
    defined(Target.A)
    with isolated():
        other = define(Target.A, lease=61)
        enqueue(tenants[0], job=other)

        with pytest.raises(JobTypesDiffer, match=r"billing\.refund differs from its row"):
            run_one(other)

    assert standing(tenants[0]) == ("queued", None)


def test_a_sync_takes_effect_at_a_worker_that_refused(tenants: tuple[str, str]) -> None:
    job = define(Target.A)
    enqueue(tenants[0], job=job)
    with pytest.raises(JobTypesDiffer):
        run_one(job)

    agreement.sync(job_types())

    ran = run_one(job)
    assert ran is not None
    assert ran.ended == Ended.COMPLETED


def test_a_difference_on_one_job_type_does_not_stop_the_others(tenants: tuple[str, str]) -> None:
    good = defined(Target.A, name="good.job")
    bad = define(Target.A, name="bad.job")
    enqueue(tenants[0], "op-good", job=good)
    enqueue(tenants[0], "op-bad", job=bad)

    assert work_until_idle([bad, good], seconds=30) == {Ended.COMPLETED: 1}
    assert standing(tenants[0], "op-bad") == ("queued", None)


def test_the_comparison_does_not_read_the_table_each_time(tenants: tuple[str, str], statements_of: Any) -> None:
    job = defined(Target.A)
    run_one(job)

    assert statements_of(lambda: agreement.require(job)) == []
