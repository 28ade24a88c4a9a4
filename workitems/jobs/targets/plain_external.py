"""Type D, plain external system: no fence, no key, no look-up. The intent is recorded, then there is one call."""

from collections.abc import Callable

from workitems.jobs.work import Work


def single_attempt[T](work: Work, call: Callable[[], T]) -> T:
    """Stamp `begin`, which is the recorded intent, then make the one call.

    Whatever the call raises, but for Terminal, leaves the outcome in doubt: the item is parked for a person. The client
    inside `call` must not retry by itself (`idempotent_api.http` gives one that does not).
    Raises: InDoubt; Terminal; OwnershipLost.
    Source: the article, type D.
    """
    with work.effect():
        return call()
