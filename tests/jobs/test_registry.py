"""Definitions that contradict themselves stop the start, in one sentence that names the job type and the field."""

import dataclasses
from datetime import date, timedelta
from typing import Any

import pytest

from tests.jobs.stage import KEY, SCHEMA, arguments, define, not_there, nothing
from workitems.errors import BadJobType
from workitems.jobs import Target, Work, job_type
from workitems.jobs.registry import isolated, job_types, load


@pytest.mark.parametrize("target", list(Target))
def test_a_right_definition_of_each_target_is_registered(target: Target) -> None:
    job = define(target)

    assert job_types() == {"billing.refund": job}
    assert job.handler is nothing


def test_what_is_not_named_follows_from_what_is() -> None:
    given = {
        name: value
        for name, value in arguments(Target.A).items()
        if name in {"target", "side_effect", "owner", "lease", "max_attempts", "schema"}
    }
    job = job_type("billing.refund", **given)(nothing)

    assert (job.producer_team, job.system_owner) == ("billing", "billing")
    assert (job.progress, job.attempts_ceiling) == (job.lease, job.max_attempts)


async def _coroutine(work: Work) -> str:
    return "done"


def _two_arguments(work: Work, more: int) -> str:
    return "done"


def _generator(work: Work) -> Any:
    yield "done"


WRONG: list[tuple[str, Target, dict[str, Any]]] = [
    ("name", Target.A, {"name": "Billing Refund"}),
    ("name", Target.A, {"name": "a" * 101}),
    ("name", Target.A, {"name": "legacy"}),
    ("target", Target.A, {"target": "E"}),
    ("side_effect", Target.A, {"side_effect": "harmless"}),
    ("owner", Target.A, {"owner": "  "}),
    ("producer_team", Target.A, {"producer_team": ""}),
    ("system_owner", Target.A, {"system_owner": "two\nlines"}),
    ("lease", Target.A, {"lease": 0}),
    ("lease", Target.A, {"lease": 86_401}),
    ("lease", Target.A, {"lease": True}),
    ("progress", Target.A, {"progress": 0}),
    ("progress", Target.A, {"progress": 86_401}),
    ("max_attempts", Target.A, {"max_attempts": 0}),
    ("attempts_ceiling", Target.A, {"attempts_ceiling": 2}),
    ("auto_redrives", Target.A, {"auto_redrives": -1}),
    ("backoff", Target.A, {"backoff": -1}),
    ("answer_valid", Target.A, {"answer_valid": 0}),
    ("settle", Target.A, {"settle": -1}),
    ("batch", Target.A, {"batch": 0}),
    ("handler", Target.A, {"handler": _coroutine}),
    ("handler", Target.A, {"handler": _two_arguments}),
    ("handler", Target.A, {"handler": _generator}),
    ("handler", Target.A, {"handler": "nothing"}),
    ("reconcile", Target.A, {"reconcile": not_there}),
    ("reconcile", Target.B, {"reconcile": None}),
    ("reconcile", Target.C, {"reconcile": None}),
    ("reconcile", Target.B, {"reconcile": _two_arguments}),
    ("no_reconciler_because", Target.B, {"no_reconciler_because": "there is one"}),
    ("no_reconciler_because", Target.B, {"reconcile": None, "no_reconciler_because": "x" * 201}),
    ("reconcile", Target.D, {"reconcile": not_there}),
    ("max_attempts", Target.D, {"max_attempts": 2, "attempts_ceiling": 2}),
    ("auto_redrives", Target.D, {"auto_redrives": 1}),
    ("batch", Target.D, {"batch": 2}),
    ("key", Target.C, {"key": None}),
    ("key", Target.B, {"key": KEY}),
    ("key.window", Target.C, {"key": dataclasses.replace(KEY, window=timedelta(0))}),
    ("key.scope", Target.C, {"key": dataclasses.replace(KEY, scope="")}),
    ("key.verified_by", Target.C, {"key": dataclasses.replace(KEY, verified_by=" ")}),
    ("key.verified_on", Target.C, {"key": dataclasses.replace(KEY, verified_on=date(2098, 1, 1))}),
    ("key.expires_on", Target.C, {"key": dataclasses.replace(KEY, expires_on=date(2026, 1, 2))}),
    ("schema", Target.A, {"schema": {}}),
    ("schema", Target.A, {"schema": {"1": {}}}),
    ("schema", Target.A, {"schema": {0: {}}}),
    ("schema", Target.A, {"schema": {1: {"type": "money"}}}),
    ("schema", Target.A, {"schema": {1: {"$ref": "https://example.org/schema"}}}),
    ("schema", Target.A, {"schema": {1: {"properties": {"iban": {"type": "string", "format": "iban"}}}}}),
]


@pytest.mark.parametrize(("field", "target", "over"), WRONG)
def test_a_wrong_combination_is_refused_by_name_and_field(field: str, target: Target, over: dict[str, Any]) -> None:
    given = dict(over)
    name, handler = given.pop("name", "billing.refund"), given.pop("handler", nothing)

    with pytest.raises(BadJobType) as refused:
        job_type(name, **arguments(target, **given))(handler)

    sentence = str(refused.value)
    assert sentence.startswith(f"{name}: {field} ")
    assert sentence.endswith(".")
    assert "\n" not in sentence
    assert job_types() == {}


def test_a_name_is_given_once() -> None:
    define(Target.A)

    with pytest.raises(BadJobType, match=r"^billing\.refund: name is taken"):
        define(Target.B)


def test_a_target_without_look_up_may_say_so() -> None:
    job = define(Target.B, reconcile=None, no_reconciler_because="the store has no consistent read")

    assert job.row["reconciles"] is False


def _fingerprint(**over: Any) -> str:
    with isolated():
        return define(Target.C, over.pop("handler", nothing), **over).fingerprint


def test_the_fingerprint_is_of_the_definition_and_not_of_the_code() -> None:
    assert _fingerprint() == _fingerprint(handler=lambda work: "other code")


@pytest.mark.parametrize(
    "over",
    [
        {"lease": 61},
        {"owner": "somebody else"},
        {"batch": 2},
        {"schema": {**SCHEMA, 2: {"type": "object"}}},
        {"key": dataclasses.replace(KEY, window=timedelta(hours=1))},
        {"reconcile": None, "no_reconciler_because": "none"},
    ],
)
def test_every_promise_is_in_the_fingerprint(over: dict[str, Any]) -> None:
    assert _fingerprint(**over) != _fingerprint()


def test_a_module_that_is_not_there_is_named() -> None:
    with pytest.raises(BadJobType, match=r"names no\.such\.module, which cannot be imported"):
        load(["no.such.module"])


def test_a_job_type_is_called_like_its_handler() -> None:
    job = define(Target.A, lambda work: "called")

    assert job(None) == "called"  # type: ignore[arg-type]
