"""Where the outside world keeps its books, below the demo's folder."""

from dataclasses import dataclass
from pathlib import Path


def postings_of(journal: Path) -> Path:
    """The file in which each posting that the ledger's store accepted is a line."""
    return journal.with_name(journal.name + ".postings")


def whole_lines(path: Path) -> list[str]:
    """The lines of an append-only file; a last one that a power cut left half written is taken away."""
    if not path.exists():
        return []
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        path.write_bytes(whole)
    return whole.decode().splitlines()


@dataclass(frozen=True, kw_only=True, slots=True)
class Records:
    """The append-only files of the three servers."""

    folder: Path

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger.jsonl"

    @property
    def postings(self) -> Path:
        return postings_of(self.ledger)

    @property
    def payments(self) -> Path:
        return self.folder / "payments.jsonl"

    @property
    def gateway(self) -> Path:
        return self.folder / "texts.jsonl"
