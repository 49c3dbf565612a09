"""The collect pass: a big sum that a loop carries is made after the loop, of what is small in each of its terms.

    rewrite: scan(s += u[t] v[t].T)  ->  scan(keeps u, v); s = u.T @ v

The gradient of a loop that reads a matrix on every turn, as Sinkhorn's or a conjugate-gradient solve does, adds to the
matrix's gradient on every turn. The whole of it goes through memory every time, and no chunk of it can be computed by
itself. But a term is made of little: of vectors that the turn computes, and of what is the same on every turn. A row of
each vector is kept for each turn instead, and the sum is one product, or a sum over the turns, after the loop: a value
like any other, which is cut with what reads it.

The terms are the same and are added in another order; under numerics="exact", and in types below 32 bits, nothing is
collected.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax

from exla import _compat
from exla.errors import ReplayMiss
from exla.ir.memory import Path
from exla.ir.primitives import ADDS, named
from exla.ir.program import Program, value_bytes, variables
from exla.ir.scans import Scan, Turns
from exla.ir.smallest import smallest_values
from exla.passes.decisions import Collect
from exla.passes.paths import at_site, bodies_to_rewrite
from exla.passes.reorder import TYPES
from exla.passes.rewritten import Get, rewritten

LINEAR = named(
    "neg transpose reshape broadcast_in_dim squeeze expand_dims reduce_sum slice rev real imag mul dot_general"
)
"""Where one operand varies, the sum of what they make is what they make of the sum."""
WORTH = 2
"""How many times as large as the rows that are kept a sum must be at least."""


@dataclass(frozen=True, kw_only=True)
class Sum:
    """A sum that a scan carries.

    Attributes:
      scan: the scan.
      result: which of its results it is.
      terms: what a turn adds, and whether it subtracts it.
      rows: the values of a turn that its terms are made of.
    """

    scan: Scan
    result: int
    terms: tuple[tuple[bool, Any], ...]
    rows: tuple[Any, ...]


def enumerate_collections(program: Program, path: Path = (), least_bytes: int = 0) -> Iterator[Collect]:
    """Offer to make each big sum that a scan carries after it.

    Args:
      program: the program.
      path: where it is.
      least_bytes: what the sum takes at least.
    """
    for position, eqn in enumerate(program.eqns):
        scan = Scan.of(eqn)
        for result in range(scan.carry) if scan is not None else ():
            total = eqn.outvars[result]
            is_big = value_bytes(total) >= least_bytes and (total in program.consumers or total in program.outvars)
            if is_big and _sum(eqn, result) is not None:
                yield Collect(path=path, site=program.site(position), result=result)
    for body, inner in bodies_to_rewrite(program, path):
        yield from enumerate_collections(body, inner, least_bytes)


def apply_collect(program: Program, decision: Collect) -> Program:
    """Replay a collection.

    Raises:
      ReplayMiss: if there is no such sum.
    """

    def change(inner: Program, position: int) -> Program:
        eqn = inner.eqns[position]
        found = _sum(eqn, decision.result)
        if found is None:
            raise ReplayMiss(f"{decision}: it is no sum whose terms are made of little")
        return rewritten(inner, position, eqn.invars, lambda get: _evaluated(found, get))

    return at_site(program, decision, change)


def _sum(eqn: Any, result: int) -> Sum | None:
    """A result of a scan as a sum whose terms are made of rows that are small beside it; None where it is none."""
    scan = Scan.of(eqn)
    if scan is None or not 0 <= result < scan.carry or str(eqn.outvars[result].aval.dtype) not in TYPES:
        return None
    terms = _terms(scan.body, scan.carried[result], scan.body.outvars[result])
    if not terms or scan.turns < 2:
        return None
    rows = smallest_values(scan.body, variables(v for _, v in terms), scan.varies, frozenset(scan.scanned))
    if scan.bytes_of(rows) * WORTH > value_bytes(eqn.outvars[result]):
        return None
    return Sum(scan=scan, result=result, terms=terms, rows=tuple(rows))


def _terms(body: Program, start: Any, end: Any) -> tuple[tuple[bool, Any], ...]:
    """What is added to one value until it is another, which nobody else reads on the way; () where more is done."""
    found: list[tuple[bool, Any]] = []
    while start is not end:
        uses = body.consumers.get(start, [])
        if len(uses) != 1 or start in body.outvars:
            return ()
        position, k = uses[0]
        eqn = body.eqns[position]
        subtracts = eqn.primitive.name == "sub" and k == 0
        if not subtracts and eqn.primitive.name not in ADDS:
            return ()
        found.append((subtracts, eqn.invars[1 - k]))
        start = eqn.outvars[0]
    is_free = end not in body.consumers and sum(v is end for v in body.outvars) == 1
    return tuple(found) if is_free else ()


def _evaluated(found: Sum, get: Get) -> list[Any]:
    """The scan's results: it runs without the sum, and its terms are summed after it."""
    scan = found.scan
    operands = [get(v) for v in scan.eqn.invars]
    results, by_turn = scan.run(operands, {found.result}, found.rows)
    turns = Turns(scan=scan, by_turn=by_turn, fixed=dict(zip(scan.fixed, operands, strict=False)))
    sums = _Sums(turns=turns, known={})
    total = operands[scan.consts + found.result]
    for subtracts, term in found.terms:
        total = (lax.sub if subtracts else lax.add)(total, sums.of(term))
    results[found.result] = total
    return [results[k] for k in range(len(results))]


@dataclass(frozen=True, kw_only=True)
class _Sums:
    """Sums over the turns of a scan, evaluated outside it.

    Attributes:
      turns: what the turns compute.
      known: value of the body that varies -> its sum.
    """

    turns: Turns
    known: dict[Any, Any]

    def of(self, atom: Any) -> Any:
        """The sum of a value over the turns."""
        body = self.turns.scan.body
        if not self.turns.varies(atom):
            value = jnp.asarray(self.turns.value(atom), atom.aval.dtype)
            return lax.mul(value, lax.full_like(value, self.turns.scan.turns))
        needed, stack = dict[Any, None](), [atom]
        while stack:
            var = stack.pop()
            if var not in self.known and var not in needed:
                needed[var] = None
                stack += [v for v in self._parts(var) if self.turns.varies(v)]
        for var in sorted(needed, key=lambda v: body.producers.get(v, -1)):
            self.known[var] = self._sum(var)
        return self.known[atom]

    def _parts(self, var: Any) -> Sequence[Any]:
        """The values of whose sums the sum of a value is made; none where it is made of its rows."""
        if var in self.turns.by_turn:
            return ()
        eqn = self._maker(var)
        name, which = eqn.primitive.name, self._varying(eqn)
        if name in (*ADDS, "sub"):
            return eqn.invars
        is_linear = name in LINEAR or name == "div" and which == [0]
        return [eqn.invars[which[0]]] if len(which) == 1 and is_linear else ()

    def _sum(self, var: Any) -> Any:
        """The sum of a value, of those of its parts or of its rows."""
        eqn = None if var in self.turns.by_turn else self._maker(var)
        if eqn is not None and (parts := self._parts(var)):
            values = [self._of_part(v) if v in parts else self.turns.value(v) for v in eqn.invars]
            return _compat.bind(eqn, *values)[0]
        if eqn is not None and eqn.primitive.name == "dot_general" and eqn.params.get("out_sharding") is None:
            return self._of_product(eqn)
        return jnp.sum(self.turns.stacked(var), axis=0, dtype=var.aval.dtype)

    def _of_part(self, atom: Any) -> Any:
        return self.known[atom] if self.turns.varies(atom) else self.of(atom)

    def _of_product(self, eqn: Any) -> Any:
        """The sum of products of two values that vary: the turns are one more contracted axis."""
        (left, right), batched = eqn.params["dimension_numbers"]
        contracted = ((0, *(k + 1 for k in left)), (0, *(k + 1 for k in right)))
        params: dict[str, Any] = {
            "dimension_numbers": (contracted, tuple(tuple(k + 1 for k in side) for side in batched))
        }
        if not left:  # multiplied element by element so far, in full precision
            params["precision"] = (lax.Precision.HIGHEST, lax.Precision.HIGHEST)
        return _compat.bind(eqn, *map(self.turns.stacked, eqn.invars), **params)[0]

    def _maker(self, var: Any) -> Any:
        body = self.turns.scan.body
        return body.eqns[body.producers[var]]

    def _varying(self, eqn: Any) -> list[int]:
        return [k for k, v in enumerate(eqn.invars) if self.turns.varies(v)]
