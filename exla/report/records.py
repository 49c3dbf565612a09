"""Tuning records for people: one row for each key, decisions in words, nothing that a terminal would obey.

    for row in rows(store.lines()):
        row.name, row.statuses, row.best_run_s

A key is a set of hashes. It is known by its name, a hash of them all, of which the start can be typed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from exla.report.words import told_apart
from exla.search.choice import PLAIN
from exla.search.record import Record
from exla.search.shards import key_name

MOST_CHARACTERS = 400
"""Of a decision of a record with what tells it from others: a record may hold anything."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """The records of one key.

    Attributes:
      name: of the key, 16 hex digits.
      key: the named hashes.
      about: what they stand for, as the latest record says.
      records: all of them, oldest first.
    """

    name: str
    key: Mapping[str, str]
    about: Mapping[str, str]
    records: tuple[Record, ...]

    @property
    def statuses(self) -> Counter[str]:
        """Outcome -> how many."""
        return Counter(r.status for r in self.records)

    @property
    def searches(self) -> Counter[str]:
        """Search -> how many records it made; "jax.jit" where the program is as that compiles it."""
        return Counter("jax.jit" if r.is_default else r.strategy for r in self.records)

    @property
    def compile_options(self) -> Counter[str]:
        """Compile option with its value -> how many records have it."""
        decisions = (d for r in self.records for d in r.decisions if d.get("kind") == "CompileOption")
        return Counter(f"{d.get('name')}={d.get('value')!r}" for d in decisions)

    @property
    def best_run_s(self) -> float | None:
        """The shortest run."""
        return min((r.run_s for r in self.records if r.run_s is not None), default=None)

    @property
    def compiled_bytes(self) -> int | None:
        """What the shortest run takes; where none was timed, the least of those that are "ok", or of all."""
        good = [r for r in self.records if r.run_s is not None and r.run_s == self.best_run_s]
        good = good or [r for r in self.records if r.status == "ok"] or list(self.records)
        return min((r.compiled_bytes for r in good if r.compiled_bytes is not None), default=None)

    @property
    def limit_bytes(self) -> int | None:
        """The limit of the latest record."""
        return self.records[-1].limit_bytes

    def to_json(self) -> dict[str, Any]:
        """The row as plain data."""
        return {
            "name": self.name,
            "key": dict(self.key),
            "about": dict(self.about),
            "records": len(self.records),
            "statuses": dict(self.statuses),
            "searches": dict(self.searches),
            "compile_options": dict(self.compile_options),
            "best_run_s": self.best_run_s,
            "compiled_bytes": self.compiled_bytes,
            "limit_bytes": self.limit_bytes,
        }


def rows(records: Iterable[Record]) -> list[Row]:
    """Records by key, in the order in which the keys come."""
    by_name: dict[str, list[Record]] = {}
    for record in records:
        by_name.setdefault(key_name(record.key), []).append(record)
    return [
        Row(
            name=name,
            key=found[0].key,
            about=next((r.about for r in reversed(found) if r.about), {}),
            records=tuple(found),
        )
        for name, found in by_name.items()
    ]


def all_in_words(records: Sequence[Record]) -> list[list[str]]:
    """The decisions of records that are listed together, so that different ones read differently."""
    told = told_apart([in_words(r) for r in records], [r.decisions for r in records])
    return [[printable(text, MOST_CHARACTERS) for text in words] for words in told]


def in_words(record: Record) -> list[str]:
    """The decisions of a record, one text for each; one that this version does not understand says so."""
    from exla.passes.decisions import from_json

    words = []
    for data in record.decisions:
        try:
            words.append(printable(str(from_json(data))))
        except (ValueError, TypeError) as error:
            words.append(f"not understood: {printable(str(error), 120)}")
    return words or [PLAIN]


def printable(text: str, most: int = 200) -> str:
    """A text for a terminal: no control characters, no half characters, not long."""
    short = text if len(text) <= most else f"{text[:most]}…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in short)
