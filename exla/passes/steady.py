"""Values that are compared for equality must be computed in one place.

The derivative of a maximum finds the largest element by `x == max(x)`. A split may compute `x` in several loops, once
for the maximum and once to be compared with it. A sum or a product of matrices has other bits in each of them, even
over the same chunks: XLA adds in another order where it fuses the sum with what follows than where it does not. So a
split after which the two sides of such a comparison are made of one of these from two places is not offered.

    steady = Steady(start)          # of a program whose equations are numbered
    steady.holds(candidate)         # whether the sides of every comparison share each such sum's place

Two comparisons may have a place each: the nearest neighbours of rows and those of columns are found in two loops, each
with distances of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from exla import _compat
from exla._compat import Literal
from exla.ir.program import Program
from exla.ir.scopes import equation_number
from exla.passes.split.loop import Carry, Loop

COMPARISONS = frozenset({"eq", "ne"})
SHAPE_DEPENDENT = frozenset(
    {
        *("reduce_sum", "reduce_prod", "dot_general", "conv_general_dilated", "cumsum", "cumprod", "cumlogsumexp"),
        *("reduce_window_sum", "scatter-add", "fft", "scan", "while"),
    }
)
"""Primitives whose results may have other bits where they are computed in other pieces."""


@dataclass(frozen=True, kw_only=True)
class Steady:
    """What must be computed in one place.

    Attributes:
      program: whose equations are numbered.
    """

    program: Program

    @cached_property
    def numbers(self) -> frozenset[int]:
        """The equations that both sides of some comparison of floating point numbers are made of."""
        shared = frozenset().union(*self._compared.values())
        return frozenset(n for position in shared for n in _numbers(self.program.eqns[position]))

    @cached_property
    def source(self) -> str:
        """The user's line of the first such comparison; "" where there is none."""
        return next((self.program.source(position) for position in self._compared), "")

    @cached_property
    def _compared(self) -> dict[int, frozenset[int]]:
        """Position of a comparison -> positions of what both its sides are made of, where there is such."""
        program, found = self.program, dict[int, frozenset[int]]()
        above: dict[Any, frozenset[int]] = {}

        def of(v: Any) -> frozenset[int]:
            return frozenset() if isinstance(v, Literal) else above.get(v, frozenset())

        for position, eqn in enumerate(program.eqns):
            if eqn.primitive.name in COMPARISONS and len(eqn.invars) == 2:
                left, right = eqn.invars
                both = of(left) & of(right)
                if both and np.issubdtype(getattr(left.aval, "dtype", np.int32), np.inexact):
                    found[position] = both
            made = frozenset().union(*(of(v) for v in eqn.invars))
            if eqn.primitive.name in SHAPE_DEPENDENT:
                made |= {position}
            for v in eqn.outvars:
                above[v] = made
        return found

    def holds(self, candidate: Program) -> bool:
        """Whether the sides of each comparison in a program that splits made of this one share their places."""
        if not self.numbers:
            return True
        if "steady" not in candidate.known:
            walk = _Walk(self.numbers)
            walk.run(candidate, [NOWHERE] * len(candidate.invars), ())
            candidate.known["steady"] = walk.holds
        return candidate.known["steady"]


Reach = frozenset[tuple[int, tuple[int, ...]]]
"""What a value is made of: (number of an equation, the place that computes it), for those that must be steady."""
NOWHERE: Reach = frozenset()


class _Walk:
    """Follows which places reach the two sides of each comparison."""

    def __init__(self, numbers: frozenset[int]) -> None:
        self.numbers = numbers
        self.holds = True

    def run(self, program: Program, given: Sequence[Reach], here: tuple[int, ...]) -> list[Reach]:
        """What the results of a program are made of, from what its inputs are."""
        known: dict[Any, Reach] = dict(zip(program.invars, given, strict=True))

        def of(v: Any) -> Reach:
            return NOWHERE if isinstance(v, Literal) else known.get(v, NOWHERE)

        for position, eqn in enumerate(program.eqns):
            operands, place = [of(v) for v in eqn.invars], (*here, position)
            if eqn.primitive.name == "exla_split":
                results = self._loop(eqn.params["loop"], operands, place)
            else:
                results = [self._equation(eqn, operands, place)] * len(eqn.outvars)
            known.update(zip(eqn.outvars, results, strict=True))
        return [of(v) for v in program.outvars]

    def _equation(self, eqn: Any, operands: Sequence[Reach], place: tuple[int, ...]) -> Reach:
        made = NOWHERE.union(*operands)
        if eqn.primitive.name in COMPARISONS:
            self._compare(*operands)
        number = equation_number(eqn)
        if number in self.numbers and eqn.primitive.name in SHAPE_DEPENDENT:
            made |= {(number, place)}
        bodies = _compat.bodies(eqn)
        before = None
        while bodies and made != before:  # what one turn makes, the next may read
            before = made
            for k, body in enumerate(bodies):
                inner = Program(jaxpr=body.jaxpr)
                made = made.union(*self.run(inner, [made] * len(inner.invars), (*place, k)))
        return made

    def _loop(self, loop: Loop, operands: Sequence[Reach], place: tuple[int, ...]) -> list[Reach]:
        """What a chunk loop's results are made of; the remainder computes the same in the same place."""
        body = loop.body
        given = {v: operands[k] for v, k, _ in loop.inputs(body)}
        states = loop.states(body)
        starts = [NOWHERE.union(*(operands[k] for k in c.start)) for c in loop.carries for _ in range(c.parts)]
        given.update(zip(states, starts, strict=True))
        while True:
            partials = self.run(body, [given.get(v, NOWHERE) for v in body.invars], place)
            results, carried = list[Reach](), list[Reach]()
            for output in loop.outputs:
                mine, partials = partials[: output.parts], partials[output.parts :]
                results += [NOWHERE.union(*mine)] * len(output.avals)
                carried += mine if isinstance(output, Carry) else []
            grown = {v: given[v] | reach for v, reach in zip(states, carried, strict=True)}
            if all(given[v] == reach for v, reach in grown.items()):
                return results
            given.update(grown)

    def _compare(self, left: Reach, right: Reach) -> None:
        for number in {n for n, _ in left} & {n for n, _ in right}:
            if len({place for n, place in left | right if n == number}) > 1:
                self.holds = False


def _numbers(eqn: Any) -> Iterator[int]:
    """The number of an equation, and those of what it runs."""
    number = equation_number(eqn)
    if number is not None:
        yield number
    for body in _compat.bodies(eqn):
        for inner in body.jaxpr.eqns:
            yield from _numbers(inner)
