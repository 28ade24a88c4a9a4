"""Every error that this package raises. A class's docstring is its default message and says what to do next."""


class FencewatchError(Exception):
    """Fencewatch refused to go on."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())


class BadIdentifier(FencewatchError):
    """This identifier cannot be stored; give one of 1 to 1,000 characters without NUL."""


class UnknownTenant(FencewatchError):
    """No such tenant; add it with `manage.py tenant add` before work is enqueued for it."""


class BadItem(FencewatchError):
    """This item cannot be enqueued; the message names the field."""


class OwnershipLost(FencewatchError):
    """A newer claim exists or the item moved on: stop work at once and do not retry the write."""


class Terminal(FencewatchError):
    """A confirmed failure that no retry can fix. Raised by handlers; the outcome code goes on record."""

    def __init__(self, outcome_code: str) -> None:
        super().__init__(f"terminal failure: {outcome_code}")
        self.outcome_code = outcome_code


class BadJobType(FencewatchError):
    """A job type's definition contradicts itself; the message names the job type and the field."""


class JobTypesDiffer(FencewatchError):
    """Code and the job_type table disagree; run `manage.py sync_job_types` before workers may claim."""


class ReadOnly(FencewatchError):
    """Pages read. A change goes through the protocol or an audited action, never through a model."""
