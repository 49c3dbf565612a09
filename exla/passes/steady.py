"""Values that are compared for equality must be computed in one place.

The derivative of a maximum finds the largest element by `x == max(x)`. A split may compute `x` in several loops, once
for the maximum and once to be compared with it. A sum or a product of matrices has other bits in each of them, even
over the same chunks: XLA adds in another order where it fuses the sum with what follows than where it does not. So a
split that computes one of these twice is not offered.

    steady = Steady(start)          # of a program whose equations are numbered
    steady.holds(candidate)         # whether every such sum is computed in one place
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from exla import _compat
from exla._compat import Literal
from exla.ir.program import Program
from exla.ir.scopes import equation_number

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
        program, found = self.program, set[int]()
        above: dict[Any, frozenset[int]] = {}

        def of(v: Any) -> frozenset[int]:
            return frozenset() if isinstance(v, Literal) else above.get(v, frozenset())

        for position, eqn in enumerate(program.eqns):
            if eqn.primitive.name in COMPARISONS and len(eqn.invars) == 2:
                left, right = eqn.invars
                if np.issubdtype(getattr(left.aval, "dtype", np.int32), np.inexact):
                    found |= of(left) & of(right)
            made = frozenset().union(*(of(v) for v in eqn.invars))
            if eqn.primitive.name in SHAPE_DEPENDENT:
                made |= {position}
            for v in eqn.outvars:
                above[v] = made
        numbers = (n for position in found for n in _numbers(program.eqns[position]))
        return frozenset(numbers)

    def holds(self, candidate: Program) -> bool:
        """Whether a program that splits made of this one computes each of them in one place."""
        if not self.numbers:
            return True
        if "steady" not in candidate.known:
            places = Counter(number for number in _places(candidate) if number in self.numbers)
            candidate.known["steady"] = all(count == 1 for count in places.values())
        return candidate.known["steady"]


def _numbers(eqn: Any) -> Iterator[int]:
    """The number of an equation, and those of what it runs."""
    number = equation_number(eqn)
    if number is not None:
        yield number
    for body in _compat.bodies(eqn):
        for inner in body.jaxpr.eqns:
            yield from _numbers(inner)


def _places(program: Program) -> Iterator[int]:
    """The number of each equation of this kind, once for every place where it is computed."""
    for eqn in program.eqns:
        if eqn.primitive.name == "exla_split":
            yield from _places(eqn.params["loop"].body)
            continue
        number = equation_number(eqn)
        if number is not None and eqn.primitive.name in SHAPE_DEPENDENT:
            yield number
        for body in _compat.bodies(eqn):
            yield from _places(Program(jaxpr=body.jaxpr))
