"""Agreement: whether code and the job_type table say the same of each job type."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from threading import Lock

from workitems.errors import JobTypesDiffer
from workitems.jobs.definition import JobType
from workitems.jobs.payloads import run
from workitems.said import said

CACHE_SECONDS = 5.0

_cache: dict[str, tuple[float, Mapping[str, str]]] = {}
_cache_lock = Lock()


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """How the registered job types stand to the table's rows, by name."""

    added: Sequence[str]
    changed: Sequence[str]
    unchanged: Sequence[str]
    gone: Sequence[str]  # rows without code here; kept, since items and history refer to them

    @property
    def is_none(self) -> bool:
        """Whether workers of this code may claim every job type that it registers."""
        return not (self.added or self.changed)


def difference(job_types: Mapping[str, JobType], *, using: str = "owner") -> Difference:
    """Compare the registered job types with the table, by fingerprint."""
    known = _fingerprints(using)
    return Difference(
        added=[name for name in job_types if name not in known],
        changed=[name for name, job in job_types.items() if name in known and known[name] != job.fingerprint],
        unchanged=[name for name, job in job_types.items() if known.get(name) == job.fingerprint],
        gone=sorted(known.keys() - job_types.keys()),
    )


def sync(job_types: Mapping[str, JobType], *, reason: str = "", using: str = "owner") -> Difference:
    """Write every definition that differs into the table, audited, in one transaction; returns what differed before.

    What operators decide, a hold, stays as it is. Rows without code stay too. Workers notice within seconds.
    """
    with said(reason=reason, using=using):
        found = difference(job_types, using=using)
        for name in (*found.added, *found.changed):
            job = job_types[name]
            definition = json.dumps({**job.row, "fingerprint": job.fingerprint}, default=str)
            with run("put_job_type", {"definition": definition}, using=using):
                pass
    forget()
    return found


def hold(name: str, *, until: datetime, reason: str, using: str = "owner") -> bool:
    """Keep every worker from claiming a job type until then; work that is claimed goes on. False: no such job type."""
    with (
        said(reason=reason, using=using),
        run("hold_job_type", {"name": name, "until": until, "reason": reason}, using=using) as cursor,
    ):
        row = cursor.fetchone()
        return row is not None and bool(row[0])


def release_hold(name: str, *, reason: str = "", using: str = "owner") -> bool | None:
    """Let workers claim a job type again. False: it was not on hold; None: there is no such job type."""
    with said(reason=reason, using=using), run("release_hold", {"name": name}, using=using) as cursor:
        row = cursor.fetchone()
        return row[0] if row else None


def require(job: JobType, *, using: str = "worker") -> None:
    """Refuse to claim a job type whose definition here is not the table's. Cheap: the table is read every few seconds.

    Raises: JobTypesDiffer.
    """
    known = _cached_fingerprints(using).get(job.name)
    if known == job.fingerprint:
        return
    forget()  # the next try reads the table: a sync takes effect at once
    found = "is not in the job_type table" if known is None else "differs from its row in the job_type table"
    raise JobTypesDiffer(
        f"{job.name} {found}, so it is not claimed here; run `manage.py sync_job_types` with this version of the code,"
        " or restart this worker with the version that was synced."
    )


def forget() -> None:
    """Drop what was read of the table, so that the next comparison reads it."""
    with _cache_lock:
        _cache.clear()


def _cached_fingerprints(using: str) -> Mapping[str, str]:
    with _cache_lock:
        read_at, known = _cache.get(using, (-CACHE_SECONDS, {}))
    if time.monotonic() - read_at < CACHE_SECONDS:
        return known
    known = _fingerprints(using)
    with _cache_lock:
        _cache[using] = (time.monotonic(), known)
    return known


def _fingerprints(using: str) -> Mapping[str, str]:
    with run("fingerprints", {}, using=using) as cursor:
        return dict(cursor.fetchall())
