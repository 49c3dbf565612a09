"""Which records to remove: those of other releases, of some outcomes, all but the best.

    Cut(statuses=frozenset({"oom"}), program="3f").keep(lines)

A cut only says what goes; `exla.search.shards.keep_lines` takes it out of a file without losing what others add.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from exla.search.record import Record
from exla.search.shards import Line


@dataclass(frozen=True, kw_only=True)
class Cut:
    """What to remove: the lines that any of the fields names, of the programs that `program` names.

    Attributes:
      program: start of the hash of the programs whose records may go; "" = of all.
      all_of_program: whether every record of these programs goes.
      rules: hash of the code of this exla: records made with another go, nothing will replay them; "" = none do.
      statuses: records with one of these outcomes go.
      keep_best: of the records of one key that are "ok", all but so many go: the fastest, where no time is known the
        smallest, then the latest. The program as it is (`is_default`) stays. None = none do.
      bad: whether lines that are no records go; they have no program.
    """

    program: str = ""
    all_of_program: bool = False
    rules: str = ""
    statuses: frozenset[str] = frozenset()
    keep_best: int | None = None
    bad: bool = False

    def keep(self, lines: Sequence[Line]) -> list[Line]:
        """The lines of one file that stay, in their order."""
        rivals: dict[tuple[tuple[str, str], ...], list[Line]] = {}
        kept = []
        for line in lines:
            record = line.record
            if record is None:
                if not self.bad or line.torn:
                    kept.append(line)
            elif not record.key.get("program", "").startswith(self.program):
                kept.append(line)
            elif not self._names(record):
                kept.append(line)
                if record.status == "ok" and not record.is_default:
                    rivals.setdefault(tuple(sorted(record.key.items())), []).append(line)
        if self.keep_best is None:
            return kept
        worse = {x.number for all_of_key in rivals.values() for x in sorted(all_of_key, key=_rank)[self.keep_best :]}
        return [line for line in kept if line.number not in worse]

    def _names(self, record: Record) -> bool:
        of_another = bool(self.rules) and record.key.get("exla") != self.rules
        return self.all_of_program or of_another or record.status in self.statuses


def _rank(line: Line) -> tuple[float, float, int]:
    """Fast before slow, small before big, late before early."""
    record = line.record
    assert record is not None
    known = [n for n in (record.measured_bytes, record.compiled_bytes) if n is not None]
    return (math.inf if record.run_s is None else record.run_s, max(known, default=math.inf), -line.number)
