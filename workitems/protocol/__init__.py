"""The lease-plus-fence protocol: what producers and workers do to the work table. Every write carries its condition."""

from workitems.protocol.enqueue import Answer, Enqueued, NewItem, enqueue, enqueue_many
from workitems.protocol.fence import (
    begin,
    complete,
    complete_many,
    fail,
    fail_many,
    hold,
    note_reconcile,
    note_rejected,
    park,
    park_many,
    quarantine,
    quarantine_many,
    release,
    release_many,
)
from workitems.protocol.lease import Claim, Swept, claim, extend_waiting, heartbeat, heartbeat_many, sweep

__all__ = [
    "Answer",
    "Claim",
    "Enqueued",
    "NewItem",
    "Swept",
    "begin",
    "claim",
    "complete",
    "complete_many",
    "enqueue",
    "enqueue_many",
    "extend_waiting",
    "fail",
    "fail_many",
    "heartbeat",
    "heartbeat_many",
    "hold",
    "note_reconcile",
    "note_rejected",
    "park",
    "park_many",
    "quarantine",
    "quarantine_many",
    "release",
    "release_many",
    "sweep",
]
