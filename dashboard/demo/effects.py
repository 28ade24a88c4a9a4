"""The counter: what really happened at the targets, by identity, read where the effects are and not from the work table."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import psycopg

from dashboard.demo.world.records import Records

type Identity = tuple[str, str]  # tenant, operation


@dataclass(frozen=True, kw_only=True, slots=True)
class Tally:
    """Effects and distinct identities at one target. More effects than identities are duplicates."""

    effects: int
    identities: int

    @property
    def duplicates(self) -> int:
        return self.effects - self.identities


@dataclass(frozen=True, kw_only=True, slots=True)
class Effects:
    """What happened at the four targets."""

    refunds: Tally  # A: rows of demo.refund
    postings: Tally  # B: writes that the ledger's store accepted
    payouts: Tally  # C: payments in the payment API's record
    texts: Tally  # D: texts in the gateway's record; not fenced

    @property
    def duplicates(self) -> int:
        """Duplicates at A, B and C, where they must not be."""
        return self.refunds.duplicates + self.postings.duplicates + self.payouts.duplicates


class Record:
    """An append-only file of JSON lines, read on from where the last look ended."""

    def __init__(self, *, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._counted: Counter[Identity] = Counter()

    def tally(self) -> Tally:
        if self._path.exists():
            with self._path.open("rb") as record:
                record.seek(self._offset)
                for line in record:
                    if not line.endswith(b"\n"):
                        break  # being written right now
                    self._offset += len(line)
                    entry = json.loads(line)
                    self._counted[entry["tenant"], entry["operation"]] += 1
        return Tally(effects=self._counted.total(), identities=len(self._counted))


class EffectCounter:
    """Counts effects at the targets."""

    def __init__(self, *, records: Records) -> None:
        self._postings = Record(path=records.postings)
        self._payouts = Record(path=records.payments)
        self._texts = Record(path=records.gateway)

    def count(self, connection: psycopg.Connection) -> Effects:
        """Look at every target. `connection` may read demo.refund."""
        row = connection.execute(
            "SELECT coalesce(sum(times), 0), count(*) FROM"
            " (SELECT count(*) AS times FROM demo.refund GROUP BY tenant_id, operation_id) AS identity"
        ).fetchone()
        assert row is not None  # an aggregate always answers
        return Effects(
            refunds=Tally(effects=int(row[0]), identities=int(row[1])),
            postings=self._postings.tally(),
            payouts=self._payouts.tally(),
            texts=self._texts.tally(),
        )
