"""Everything exla raises, with its message template.

Every message names what failed, the numbers, the user's source line where there is one, and the next step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike, fspath


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


class CheckpointError(ExlaError, ValueError):
    """A saved model or training run cannot be used; the message says what is wrong and what to do."""


class TrainingError(ExlaError, ArithmeticError):
    """A training run cannot go on; the message says at which step, and why."""


class MetricError(ExlaError, ValueError):
    """Scores and runtimes that no metric is defined for; the message says which and why."""


class MissingExtraError(ExlaError, ImportError):
    """A package that comes with one of exla's extras is not installed.

    Args:
      what: what needs it.
      package: its name.
      extra: the extra that brings it.
    """

    def __init__(self, what: str, package: str, extra: str) -> None:
        super().__init__(f'{what} needs {package}: pip install "exla[{extra}]"')


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is wrong with a file.

    Attributes:
      array: where in the file: an array, a line, or "file".
      expected: what should be there.
      found: what is.
      next_step: what to do about it.
    """

    array: str
    expected: str
    found: str
    next_step: str

    def __str__(self) -> str:
        return f"{self.array}: expected {self.expected}; found {self.found}. {self.next_step}"


class TpuGraphsError(ExlaError, ValueError):
    """A TpuGraphs file, folder or submission is not what it should be; the message lists all that was found.

    Args:
      path: the file or folder.
      problems: what is wrong with it, at least one.
    """

    def __init__(self, path: str | PathLike[str], problems: Sequence[Problem]) -> None:
        self.path = fspath(path)
        self.problems = tuple(problems)
        super().__init__("\n".join([f"{self.path} cannot be used as it is:", *(f"  {p}" for p in self.problems)]))

    def __reduce__(self) -> tuple:
        return (TpuGraphsError, (self.path, self.problems))


class HloError(ExlaError, ValueError):
    """Bytes are no HLO module, or not a whole one.

    Args:
      source: what they are called: a file.
      reason: what is wrong with them.
    """

    def __init__(self, source: str, reason: str) -> None:
        self.source, self.reason = source, reason
        super().__init__(
            f"{source} is no HLO module: {reason}. A module is written by "
            "jax.jit(f).lower(...).compiler_ir('hlo').as_serialized_hlo_module_proto(), or by --xla_dump_to"
        )

    def __reduce__(self) -> tuple:
        return (HloError, (self.source, self.reason))


class GraphError(ExlaError, ValueError):
    """A graph is not what is asked of one; the message says which array, node or edge is wrong."""


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


FAR = 4
"""Times its limit that a search finds, from which on other limits between the two may find less."""


class MemoryLimitError(ExlaError, MemoryError):
    """No candidate obeys the memory limit. Nothing has run.

    Args:
      limit_bytes: the limit.
      smallest_peak_bytes: the smallest peak that was found.
      holders: the values that hold it, largest first; those of one kind are told once.
      compared: the user's line of an equality that keeps some splits from being used; "" where there is none.
      fixed_bytes: arguments and results, where they alone are above the limit; else 0.
      hints: what else could help, a sentence each.
      is_kept: whether the records keep what has that peak, so that a limit of so many bytes is met.
    """

    def __init__(
        self,
        *,
        limit_bytes: int,
        smallest_peak_bytes: int,
        holders: Sequence[Holder],
        compared: str = "",
        fixed_bytes: int = 0,
        hints: Sequence[str] = (),
        is_kept: bool = False,
    ) -> None:
        self.limit_bytes = limit_bytes
        self.smallest_peak_bytes = smallest_peak_bytes
        self.holders = tuple(holders)
        self.compared = compared
        self.fixed_bytes = fixed_bytes
        self.hints = tuple(hints)
        self.is_kept = is_kept
        found = f"; the smallest peak found is {_size(smallest_peak_bytes)}. Nothing was run. What holds that peak:"
        if fixed_bytes:
            found = f". Arguments and results alone take {_size(fixed_bytes)}. Nothing was run. The largest of them:"
        lines = [f"the program does not fit its memory limit of {_size(limit_bytes)}{found}"]
        for holder, times in Counter(self.holders).items():
            each = f", {times} such" if times > 1 else ""
            where = f" at {holder.source}" if holder.source else ""
            lines.append(f"  {_size(holder.bytes)}{each}: {holder.name}{where}")
            lines.append(f"    not split further: {holder.blocked}")
        if compared:
            lines.append(
                f"What is compared for equality at {compared} must be computed in one place (a maximum's derivative "
                "finds the largest element so): splits that would compute its two sides in two are not used."
            )
        lines += self.hints
        enough = f"above {smallest_peak_bytes} bytes, and some room: what is found depends on it"
        if is_kept:
            enough = f"{smallest_peak_bytes} bytes are enough: the records keep what takes so many"
        lines.append(f"Raise memory_limit ({enough}) or make these values smaller.")
        if smallest_peak_bytes > FAR * limit_bytes and not fixed_bytes:
            lines.append("The limit is far below what was found, where a search ends early: half of that may do.")
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple:
        fields = {
            "limit_bytes": self.limit_bytes,
            "smallest_peak_bytes": self.smallest_peak_bytes,
            "holders": self.holders,
            "compared": self.compared,
            "fixed_bytes": self.fixed_bytes,
            "hints": self.hints,
            "is_kept": self.is_kept,
        }
        return (_remake, (fields,))


def _remake(fields: dict) -> MemoryLimitError:
    return MemoryLimitError(**fields)


def _size(count: int) -> str:
    if count < 1024:
        return f"{count} bytes"
    unit, scale = ("MiB", 1024**2) if count >= 1024**2 else ("KiB", 1024)
    return f"{count / scale:,.1f} {unit} ({count} bytes)"
