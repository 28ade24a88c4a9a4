"""What the pages may read, as the ORM sees it. Nothing here writes: the database grants the web role no write at all, and
these models say so earlier and in plain words. Raw tenant ids, operation ids and payload references have no field.
"""

from django.db import models

from workitems.identifiers import full, show
from workitems.querysets import ReadOnlyQuerySet, TenantQuerySet, WorkItemQuerySet, refuse
from workitems.states import State


class ReadOnlyModel(models.Model):
    """A row that pages read."""

    class Meta:
        abstract = True

    save = save_base = delete = asave = adelete = refuse


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

    objects = WorkItemQuerySet["WorkItem"].as_manager()

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


class FormerDigest(ReadOnlyModel):
    """A digest that an item had under an earlier key: visible until its links cease to resolve."""

    former = models.BinaryField(primary_key=True)
    op_digest = models.BinaryField()

    objects = ReadOnlyQuerySet["FormerDigest"].as_manager()

    class Meta:
        managed = False
        db_table = "former_digest"

    def __str__(self) -> str:
        return show(bytes(self.former))
