"""The audit log's seals: make them, check them from nothing but the rows, and hold them against what was published.

An entry's leaf and the root of a batch are those of RFC 6962 (Certificate Transparency); batches are chained. Whoever can
write as superuser can write all of it anew, consistently: only a checkpoint kept outside the database shows that.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any

from django.db import connections, transaction

LEAF_LABEL = b"fencewatch/entry/1"
CHECKPOINT = "fencewatch-checkpoint 1"
FAULTS_TOLD = 20
_FIRST = bytes(32)  # what stands for the seal before the first
_CHUNK = 2_000  # rows fetched at a time: memory stays bounded

# Every column of an entry as text, in the order of its leaf (guards/audit.sql, fencewatch.entry_leaf).
_FIELDS = (
    "e.entry_id::text, ((extract(epoch FROM e.at) * 1000000)::bigint)::text, e.xid::text, e.actor::text,"
    " array_to_string(e.actor_rights, ','), e.said_by, e.db_role, e.verb, e.outcome, e.outcome_reason,"
    " encode(e.tenant_digest, 'hex'), encode(e.op_digest, 'hex'), e.state_before, e.state_after, e.fence_before::text,"
    " e.fence_after::text, e.subject::text, e.second_person::text, e.batch::text, e.request_id, e.software_version,"
    " encode(e.text_hash, 'hex')"
)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A seal as it is published outside the database: its number, how many entries lie up to its end, and its chained hash."""

    seal_id: int
    entries_total: int
    chained: bytes

    @property
    def line(self) -> str:
        """One line of text: `fencewatch-checkpoint 1 <seal> <entries> <hash>`."""
        return f"{CHECKPOINT} {self.seal_id} {self.entries_total} {self.chained.hex()}"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Something that is not as it was sealed: a sentence, and which entry and seal it is about."""

    sentence: str
    entry_id: int | None = None
    seal_id: int | None = None


@dataclass(frozen=True, kw_only=True)
class Verified:
    """What a check found. `unsealed` entries wait for their seal, the oldest for `lag_seconds` by the database's clock."""

    entries: int
    seals: int
    unsealed: int
    lag_seconds: float
    checkpoints: int
    faults: tuple[Fault, ...]

    @property
    def is_whole(self) -> bool:
        """Whether everything is as it was sealed and published."""
        return not self.faults


@dataclass
class _Faults:
    """The first faults, in the order of the log."""

    found: list[Fault] = field(default_factory=list)

    def add(self, sentence: str, *, entry_id: int | None = None, seal_id: int | None = None) -> None:
        if len(self.found) < FAULTS_TOLD:
            self.found.append(Fault(sentence=sentence, entry_id=entry_id, seal_id=seal_id))


class Tree:
    """The RFC 6962 root of leaves that come one by one: of each size one finished subtree at most is kept."""

    def __init__(self) -> None:
        self.size = 0
        self._subtrees: list[tuple[int, bytes]] = []

    def add(self, leaf: bytes) -> None:
        """Append a leaf's hash."""
        self.size += 1
        height, node = 0, leaf
        while self._subtrees and self._subtrees[-1][0] == height:
            node = _node(self._subtrees.pop()[1], node)
            height += 1
        self._subtrees.append((height, node))

    @property
    def root(self) -> bytes:
        """The root over the leaves so far; of none, the hash of nothing."""
        if not self._subtrees:
            return hashlib.sha256(b"").digest()
        nodes = [node for _, node in reversed(self._subtrees)]
        root = nodes[0]
        for node in nodes[1:]:
            root = _node(node, root)
        return root


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


def leaf_of(fields: Sequence[str | None]) -> bytes:
    """The leaf of an entry, format 1, from its columns as text: length-prefixed, nulls apart."""
    parts = [LEAF_LABEL]
    for value in fields:
        if value is None:
            parts.append(b"\x00")
        else:
            octets = value.encode()
            parts.append(b"\x01" + len(octets).to_bytes(4, "big") + octets)
    return hashlib.sha256(b"\x00" + b"".join(parts)).digest()


def chained_of(*, previous: bytes, seal_id: int, entries: int, entries_total: int, root: bytes) -> bytes:
    """The hash that carries a seal and, through `previous`, every seal before it."""
    numbers = b"".join(number.to_bytes(8, "big") for number in (seal_id, entries, entries_total))
    return hashlib.sha256(previous + numbers + root).digest()


def seal(*, limit: int = 5_000, using: str = "keeper") -> int:
    """Seal at most `limit` entries that wait; returns how many. Entries of transactions still open are left for later."""
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT fencewatch.seal(%s)", [limit])
        return int(cursor.fetchone()[0])


def checkpoint(*, using: str = "owner") -> Checkpoint | None:
    """The newest seal, for publishing outside the database; None when nothing is sealed."""
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT seal_id, entries_total, chained FROM audit_seal ORDER BY seal_id DESC LIMIT 1")
        row = cursor.fetchone()
    return None if row is None else Checkpoint(seal_id=row[0], entries_total=row[1], chained=bytes(row[2]))


def read_checkpoints(lines: Iterable[str]) -> tuple[Checkpoint, ...]:
    """Read published lines; empty ones do not count.

    Raises: ValueError naming the line that is no checkpoint.
    """
    found = []
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text:
            continue
        parts = text.removeprefix(CHECKPOINT).split()
        try:
            if not text.startswith(CHECKPOINT + " ") or len(parts) != 3 or len(parts[2]) != 64:
                raise ValueError
            found.append(
                Checkpoint(seal_id=int(parts[0]), entries_total=int(parts[1]), chained=bytes.fromhex(parts[2]))
            )
        except ValueError:
            raise ValueError(
                f"line {number} is no checkpoint: `manage.py audit checkpoint` prints what belongs there."
            ) from None
    return tuple(found)


def verify(*, checkpoints: Sequence[Checkpoint] = (), using: str = "owner") -> Verified:
    """Compute every leaf, root and chain anew, in one snapshot, and hold them against the seals and `checkpoints`.

    Reads the whole log in pieces. Raises nothing for a broken log: its faults are the answer.
    """
    faults = _Faults()
    with transaction.atomic(using=using, durable=True):
        with connections[using].cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        seals = _chain(using, checkpoints, faults)
        entries = _batches(using, faults)
        unsealed, lag = _waiting(using, faults)
    return Verified(
        entries=entries,
        seals=seals,
        unsealed=unsealed,
        lag_seconds=lag,
        checkpoints=len(checkpoints),
        faults=tuple(faults.found),
    )


def _chain(using: str, checkpoints: Sequence[Checkpoint], faults: _Faults) -> int:
    """Each seal against the one before it and against what was published of it; how many there are."""
    published: dict[int, list[Checkpoint]] = {}
    for one in checkpoints:
        published.setdefault(one.seal_id, []).append(one)
    previous, number, total, seals = _FIRST, 0, 0, 0
    for seal_id, entries, entries_total, root, before, chained in _stream(
        using, "SELECT seal_id, entries, entries_total, root, previous, chained FROM audit_seal ORDER BY seal_id"
    ):
        seals += 1
        if seal_id != number + 1:
            faults.add(f"seal {number + 1} is missing", seal_id=number + 1)
        expected = chained_of(
            previous=previous, seal_id=seal_id, entries=entries, entries_total=total + entries, root=bytes(root)
        )
        if (bytes(before), entries_total, bytes(chained)) != (previous, total + entries, expected):
            faults.add(f"seal {seal_id} does not follow from the seal before it", seal_id=seal_id)
        for one in published.pop(seal_id, ()):
            if (one.entries_total, one.chained) != (entries_total, bytes(chained)):
                faults.add(f"seal {seal_id} is another than was published: history was rewritten", seal_id=seal_id)
        previous, number, total = bytes(chained), seal_id, entries_total
    for seal_id in sorted(published):
        faults.add(f"seal {seal_id} was published and is gone: the end of the log was cut", seal_id=seal_id)
    return seals


def _batches(using: str, faults: _Faults) -> int:
    """Each leaf against its entry, each batch against its root; how many leaves there are."""
    rows = _stream(
        using,
        "SELECT coalesce(l.seal_id, s.seal_id), s.entries, s.root, l.place, l.entry_id, l.leaf, t.salt, t.reason, t.evidence,"  # noqa: S608
        f" {_FIELDS} FROM audit_seal s FULL JOIN audit_leaf l ON l.seal_id = s.seal_id"
        " LEFT JOIN audit_entry e ON e.entry_id = l.entry_id LEFT JOIN audit_text t ON t.entry_id = l.entry_id"
        " ORDER BY 1, l.place",
    )
    total = 0
    for seal_id, batch in groupby(rows, key=itemgetter(0)):
        tree = Tree()
        sealed: tuple[int, bytes] | None = None
        for _, entries, root, place, entry_id, leaf, *rest in batch:
            sealed = None if root is None else (entries, bytes(root))
            if entry_id is not None:
                _check_leaf(tree, (seal_id, place, entry_id), bytes(leaf), rest, faults)
        total += tree.size
        if sealed is None:
            faults.add(f"seal {seal_id} is missing, and its entries are there", seal_id=seal_id)
        elif sealed != (tree.size, tree.root):
            faults.add(
                f"the leaves of seal {seal_id} are not those that it was made over: {tree.size:,} of {sealed[0]:,}",
                seal_id=seal_id,
            )
    return total


def _check_leaf(tree: Tree, where: tuple[int, int, int], leaf: bytes, rest: Sequence[Any], faults: _Faults) -> None:
    seal_id, place, entry_id = where
    (salt, reason, evidence), fields = rest[:3], rest[3:]
    if place != tree.size + 1:
        faults.add(f"a leaf of seal {seal_id} is missing, before entry {entry_id}", entry_id=entry_id, seal_id=seal_id)
    tree.add(leaf)
    if fields[0] is None:
        told = f"entry {entry_id} was removed after it was sealed by seal {seal_id}"
    elif leaf_of(fields) != leaf:
        told = f"entry {entry_id} was altered after it was sealed by seal {seal_id}"
    elif salt is not None and not _text_fits(fields[-1], bytes(salt), reason, evidence):
        told = f"the reason or the evidence of entry {entry_id} was altered after it was written"
    else:
        return
    faults.add(told, entry_id=entry_id, seal_id=seal_id)


def _text_fits(text_hash: str | None, salt: bytes, reason: str, evidence: str) -> bool:
    """Whether a text is the one whose salted hash the entry carries. Text that was erased is no fault."""
    return hashlib.sha256(salt + f"{reason}\x01{evidence}".encode()).hexdigest() == text_hash


def _waiting(using: str, faults: _Faults) -> tuple[int, float]:
    """How many entries wait for their seal, and for how long the oldest does. Neither waiting nor sealed is a fault."""
    with connections[using].cursor() as cursor:
        cursor.execute(
            "SELECT e.entry_id FROM audit_entry e LEFT JOIN audit_leaf l USING (entry_id)"
            " LEFT JOIN audit_unsealed u USING (entry_id) WHERE l.entry_id IS NULL AND u.entry_id IS NULL"
            " ORDER BY e.entry_id LIMIT %s",
            [FAULTS_TOLD],
        )
        for (entry_id,) in cursor.fetchall():
            faults.add(
                f"entry {entry_id} is neither sealed nor waits for it: it was put in from outside", entry_id=entry_id
            )
        cursor.execute(
            "SELECT count(*), coalesce(extract(epoch FROM (SELECT clock_timestamp()) - min(e.at)), 0)::float8"
            " FROM audit_unsealed u LEFT JOIN audit_entry e USING (entry_id)"
        )
        count, lag = cursor.fetchone()
    return int(count), float(lag)


def _stream(using: str, statement: str) -> Iterator[tuple[Any, ...]]:
    """Rows in pieces, through a cursor of the server within the open transaction."""
    connections[using].ensure_connection()
    with connections[using].connection.cursor(name="audit") as cursor:
        cursor.itersize = _CHUNK
        cursor.execute(statement)
        yield from cursor
