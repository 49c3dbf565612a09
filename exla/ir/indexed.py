"""Indices: what runs along the axes of a program's values, seen from a result.

A value is a `Term`: a variable and, for each of its axes, the *index* that runs along it. Broadcasts, transposes and
unit axes only rename indices, so that they are looked through; every other equation hands its indices on as its factor
rule says. `x[:, None, :] - y[None]` and a twice vmapped `x - y` are then the same: `x[i, k] - y[j, k]`.

    indexed = Indexed(program)
    term = indexed.whole(program.outvars[0])
    indexed.peel(term)          # the value behind what only renames

What it does not do: look through reshapes that split or join axes, or through control flow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from exla._compat import Literal
from exla.ir.primitives import ELEMENTWISE
from exla.ir.program import Program

RENAMING = frozenset({"broadcast_in_dim", "transpose", "squeeze", "expand_dims", "reshape", "copy"})
"""Primitives that only rename indices, unless they split or join axes."""


@dataclass(frozen=True)
class Term:
    """A variable or literal, and the index along each of its axes; None where the axis has size 1."""

    atom: Any
    indices: tuple[int | None, ...]


@dataclass
class Indexed:
    """A program while it is walked from results towards inputs: an index for every axis.

    Attributes:
      program: the program.
      sizes: index -> how many.
    """

    program: Program
    sizes: dict[int, int] = field(default_factory=dict)

    def fresh(self, size: int) -> int | None:
        if size == 1:
            return None
        index = len(self.sizes)
        self.sizes[index] = size
        return index

    def _size(self, index: int | None) -> int:
        return 1 if index is None else self.sizes[index]

    def whole(self, atom: Any) -> Term:
        return Term(atom, tuple(self.fresh(n) for n in atom.aval.shape))

    def peel(self, term: Term) -> Term:
        """The value behind broadcasts, transposes and unit axes."""
        while True:
            position = None if isinstance(term.atom, Literal) else self.program.producers.get(term.atom)
            if position is None:
                return term
            eqn = self.program.eqns[position]
            behind = _behind(eqn, term) if eqn.primitive.name in RENAMING else None
            if behind is None:
                return term
            term = behind

    def operands(self, position: int, results: Sequence[Term | None]) -> list[Term] | None:
        """The operands of an equation, given some of its results; None where its factor rule cannot say."""
        eqn = self.program.eqns[position]
        if eqn.primitive.name in ELEMENTWISE:
            same = next(t.indices for t in results if t is not None)
            read: list[Term] = []
            for v in eqn.invars:  # a scalar, or as long as the result along each axis but for those of size 1
                axes = zip(v.aval.shape, same, strict=True) if v.aval.shape else ()
                read.append(Term(v, tuple(None if n == 1 else index for n, index in axes)))
            return read
        factors = self.program.factors(position)
        if factors is None:
            return None
        known: dict[str, int | None] = {}
        for k, term in enumerate(results):
            for axis, index in enumerate(() if term is None else term.indices):
                along = _along(factors.results, k, axis)
                if len(along) == 1 and along[0] not in known:
                    known[along[0]] = index
        found = []
        for k, v in enumerate(eqn.invars):
            indices: list[int | None] = []
            for axis, size in enumerate(v.aval.shape):
                along = _along(factors.operands, k, axis)
                one = along[0] if len(along) == 1 else None
                if one is not None and one in known and self._size(known[one]) == size:
                    indices.append(known[one])
                    continue
                fresh = self.fresh(size)
                indices.append(fresh)
                if one is not None and one not in known:
                    known[one] = fresh
            found.append(Term(v, tuple(indices)))
        return found


def _along(placements: Mapping[str, Sequence[Any]], k: int, axis: int) -> list[str]:
    """The factors that run along an axis of an operand or result."""
    return [name for name, places in placements.items() if places[k] is not None and places[k].axis == axis]


def _behind(eqn: Any, term: Term) -> Term | None:
    """What a view shows; None where it splits or joins axes."""
    (operand,) = eqn.invars[:1]
    shape = operand.aval.shape
    name = eqn.primitive.name
    if name == "copy":
        return Term(operand, term.indices)
    if name == "transpose":
        back = [0] * len(shape)
        for axis, source in enumerate(eqn.params["permutation"]):
            back[source] = axis
        return Term(operand, tuple(term.indices[k] for k in back))
    if name == "broadcast_in_dim":
        onto = eqn.params["broadcast_dimensions"]
        return Term(operand, tuple(None if n == 1 else term.indices[k] for n, k in zip(shape, onto, strict=True)))
    if [n for n in shape if n != 1] != [n for n in eqn.outvars[0].aval.shape if n != 1]:
        return None
    long = iter([i for i, n in zip(term.indices, eqn.outvars[0].aval.shape, strict=True) if n != 1])
    return Term(operand, tuple(None if n == 1 else next(long) for n in shape))
