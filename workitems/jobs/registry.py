"""Registry: the job types that this process knows, and the rules that stop a start with a wrong one."""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from importlib import import_module

from jsonschema.exceptions import SchemaError

from workitems.errors import BadJobType
from workitems.jobs.definition import Handler, JobType, JsonSchema, KeyRecord, Reconciler
from workitems.jobs.payloads import FORMATS, VALIDATOR
from workitems.states import SideEffect, Target

_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*")
_RESERVED = frozenset({"legacy", "unregistered"})
_DAY = 86_400
_TEXT_CHARS = 200
_BATCH = 1_000
_PLAIN_EXTERNAL = "a plain external system cannot be asked by operation identity"

_registered: dict[str, JobType] = {}


def job_type(
    name: str,
    *,
    target: Target,
    side_effect: SideEffect,
    owner: str,
    lease: int,
    max_attempts: int,
    schema: Mapping[int, JsonSchema],
    producer_team: str | None = None,
    system_owner: str | None = None,
    progress: int | None = None,
    attempts_ceiling: int | None = None,
    auto_redrives: int = 0,
    backoff: int = 5,
    answer_valid: int = 300,
    settle: int = 60,
    reconcile: Reconciler | None = None,
    no_reconciler_because: str = "",
    key: KeyRecord | None = None,
    batch: int = 1,
    foreign_claims: bool = False,
) -> Callable[[Handler], JobType]:
    """Register a handler as a job type; the decorated name becomes the `JobType`.

    `owner` takes terminal failures, `producer_team` quarantined input, `system_owner` knows the authoritative system
    and takes unknown outcomes together with on-call; both are the owner unless named. `progress` is the lease and
    `attempts_ceiling` is max_attempts unless given. The handler gets a `Work` and returns an outcome code.

    Raises: BadJobType when the definition contradicts itself: a start with it would be unsafe, so there is none.
    """

    def register(handler: Handler) -> JobType:
        definition = JobType(
            name=name,
            target=target,
            side_effect=side_effect,
            owner=owner,
            producer_team=owner if producer_team is None else producer_team,
            system_owner=owner if system_owner is None else system_owner,
            lease=lease,
            progress=lease if progress is None else progress,
            max_attempts=max_attempts,
            attempts_ceiling=max_attempts if attempts_ceiling is None else attempts_ceiling,
            auto_redrives=auto_redrives,
            backoff=backoff,
            answer_valid=answer_valid,
            settle=settle,
            foreign_claims=foreign_claims,
            batch=batch,
            no_reconciler_because=no_reconciler_because or _reason(target, reconcile),
            schema=schema,
            key=key,
            handler=handler,
            reconcile=reconcile,
        )
        check(definition)
        if name in _registered:
            raise BadJobType(f"{name}: name is taken by another registered job type; give this one its own.")
        _registered[name] = definition
        return definition

    return register


def _reason(target: Target, reconcile: Reconciler | None) -> str:
    return _PLAIN_EXTERNAL if target == Target.D and reconcile is None else ""


def job_types() -> Mapping[str, JobType]:
    """Every registered job type by name, in order of registration."""
    return dict(_registered)


def load(modules: Iterable[str]) -> Mapping[str, JobType]:
    """Import the modules that define job types and return what is registered then.

    Raises: BadJobType when a module is not there, or holds a wrong definition.
    """
    for module in modules:
        try:
            import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise
            raise BadJobType(
                f"FENCEWATCH_JOB_MODULES names {module}, which cannot be imported; mend the name."
            ) from None
    return job_types()


@contextmanager
def isolated() -> Iterator[None]:
    """Begin with an empty registry and put the former one back afterwards (for tests of definitions)."""
    former = dict(_registered)
    _registered.clear()
    try:
        yield
    finally:
        _registered.clear()
        _registered.update(former)


def check(job: JobType) -> None:
    """Refuse a definition that contradicts itself, naming the job type, the field and what to do.

    Raises: BadJobType.
    """
    for field, sentence in _faults(job):
        raise BadJobType(f"{job.name or 'a job type without a name'}: {field} {sentence}")


def _faults(job: JobType) -> Iterator[tuple[str, str]]:
    yield from _faults_of_names(job)
    yield from _faults_of_limits(job)
    yield from _faults_of_callables(job)
    yield from _faults_of_target(job)
    yield from _faults_of_key(job)
    yield from _faults_of_schema(job)


def _faults_of_names(job: JobType) -> Iterator[tuple[str, str]]:
    if not _is_name(job.name):
        yield "name", "must be words of a-z, 0-9 and _, joined by dots, 100 characters at most, as in billing.refund."
    if job.name in _RESERVED:
        yield "name", "is reserved for rows without a registered job type; choose another."
    if not _is_a(Target, job.target):
        yield "target", "must be one of Target.A, Target.B, Target.C, Target.D."
    if not _is_a(SideEffect, job.side_effect):
        yield "side_effect", "must be one of SideEffect.REVERSIBLE, SideEffect.IDEMPOTENT, SideEffect.IRREVERSIBLE."
    for field in ("owner", "producer_team", "system_owner"):
        if not _is_line(getattr(job, field)):
            yield field, f"must name who owns the next step, in one line of 1 to {_TEXT_CHARS} characters."


def _is_a(kind: type, value: object) -> bool:
    return isinstance(value, kind)


def _is_name(name: object) -> bool:
    return isinstance(name, str) and len(name) <= 100 and _NAME.fullmatch(name) is not None


def _is_whole(number: object, *, low: int, high: int) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and low <= number <= high


def _is_line(text: object) -> bool:
    return isinstance(text, str) and bool(text.strip()) and len(text) <= _TEXT_CHARS and text.isprintable()


def _faults_of_limits(job: JobType) -> Iterator[tuple[str, str]]:
    limits = {
        "lease": (1, _DAY),
        "progress": (1, _DAY),
        "max_attempts": (1, 1_000),
        "attempts_ceiling": (1, 1_000),
        "auto_redrives": (0, 100),
        "backoff": (0, _DAY),
        "answer_valid": (1, 30 * _DAY),
        "settle": (0, 30 * _DAY),
        "batch": (1, _BATCH),
    }
    for field, (low, high) in limits.items():
        if not _is_whole(getattr(job, field), low=low, high=high):
            yield field, f"must be a whole number from {low:,} to {high:,}."
    if job.attempts_ceiling < job.max_attempts:
        yield "attempts_ceiling", "is below max_attempts; it is how far redrives may raise them, so set it no lower."


def _faults_of_callables(job: JobType) -> Iterator[tuple[str, str]]:
    if not _takes_one_argument(job.handler):
        yield "handler", "must be a plain function that takes one argument, the Work, and returns an outcome code."
    if job.reconcile is not None and not _takes_one_argument(job.reconcile):
        yield "reconcile", "must be a plain function that takes one argument, the Work, and returns an Answer."


def _takes_one_argument(function: object) -> bool:
    if not callable(function) or inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        return False
    try:
        inspect.signature(function).bind(object())
    except (TypeError, ValueError):
        return False
    return not inspect.isasyncgenfunction(function)


def _faults_of_target(job: JobType) -> Iterator[tuple[str, str]]:
    if job.no_reconciler_because and not _is_line(job.no_reconciler_because):
        yield "no_reconciler_because", f"must be one line of at most {_TEXT_CHARS} characters."
    if job.target == Target.A and job.reconcile is not None:
        yield "reconcile", "has nothing to ask for target A, where effect and completion are one commit; leave it out."
    if job.target in (Target.B, Target.C) and job.reconcile is None and not job.no_reconciler_because.strip():
        yield (
            "reconcile",
            f"is missing for target {job.target}; give one, or say in no_reconciler_because why there is none.",
        )
    if job.reconcile is not None and job.no_reconciler_because:
        yield "no_reconciler_because", "contradicts reconcile; leave one of them out."
    if job.target == Target.D:
        yield from _faults_of_plain_external(job)


def _faults_of_plain_external(job: JobType) -> Iterator[tuple[str, str]]:
    if job.reconcile is not None:
        yield "reconcile", "is not for target D, which has no look-up; if the system has one, the target is C."
    if job.max_attempts != 1:
        yield "max_attempts", "must be 1 for target D: a second attempt is a person's decision."
    if job.auto_redrives != 0:
        yield "auto_redrives", "must be 0 for target D: every redrive is a person's decision."
    if job.batch != 1:
        yield "batch", "must be 1 for target D, which is claimed one at a time."


def _faults_of_key(job: JobType) -> Iterator[tuple[str, str]]:
    if job.key is None:
        if job.target == Target.C:
            yield "key", "is missing for target C; give a KeyRecord of what the provider promises about its keys."
        return
    if job.target != Target.C:
        yield "key", f"is for target C only, not for target {job.target}; leave it out."
    if not _is_a(timedelta, job.key.window) or job.key.window < timedelta(seconds=1):
        yield "key.window", "must be a timedelta of a second or more: how long the provider remembers a key."
    for field in ("scope", "mismatch", "source", "verified_by"):
        if not _is_line(getattr(job.key, field)):
            yield f"key.{field}", f"must be one line of 1 to {_TEXT_CHARS} characters."
    for field in ("verified_on", "expires_on"):
        if type(getattr(job.key, field)) is not date:
            yield f"key.{field}", "must be a date."
    today = datetime.now(UTC).date()
    if job.key.verified_on > today:
        yield "key.verified_on", "lies in the future; give the day on which the provider's promise was read."
    if job.key.expires_on <= max(today, job.key.verified_on):
        yield (
            "key.expires_on",
            "has passed; read the provider's promise again, then set verified_on and expires_on anew.",
        )


def _faults_of_schema(job: JobType) -> Iterator[tuple[str, str]]:
    if not _is_a(Mapping, job.schema) or not job.schema:
        yield "schema", "must map each payload version to its JSON schema; without one no payload can be understood."
    for version, schema in job.schema.items():
        if not _is_whole(version, low=1, high=1_000_000):
            yield "schema", "has a version that is not a whole number from 1 up."
        try:
            VALIDATOR.check_schema(dict(schema))
        except (SchemaError, TypeError, ValueError) as error:
            reason = error.message if isinstance(error, SchemaError) else "it is not a JSON object"
            yield "schema", f"of version {version} is no JSON schema of draft 2020-12: {reason}."
        for keyword, value in _keywords(schema):
            if keyword == "$ref" and not value.startswith("#"):
                yield "schema", f"of version {version} refers outside itself; nothing is fetched, so write it in."
            if keyword == "format" and value not in FORMATS.checkers:
                yield (
                    "schema",
                    f"of version {version} asks for the format {value}, which nobody here checks; use a pattern.",
                )


def _keywords(schema: object) -> Iterator[tuple[str, str]]:
    if isinstance(schema, Mapping):
        for keyword, value in schema.items():
            if isinstance(value, str):
                yield keyword, value
            yield from _keywords(value)
    elif isinstance(schema, list | tuple):
        for value in schema:
            yield from _keywords(value)
