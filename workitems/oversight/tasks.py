"""The keeper's tasks over the records: seal what waits. Carry nothing; a lost one costs a beat, two at once do no harm."""

import logging

from celery import shared_task
from django.conf import settings
from django.db import connections

from workitems.oversight import audit

log = logging.getLogger(__name__)

SEAL_ENTRIES = 5_000
SEAL_ROUNDS = 20


@shared_task(
    name="fencewatch.seal", acks_late=False, ignore_result=True, max_retries=0, expires=settings.WAKE_EXPIRES_SECONDS
)
def seal() -> None:
    """Seal the entries of the audit log that wait. What is left after some rounds is for the next beat."""
    connections["keeper"].close_if_unusable_or_obsolete()
    try:
        for _ in range(SEAL_ROUNDS):
            if audit.seal(limit=SEAL_ENTRIES) < SEAL_ENTRIES:
                return
    except Exception as error:
        log.error("sealing ended early", exc_info=error)
