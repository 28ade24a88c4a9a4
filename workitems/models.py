"""What the pages may read, as the ORM sees it. Nothing here writes: the database grants the web role no write at all, and
these models say so earlier and in plain words. Raw tenant ids, operation ids and payload references have no field.
"""

import datetime
from collections.abc import Iterable
from typing import Any, NoReturn, Self

from django.db import models
from django.db.models import Case, F, Func, Q, Value, When
from django.db.models.functions import Coalesce

from workitems.errors import ReadOnly
from workitems.identifiers import full, show
from workitems.states import State


class ServerTimeline(Func):
    """The server's timeline, read once a statement: another number than an item's enqueue tells of a failover since."""

    template = "(SELECT fencewatch.timeline())"
    output_field = models.BigIntegerField()


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


def _refuse(*args: object, **kwargs: object) -> NoReturn:
    raise ReadOnly


class ReadOnlyQuerySet[Row: models.Model](models.QuerySet[Row]):
    """Reads on the web role's connection. Every way to write or to lock raises ReadOnly."""

    create = get_or_create = update_or_create = bulk_create = bulk_update = _refuse
    update = _update = delete = _raw_delete = select_for_update = _refuse
    acreate = aget_or_create = aupdate_or_create = abulk_create = abulk_update = aupdate = adelete = _refuse


class TenantQuerySet[Row: models.Model](ReadOnlyQuerySet[Row]):
    """Rows that belong to a tenant. Row security stands behind these filters; they are there for speed and for doubt."""

    def for_tenants(self, digests: Iterable[bytes]) -> Self:
        """Only these tenants' rows."""
        return self.filter(tenant_digest__in=list(digests))

    def for_all(self) -> Self:
        """Every tenant's rows: for people whose membership spans them all."""
        return self.all()


class WorkItemQuerySet(TenantQuerySet["WorkItem"]):
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
    by_claim = Q(fence__gt=0) & ~Q(enqueue_timeline=F("fence").bitrightshift(32))
    by_server = Q(state__in=open_states) & ~Q(enqueue_timeline=ServerTimeline())
    return (by_claim | by_server) & (Q(registered__target__isnull=True) | ~Q(registered__target="A"))


class ReadOnlyModel(models.Model):
    """A row that pages read."""

    class Meta:
        abstract = True

    save = save_base = delete = asave = adelete = _refuse


class Tenant(ReadOnlyModel):
    """A tenant by its digest and the nickname that people gave it."""

    tenant_digest = models.BinaryField(primary_key=True)
    label = models.TextField()

    objects = TenantQuerySet["Tenant"].as_manager()

    class Meta:
        managed = False
        db_table = "tenant"

    def __str__(self) -> str:
        return self.label or show(bytes(self.tenant_digest), prefix="tn")


class Membership(ReadOnlyModel):
    """A person's standing in one tenant, or in all of them where `tenant_digest` is null."""

    membership_id = models.BigIntegerField(primary_key=True)
    user_id = models.BigIntegerField()
    tenant_digest = models.BinaryField(null=True)
    role = models.TextField()

    objects = ReadOnlyQuerySet["Membership"].as_manager()

    class Meta:
        managed = False
        db_table = "membership"

    def __str__(self) -> str:
        return self.role


class JobType(ReadOnlyModel):
    """A job type as code registered it."""

    name = models.TextField(primary_key=True)
    target = models.TextField()
    side_effect = models.TextField()
    owner = models.TextField()
    producer_team = models.TextField()
    system_owner = models.TextField()
    lease_seconds = models.IntegerField()
    progress_seconds = models.IntegerField()
    max_attempts = models.IntegerField()
    attempts_ceiling = models.IntegerField()
    auto_redrives = models.IntegerField()
    backoff_seconds = models.IntegerField()
    answer_valid_seconds = models.IntegerField()
    settle_seconds = models.IntegerField()
    reconciles = models.BooleanField()
    no_reconciler_because = models.TextField()
    foreign_claims = models.BooleanField()
    held_until = models.DateTimeField(null=True)
    held_reason = models.TextField()
    key_window_seconds = models.BigIntegerField(null=True)
    key_scope = models.TextField()
    key_mismatch = models.TextField()
    key_source = models.TextField()
    key_verified_on = models.DateField(null=True)
    key_verified_by = models.TextField()
    key_expires_on = models.DateField(null=True)
    fingerprint = models.TextField()
    synced_at = models.DateTimeField()

    objects = ReadOnlyQuerySet["JobType"].as_manager()

    class Meta:
        managed = False
        db_table = "job_type"

    def __str__(self) -> str:
        return self.name


class WorkItem(ReadOnlyModel):
    """A work item, by its digest."""

    op_digest = models.BinaryField(primary_key=True)
    tenant_digest = models.BinaryField()
    digest_key_version = models.IntegerField()
    item_id = models.BigIntegerField()
    job_type = models.TextField()
    state = models.TextField(choices=[(state.value, state.value) for state in State])
    fence = models.BigIntegerField()
    lease_owner = models.TextField(null=True)
    lease_expires_at = models.DateTimeField(null=True)
    attempts = models.IntegerField()
    max_attempts = models.IntegerField()
    outcome_code = models.TextField(null=True)
    payload_hash = models.BinaryField()
    updated_at = models.DateTimeField()
    available_at = models.DateTimeField()
    enqueued_at = models.DateTimeField()
    enqueue_timeline = models.BigIntegerField()
    claimed_at = models.DateTimeField(null=True)
    stamping_fence = models.BigIntegerField(null=True)
    foreign_held = models.BooleanField()
    effect_fence = models.BigIntegerField(null=True)
    effect_at = models.DateTimeField(null=True)
    first_effect_at = models.DateTimeField(null=True)
    progress = models.BigIntegerField()
    progress_at = models.DateTimeField(null=True)
    waiting_in_worker = models.BooleanField()
    cleared_for_attempt = models.IntegerField(null=True)

    # A job type that nobody registered has no row: null=True makes this a left join, so its items stay in sight.
    registered = models.ForeignObject(
        JobType, on_delete=models.DO_NOTHING, from_fields=["job_type"], to_fields=["name"], null=True, related_name="+"
    )
    tenant = models.ForeignObject(
        Tenant,
        on_delete=models.DO_NOTHING,
        from_fields=["tenant_digest"],
        to_fields=["tenant_digest"],
        null=True,
        related_name="+",
    )

    objects = WorkItemQuerySet.as_manager()

    class Meta:
        managed = False
        db_table = "work_item"

    def __str__(self) -> str:
        return show(bytes(self.op_digest))

    @property
    def full_digest(self) -> str:
        """The digest for links."""
        return full(bytes(self.op_digest))


class WorkEvent(ReadOnlyModel):
    """One change of an item's state, fence or effect stamp."""

    event_id = models.BigIntegerField(primary_key=True)
    item_id = models.BigIntegerField()
    tenant_digest = models.BinaryField()
    at = models.DateTimeField()
    verb = models.TextField()
    state_before = models.TextField(null=True)
    state_after = models.TextField()
    fence = models.BigIntegerField()
    attempts = models.IntegerField()
    worker = models.TextField(null=True)
    outcome_code = models.TextField(null=True)
    detail = models.JSONField(null=True)

    objects = TenantQuerySet["WorkEvent"].as_manager()

    class Meta:
        managed = False
        db_table = "work_event"

    def __str__(self) -> str:
        return f"{self.verb} under fence {self.fence}"
