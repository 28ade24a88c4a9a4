"""Job types whose handlers say raw identifiers wherever a careless one would: in exceptions, and to the logger of a library."""

import logging

from tests.jobs.stage import arguments
from workitems.jobs import Target, Work, job_type


@job_type("canary.works", **arguments(Target.A, backoff=0))
def works(work: Work) -> str:
    return "done"


@job_type("canary.breaks", **arguments(Target.D, backoff=0))
def breaks(work: Work) -> str:
    try:
        raise KeyError(work.operation_id)
    except KeyError as error:
        raise RuntimeError(f"cannot do {work.operation_id} of {work.tenant_id}: {dict(work.payload)}") from error


@job_type("canary.warns", **arguments(Target.A, backoff=0))
def warns(work: Work) -> str:
    try:
        raise ValueError(work.payload_ref)
    except ValueError:
        logging.getLogger("library").exception("gave up")
    return "done"
