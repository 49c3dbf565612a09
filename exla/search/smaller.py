"""Smaller instances: the same program at sizes at which the plain one can run, so that values can be compared.

Where the plain program does not fit the machine, nothing says what a candidate should give. But the decisions of the
candidate also apply to the same function at other sizes: every size is divided by the same number, equal sizes by equal
results, and each split is replayed there with its chunk divided too. It stands for the candidate if it cuts the same
equations; where it does not, or the function cannot be traced at other sizes, there is no smaller instance.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from exla.errors import ReplayMiss
from exla.ir.program import Program
from exla.passes.decisions import Change, Split
from exla.search.space import Candidate, Space

LEAST = 16
"""Sizes up to this stay as they are: numbers of features, of neighbours, of coordinates."""
MOST_HALVINGS = 12

Shrink = Callable[[Callable[[Sequence[int]], tuple[int, ...]]], Program]
"""Traces the user's function with every argument's shape changed by a function."""


@dataclass(frozen=True, kw_only=True)
class Smaller:
    """A program at smaller sizes.

    Attributes:
      space: of the smaller program.
      divisor: what the sizes were divided by.
    """

    space: Space
    divisor: int

    @property
    def program(self) -> Program:
        return self.space.program

    def of(self, candidate: Candidate) -> Candidate | None:
        """The candidate that stands for one of the whole program; None where there is none."""
        decisions: list[Change] = []
        regions = iter(candidate.seeds)
        for decision in candidate.decisions:
            if not isinstance(decision, Split):
                decisions.append(decision)
                continue
            positions = {i for i, _, _ in next(regions).region.instances}
            found = next(self._like(decisions, decision, positions), None)
            if found is None:
                return None
            decisions.append(found)
        try:
            return replace(self.space.build(decisions, anew=True), options=candidate.options)
        except ReplayMiss:
            return None

    def _like(self, before: Sequence[Change], split: Split, positions: set[int]) -> Iterator[Split]:
        """The splits that cut the same equations here."""
        small = split.growth.small_bytes
        for count in dict.fromkeys((small // self.divisor, small // self.divisor**2, small)):
            chunk = max(split.chunk // self.divisor, 1)
            made = replace(split, chunk=chunk, growth=replace(split.growth, small_bytes=max(count, 1)))
            try:
                built = self.space.build([*before, made], anew=True)
            except ReplayMiss:
                continue
            if {i for i, _, _ in built.seeds[-1].region.instances} == positions:
                yield made


def smaller(space: Space, shrink: Shrink, most_bytes: int) -> Smaller | None:
    """The largest smaller instance whose plain program takes no more than some bytes by projection.

    Args:
      space: of the whole program.
      shrink: traces the function at other sizes.
      most_bytes: what the plain program may take.

    Returns:
      The instance; None where the function cannot be traced at other sizes, or is another program there.
    """
    names = [e.primitive.name for e in space.program.eqns]
    for halvings in range(1, MOST_HALVINGS):
        divisor = 2**halvings
        try:
            program = shrink(functools.partial(_shape, divisor=divisor))
        except Exception:  # the user's function need not take other sizes
            return None
        if [e.primitive.name for e in program.eqns] != names:
            return None
        if space.peak(program, fused=False).bytes <= most_bytes:
            goal = replace(space.goal, bytes=1 << 62, most_chunk_bytes=None, most_value_bytes=None)
            return Smaller(space=replace(space, program=program, goal=goal), divisor=divisor)
    return None


def _shape(shape: Sequence[int], divisor: int) -> tuple[int, ...]:
    return tuple(_shrunk(d, divisor) for d in shape)


def _shrunk(size: int, divisor: int) -> int:
    return size if size <= LEAST else max(size // divisor, LEAST)
