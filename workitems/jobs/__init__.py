"""Jobs: what a developer needs to define a job type. Running them is `workitems.jobs.worker`."""

from workitems.errors import OwnershipLost, Terminal
from workitems.jobs.definition import JobType, KeyRecord
from workitems.jobs.reconcile import Answer, cannot_tell, did_not_happen, happened
from workitems.jobs.registry import job_type
from workitems.jobs.work import InDoubt, Work
from workitems.states import SideEffect, Target

__all__ = [
    "Answer",
    "InDoubt",
    "JobType",
    "KeyRecord",
    "OwnershipLost",
    "SideEffect",
    "Target",
    "Terminal",
    "Work",
    "cannot_tell",
    "did_not_happen",
    "happened",
    "job_type",
]
