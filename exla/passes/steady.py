"""Values that are compared for equality must have the same bits wherever they are computed.

The derivative of a maximum finds the largest element by `x == max(x)`. A split may compute `x` in several loops, once
for the maximum and once to be compared with it; what is computed element by element has the same bits in both, and a
sum or a product of matrices only where it is taken over the same chunks.

    steady = Steady(start)          # of a program whose equations are numbered
    steady.holds(candidate)         # whether every such sum is computed in one way
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from exla import _compat
from exla._compat import Literal
from exla.ir.program import Program
from exla.ir.scopes import equation_number
from exla.passes.split.loop import Loop, Stack

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
    """What must be computed in one way.

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
        """Whether a program that splits made of this one computes each of them in one way."""
        if not self.numbers:
            return True
        if "steady" not in candidate.known:
            ways: dict[int, set[Any]] = {}
            for number, way in _ways(candidate):
                if number in self.numbers:
                    ways.setdefault(number, set()).add(way)
            candidate.known["steady"] = all(len(found) == 1 for found in ways.values())
        return candidate.known["steady"]


def _numbers(eqn: Any) -> Iterator[int]:
    """The number of an equation, and those of what it runs."""
    number = equation_number(eqn)
    if number is not None:
        yield number
    for body in _compat.bodies(eqn):
        for inner in body.jaxpr.eqns:
            yield from _numbers(inner)


def _ways(program: Program, loop: Loop | None = None) -> Iterator[tuple[int, Any]]:
    """The number of each equation of this kind, and how it is computed.

    By the shapes of its operands, and by the chunks that are merged where a loop puts it together.
    """
    merged = set() if loop is None else _merged(loop)
    for eqn in program.eqns:
        if eqn.primitive.name == "exla_split":
            yield from _ways(eqn.params["loop"].body, eqn.params["loop"])
            continue
        number = equation_number(eqn)
        if number is not None and eqn.primitive.name in SHAPE_DEPENDENT:
            chunks = (loop.size, loop.chunk) if loop is not None and merged.intersection(eqn.outvars) else None
            yield number, (eqn.primitive.name, *(getattr(v.aval, "shape", ()) for v in eqn.invars), chunks)
        for body in _compat.bodies(eqn):
            yield from _ways(Program(jaxpr=body.jaxpr))


def _merged(loop: Loop) -> set[Any]:
    """What a loop's body adds to the loop's state: results that are combined, and what is added to what is carried."""
    found, partials = set[Any](), list(loop.body.outvars)
    for output in loop.outputs:
        mine, partials = partials[: output.parts], partials[output.parts :]
        if not isinstance(output, Stack):
            found.update(v for v in mine if not isinstance(v, Literal))
    for eqn in loop.body.eqns:
        if eqn.primitive.name == "add" and found.intersection(eqn.outvars):
            found.update(v for v in eqn.invars if not isinstance(v, Literal))
    return found
