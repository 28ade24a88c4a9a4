"""Ties the children of a Celery worker to it: when it is killed hard, a stopped child would otherwise stay for ever."""

import ctypes
import os
import signal
import sys
from typing import Any

from celery.signals import worker_process_init

PR_SET_PDEATHSIG = 1


@worker_process_init.connect
def tie_to_parent(**_: Any) -> None:
    """Let the kernel kill this child when its parent ends, however that happens (Linux only)."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() == 1:  # the parent died before that took hold
        os._exit(1)
