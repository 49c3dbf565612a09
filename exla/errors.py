"""Everything exla raises, with its message template.

Every message names what failed, the numbers, the user's source line where there is one, and the next step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class ExlaError(Exception):
    """Base of all errors that exla raises."""


class ExlaWarning(UserWarning):
    """Something that changes no value but that the user should know."""


class OptionError(ExlaError, ValueError):
    """An option has an unknown name, unit or value; the message lists the valid ones."""


class RuleError(ExlaError):
    """A factor rule does not fit its equation: a bug in the rule, which the message names."""


class ProgramError(ExlaError):
    """A program breaks a rule of `exla.ir.check`: a bug in a pass."""


class ReplayMiss(ExlaError):
    """A decision does not apply to this program; the message is the reason."""


class MeasureError(ExlaError):
    """A program could not be run in a process of its own; the message says why."""


class PlanError(ExlaError, ValueError):
    """A saved plan cannot be read, or is of another program; the message says what is wrong or differs."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """One value that holds the peak.

    Attributes:
      name: its type and what made it, e.g. "f32[20000,20000] from `exp`".
      bytes: its size.
      source: the user's line, "file.py:12 (function)", or "".
      blocked: what keeps it from being split further.
    """

    name: str
    bytes: int
    source: str
    blocked: str


class MemoryLimitError(ExlaError, MemoryError):
    """No candidate obeys the memory limit. Nothing has run.

    Args:
      limit_bytes: the limit.
      smallest_peak_bytes: the smallest peak that was found.
      holders: the values that hold it, largest first.
    """

    def __init__(self, *, limit_bytes: int, smallest_peak_bytes: int, holders: Sequence[Holder]) -> None:
        self.limit_bytes = limit_bytes
        self.smallest_peak_bytes = smallest_peak_bytes
        self.holders = tuple(holders)
        lines = [
            f"the program does not fit its memory limit of {_size(limit_bytes)}; the smallest peak found is "
            f"{_size(smallest_peak_bytes)}. Nothing was run. What holds that peak:"
        ]
        for holder in self.holders:
            where = f" at {holder.source}" if holder.source else ""
            lines.append(f"  {_size(holder.bytes)}: {holder.name}{where}")
            lines.append(f"    not split further: {holder.blocked}")
        lines.append(
            f"Raise memory_limit (above {smallest_peak_bytes} bytes, and some room: what is found depends on it) "
            "or make these values smaller."
        )
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple:
        fields = {
            "limit_bytes": self.limit_bytes,
            "smallest_peak_bytes": self.smallest_peak_bytes,
            "holders": self.holders,
        }
        return (_remake, (fields,))


def _remake(fields: dict) -> MemoryLimitError:
    return MemoryLimitError(**fields)


def _size(count: int) -> str:
    unit, scale = ("MiB", 1024**2) if count >= 1024**2 else ("KiB", 1024)
    return f"{count / scale:,.1f} {unit} ({count} bytes)"
