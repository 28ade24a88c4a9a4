"""Type A, same database: the row lock, the business write and the completion are one transaction under one fence."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import transaction

from workitems import protocol
from workitems.protocol import Claim


@contextmanager
def fenced_transaction(claim: Claim, *, using: str = "worker") -> Iterator[None]:
    """Open a transaction that first locks the item under its fence, so that nobody can take it over before the commit.

    The business write in it wants a status guard of its own: the fence says who may write, not whether it makes sense.
    Raises: OwnershipLost, with the transaction rolled back.
    Source: the article, type A.
    """
    with transaction.atomic(using=using):
        protocol.hold(claim, using=using)
        yield
