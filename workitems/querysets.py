"""Reads in the words of the pages: stalled, lying, begun. Every duration is by the database's clock, and nothing writes."""

import datetime
from collections.abc import Iterable
from typing import Any, NoReturn, Self

from django.db import models
from django.db.models import Case, F, Func, Q, Value, When
from django.db.models.functions import Coalesce

from workitems.errors import ReadOnly
from workitems.states import State


class SafeTimeline(Func):
    """Whether nothing was lost since a timeline: it is the server's, or every failover since is confirmed as lossless."""

    template = "(%(expressions)s = ANY ((SELECT fencewatch.safe_timelines())::bigint[]))"
    output_field = models.BooleanField()


class NothingLost(Func):
    """Whether every failover from one timeline to a later one is confirmed as lossless."""

    function = "fencewatch.nothing_lost"
    output_field = models.BooleanField()


class DatabaseClock(Func):
    """The database's clock, read once a statement. Never Python's: hosts disagree, and leases end by this one."""

    template = "(SELECT clock_timestamp())"
    output_field = models.DateTimeField()


class Seconds(Func):
    """The length of an interval in seconds; negative when it runs backwards."""

    template = "EXTRACT(EPOCH FROM (%(expressions)s))::float8"
    output_field = models.FloatField()


class ProgressAllowance(Func):
    """How long the item's job type lets a claim be silent; null for a job type that nobody registered."""

    template = "make_interval(secs => %(expressions)s)"
    output_field = models.DurationField()

    def __init__(self) -> None:
        super().__init__(F("registered__progress_seconds"))


def refuse(*args: object, **kwargs: object) -> NoReturn:
    """What every method that writes or locks does instead."""
    raise ReadOnly


class ReadOnlyQuerySet[Row: models.Model](models.QuerySet[Row]):
    """Reads on the web role's connection. Every way to write or to lock raises ReadOnly."""

    create = get_or_create = update_or_create = bulk_create = bulk_update = refuse
    update = _update = delete = _raw_delete = select_for_update = refuse
    acreate = aget_or_create = aupdate_or_create = abulk_create = abulk_update = aupdate = adelete = refuse


class TenantQuerySet[Row: models.Model](ReadOnlyQuerySet[Row]):
    """Rows that belong to a tenant. Row security stands behind these filters; they are there for speed and for doubt."""

    def for_tenants(self, digests: Iterable[bytes]) -> Self:
        """Only these tenants' rows."""
        return self.filter(tenant_digest__in=list(digests))

    def for_all(self) -> Self:
        """Every tenant's rows: for people whose membership spans them all."""
        return self.all()


class WorkItemQuerySet[Row: models.Model](TenantQuerySet[Row]):
    """Work items by the words of the pages. Each condition compares with the database's clock unless `at` is given."""

    def in_state(self, *states: State) -> Self:
        """In one of these states. Claimed rows add `attempts > 0`, true of all of them, which their index names."""
        wanted = Q(state__in=[state.value for state in states if state is not State.CLAIMED])
        if State.CLAIMED in states:
            wanted |= Q(state=State.CLAIMED.value, attempts__gt=0)
        return self.filter(wanted)

    def lapsed(self, *, at: datetime.datetime | None = None) -> Self:
        """Claimed, and the lease ran out."""
        return self.in_state(State.CLAIMED).filter(lease_expires_at__lt=_clock(at))

    def lying(self, *, at: datetime.datetime | None = None) -> Self:
        """Claimed with a live lease, but no progress for longer than the job type allows."""
        return self.in_state(State.CLAIMED).filter(_lying(at))

    def stalled(self, *, at: datetime.datetime | None = None) -> Self:
        """Claimed, and the lease ran out or the claim is lying."""
        return self.in_state(State.CLAIMED).filter(Q(lease_expires_at__lt=_clock(at)) | _lying(at))

    def begun(self) -> Self:
        """May have acted: stamped, held by a worker that does not stamp, or a claim may have been lost in a failover."""
        return self.filter(Q(effect_fence__isnull=False) | Q(foreign_held=True) | _failed_over())

    def never_begun(self) -> Self:
        """Cannot have acted: nothing stamped, every claim by a worker that stamps, and no failover lost one."""
        return self.filter(~_failed_over(), effect_fence__isnull=True, foreign_held=False)

    def of_type(self, *names: str) -> Self:
        """Of these job types."""
        return self.filter(job_type__in=names)

    def of_target(self, *targets: str) -> Self:
        """Of job types with these target types."""
        return self.filter(registered__target__in=targets)

    def unregistered(self) -> Self:
        """Of job types that nobody registered."""
        return self.filter(registered__target__isnull=True)

    def with_clock(self, *, at: datetime.datetime | None = None) -> Self:
        """Add `clock` and the durations in seconds that follow from it.

        `since`: when the item entered what it is in now (claimed: that claim; queued: when it fell due). `age`: since
        then, negative for work that is not due. `lease_left`: negative once it ran out. `silent_for`: since the last
        progress of a claim. `is_lying`: as lying(). `failed_over`: a claim may have been lost in a
        failover. `at` fixes the clock to an earlier reading of the database's, so that everything on one page agrees.
        """
        clock = _clock(at)
        since = Case(
            When(state=State.CLAIMED.value, then=Coalesce("claimed_at", "updated_at")),
            When(state=State.QUEUED.value, then=F("available_at")),
            default=F("updated_at"),
        )
        return self.annotate(
            clock=clock,
            since=since,
            age=Seconds(clock - F("since")),
            lease_left=Seconds(F("lease_expires_at") - clock),
            silent_for=Case(When(state=State.CLAIMED.value, then=Seconds(clock - _LAST_PROGRESS))),
            is_lying=Case(
                When(Q(state=State.CLAIMED.value) & _lying(at), then=Value(True)),
                default=Value(False),
                output_field=models.BooleanField(),
            ),
            failed_over=Case(
                When(_failed_over(), then=Value(True)), default=Value(False), output_field=models.BooleanField()
            ),
        )


_LAST_PROGRESS = Coalesce("progress_at", "claimed_at")


def _clock(at: datetime.datetime | None) -> Any:
    return DatabaseClock() if at is None else Value(at, output_field=models.DateTimeField())


def _lying(at: datetime.datetime | None) -> Q:
    clock = _clock(at)
    silent = Q(progress_at__lt=clock - ProgressAllowance()) | Q(
        progress_at__isnull=True, claimed_at__lt=clock - ProgressAllowance()
    )
    return Q(lease_expires_at__gte=clock, waiting_in_worker=False) & silent


def _failed_over() -> Q:
    """As `scope.FAILED_OVER`; a job type that nobody registered could have had any target."""
    open_states = (State.QUEUED.value, State.CLAIMED.value)
    claimed_under = F("fence").bitrightshift(32)
    by_claim = Q(fence__gt=0) & ~Q(enqueue_timeline=claimed_under)
    by_claim &= ~Q(NothingLost(F("enqueue_timeline"), claimed_under))
    by_server = Q(state__in=open_states) & ~Q(SafeTimeline(F("enqueue_timeline")))
    return (by_claim | by_server) & (Q(registered__target__isnull=True) | ~Q(registered__target="A"))
