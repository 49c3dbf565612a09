"""The TPU compiler's own estimate of how long a program runs: cycles of its instructions, times the trips of loops.

    estimated_cycles(compiled.as_text())        Cycles(total=54321.0, unknown_trips=0, unestimated=0)

libtpu writes `estimated_cycles` into the `backend_config` of what it schedules. A while loop's are those of one trip of
its body; how many there are is what its condition compares the counter with, as JAX writes `fori_loop` and `scan` of a
known length. It estimates neither what its kernels for gathers and scatters take, nor sorts, top-k, running sums and
factorisations: a sum in which these are missing says so. What exla falls back on where a rewrite is not safe for the
values at hand does not count: it is run for few. This is an estimate by a compiler, of a device that need not be there,
and never to be mixed with measured times.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
_CYCLES = re.compile(r'"estimated_cycles":"(-?\d+)"')
_CONSTANT = re.compile(r"= s32\[\]\S* constant\((\d+)\)")
_BELOW = re.compile(r" compare\(.*direction=LT")
_WHILE = re.compile(r" while\(")
_CONDITION, _BODY = re.compile(r"condition=%?([\w.\-]+)"), re.compile(r"body=%?([\w.\-]+)")
_RUNS = re.compile(r" (?:call|conditional|async-start)\(")
_WORKS = re.compile(
    r" (?:fusion|custom-call|sort|gather|scatter|reduce-window|select-and-scatter|convolution|dot|cholesky|"
    r"triangular-solve|fft)\("
)
_FREE = re.compile(r'custom_call_target="(?:AllocateBuffer|ConcatBitcast|Sharding|X64\w+)"')
_FALLS_BACK = re.compile(r'op_name="[^"]*\bexla_falls_back\b')
"""In the scope `exla.ir.scopes.FALLS_BACK`."""
_CALLED = re.compile(r"(?:calls|to_apply|branch_computations|called_computations)=\{?((?:%?[\w.\-]+(?:, )?)+)\}?")


@dataclass(frozen=True, kw_only=True)
class Cycles:
    """What a schedule takes.

    Attributes:
      total: cycles of the whole program; of a conditional's branches, the longest that is not a fallback of exla's.
      unknown_trips: loops whose trips the compiler does not know, counted as one.
      unestimated: instructions that work and of which it says nothing, counted as none.
    """

    total: float
    unknown_trips: int
    unestimated: int

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing, so that two sums can be compared."""
        return not self.unknown_trips and not self.unestimated


def estimated_cycles(text: str) -> Cycles | None:
    """Sum the estimates over a schedule.

    Args:
      text: optimised HLO for a TPU.

    Returns:
      The sum; None where the text has no estimates.
    """
    computations: dict[str, list[str]] = {}
    name, entry = "", ""
    for line in text.splitlines():
        opened = _COMPUTATION.match(line)
        if opened is not None:
            name = opened[2]
            entry = name if opened[1] else entry
        computations.setdefault(name, []).append(line)
    if not entry or not _CYCLES.search(text):
        return None
    known: dict[str, float] = {}
    unknown, unestimated = set[str](), set[str]()

    def cycles(computation: str) -> float:
        if computation not in known:
            known[computation] = 0.0  # HLO has no recursion
            known[computation] = sum(_line(line) for line in computations.get(computation, ()))
        return known[computation]

    def trips(condition: str) -> int | None:
        lines = list(computations.get(condition, ()))
        for line in tuple(lines):
            lines += [x for called in _called(line) for x in computations.get(called, ())]
        found = {int(n) for line in lines for n in _CONSTANT.findall(line)}
        return found.pop() if len(found) == 1 and any(map(_BELOW.search, lines)) else None

    def _usual(branches: list[str]) -> list[str]:
        usual = [n for n in branches if not any(map(_FALLS_BACK.search, computations.get(n, ())))]
        return usual or branches

    def _line(line: str) -> float:
        stated = _CYCLES.search(line)
        condition, body = _CONDITION.search(line), _BODY.search(line)
        if _WHILE.search(line) and condition is not None and body is not None:
            times = trips(condition[1])
            if times is None:
                unknown.add(body[1])
            return (1 if times is None else times) * cycles(body[1])
        if stated is None and _RUNS.search(line):
            return max(map(cycles, _usual(_called(line))), default=0.0)
        if stated is None and _WORKS.search(line) and not _FREE.search(line):
            unestimated.add(line)
        return max(float(stated[1]), 0.0) if stated else 0.0

    return Cycles(total=cycles(entry), unknown_trips=len(unknown), unestimated=len(unestimated))


def _called(line: str) -> list[str]:
    return [n.strip("% ") for group in _CALLED.findall(line) for n in group.split(",")]
