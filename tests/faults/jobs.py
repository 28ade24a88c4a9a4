"""Job types that real Celery workers run in the fault tests: payments at the provider whose address is in PROVIDER_URL."""

import os

from django.db import connections

from tests.jobs.stage import arguments
from workitems.jobs import Answer, Target, Work, did_not_happen, happened, job_type
from workitems.jobs.targets.idempotent_api import http, idempotent_call, look_up

_TIMEOUT = 60.0


def _ask(work: Work) -> Answer:
    with http(base_url=os.environ["PROVIDER_URL"], timeout=_TIMEOUT) as client:
        found = look_up(client=client, url=f"/payments/{work.identity_key}")
    return did_not_happen() if found is None else happened("paid_says_look_up")


@job_type("fault.pay", **arguments(Target.C, reconcile=_ask, backoff=0, max_attempts=5))
def pay(work: Work) -> str:
    with http(base_url=os.environ["PROVIDER_URL"], timeout=_TIMEOUT) as client:
        idempotent_call(work, client=client, url="/payments", json=dict(work.payload))
    return "paid_says_call"


@job_type("fault.refund", **arguments(Target.A, backoff=0, batch=3))
def refund(work: Work) -> str:
    with connections[work.using].cursor() as cursor:
        cursor.execute("INSERT INTO refund VALUES (%s, %s)", [work.tenant_id, work.operation_id])
    return "refunded"
