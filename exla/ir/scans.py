"""Scans: running one without some of its results, of which it keeps small rows instead.

    scan = Scan.of(eqn)
    rows = smallest_values(scan.body, wanted, scan.varies, frozenset(scan.scanned))
    results, by_turn = scan.run(operands, dropped={0}, rows=rows)

What was dropped can be computed of the rows: for all turns at once (`Turns`), or for the one at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from exla import _compat
from exla._compat import Literal
from exla.ir.program import Program, as_it_is, body_program, evaluate, value_bytes, variables

Step = Callable[[Any], list[Any]]
"""From an equation of a body to its results."""
IsThere = Callable[[Any], bool]
"""Whether a value of a body need not be computed."""
Make = Callable[[Sequence[Any]], list[Any]]
"""From rows to other rows."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Scan:
    """A scan.

    Attributes:
      eqn: the equation.
      body: what a turn computes.
      consts: how many inputs of the body are the same on every turn.
      carry: how many are carried; of the others each turn has a row.
    """

    eqn: Any
    body: Program
    consts: int
    carry: int

    @classmethod
    def of(cls, eqn: Any) -> Scan | None:
        """An equation as a scan; None where it is none, or one that does something besides."""
        if eqn.primitive.name != "scan" or eqn.effects:
            return None
        body = body_program(_compat.bodies(eqn)[0])
        if body is None:
            return None
        consts, carry = _compat.scan_counts(eqn.params, len(eqn.invars))
        return cls(eqn=eqn, body=body, consts=consts, carry=carry)

    @property
    def turns(self) -> int:
        """How many turns it makes."""
        turns: int = self.eqn.params["length"]
        return turns

    @property
    def _last(self) -> int:
        """How many operands there are before those of which each turn has a row."""
        return self.consts + self.carry

    @property
    def fixed(self) -> Sequence[Any]:
        """The inputs of the body that are the same on every turn."""
        return self.body.invars[: self.consts]

    @property
    def carried(self) -> Sequence[Any]:
        """The inputs of the body that the turn before computes."""
        return self.body.invars[self.consts : self._last]

    @property
    def scanned(self) -> Sequence[Any]:
        """The inputs of the body that are rows of operands."""
        return self.body.invars[self._last :]

    @cached_property
    def varies(self) -> frozenset[Any]:
        """The values of the body that are not the same on every turn."""
        found = {*self.carried, *self.scanned}
        for eqn in self.body.eqns:
            if not found.isdisjoint(variables(eqn.invars)):
                found.update(eqn.outvars)
        return frozenset(found)

    def bytes_of(self, rows: Sequence[Any]) -> int:
        """Bytes that it takes to keep some values of each turn; rows of operands are there anyway."""
        scanned = set(self.scanned)
        return self.turns * sum(value_bytes(v) for v in rows if v not in scanned)

    def run(
        self, operands: Sequence[Any], dropped: Set[int], rows: Sequence[Any]
    ) -> tuple[dict[int, Any], dict[Any, Any]]:
        """The results but for some, and what a turn computes for each turn.

        Args:
          operands: the equation's operands.
          dropped: which results are not computed.
          rows: values of the body that are stacked instead.

        Returns:
          Which result -> the result; value of the body -> its rows along the first axis, those of operands too.
        """
        first, last = self.consts, self._last
        consts, start, scanned = operands[:first], operands[first:last], operands[last:]
        kept = [k for k in range(len(self.eqn.outvars)) if k not in dropped]
        there = {self.body.outvars[k]: k for k in kept if k >= self.carry and not _is_literal(self.body.outvars[k])}
        added = [v for v in rows if v not in self.scanned and v not in there]
        carry = [k for k in kept if k < self.carry]
        inputs = [*self.fixed, *(self.carried[k] for k in carry), *self.scanned]
        left = _without(self.body, inputs, [*(self.body.outvars[k] for k in kept), *added])

        def turn(state: Any, row: Any) -> tuple[Any, Any]:
            made = evaluate(left, [*consts, *state, *row], as_it_is)
            return tuple(made[: len(carry)]), tuple(made[len(carry) :])

        begin = tuple(start[k] for k in carry)
        ends, stacked = lax.scan(turn, begin, tuple(scanned), **_compat.scan_options(self.eqn))
        results = dict(zip(kept, (*ends, *stacked[: len(stacked) - len(added)]), strict=True))
        by_turn = dict(zip(added, stacked[len(stacked) - len(added) :], strict=True))
        by_turn |= {v: results[k] for v, k in there.items()}
        return results, by_turn | dict(zip(self.scanned, scanned, strict=True))

    def with_rows(
        self, operands: Mapping[int, Any], others: Sequence[int], rows: Sequence[Any], make: Make
    ) -> list[Any]:
        """The results, where each turn computes some of its rows.

        Args:
          operands: which operand -> it, but for those whose rows are computed.
          others: which operands these are.
          rows: what each turn has a row of instead.
          make: from a turn's rows of these to the rows that it computes.
        """
        count = len(self.eqn.invars)
        consts, start = ([operands[k] for k in ks] for ks in (range(self.consts), range(self.consts, self._last)))
        scanned = [k for k in range(self._last, count) if k not in others]

        def turn(state: Any, row: Any) -> tuple[Any, Any]:
            given, instead = row
            known = dict(zip(scanned, given, strict=True)) | dict(zip(others, make(instead), strict=True))
            mine = [known[k] for k in range(self._last, count)]
            made = evaluate(self.body.jaxpr, [*consts, *state, *mine], as_it_is)
            return tuple(made[: self.carry]), tuple(made[self.carry :])

        xs = (tuple(operands[k] for k in scanned), tuple(rows))
        ends, stacked = lax.scan(turn, tuple(start), xs, **_compat.scan_options(self.eqn))
        return [*ends, *stacked]


def _is_literal(atom: Any) -> bool:
    return isinstance(atom, Literal)


def _without(body: Program, inputs: list[Any], results: list[Any]) -> Any:
    """The jaxpr of a body with other inputs and results, and without what these do not need."""
    needed, eqns = set(variables(results)), list[Any]()
    for eqn in reversed(body.eqns):
        if not needed.isdisjoint(eqn.outvars):
            eqns.append(eqn)
            needed.update(variables(eqn.invars))
    return _compat.with_equations(body.jaxpr, invars=inputs, eqns=eqns[::-1], outvars=results)


def compute(body: Program, atoms: Iterable[Any], known: dict[Any, Any], step: Step, is_there: IsThere) -> None:
    """Compute values of a body of others, one after another.

    Args:
      body: the body.
      atoms: the values.
      known: the others; what is computed is added.
      step: computes an equation's results.
      is_there: which values need not be computed, beside those that are known.
    """
    needed, stack = set[int](), list(atoms)
    while stack:
        atom = stack.pop()
        if isinstance(atom, Literal) or atom in known or is_there(atom):
            continue
        position = body.producers[atom]
        if position not in needed:
            needed.add(position)
            stack += body.eqns[position].invars
    for position in sorted(needed):
        eqn = body.eqns[position]
        known.update(zip(eqn.outvars, step(eqn), strict=True))


def of_rows(body: Program, atoms: Sequence[Any], known: dict[Any, Any]) -> list[Any]:
    """Values of a turn, computed of others of the same turn."""

    def value(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else known[atom]

    compute(body, atoms, known, lambda eqn: as_it_is(eqn, [value(v) for v in eqn.invars]), lambda atom: False)
    return [value(v) for v in atoms]


@dataclass(frozen=True, kw_only=True, eq=False)
class Turns:
    """What the turns of a scan compute, outside it and for all turns at once.

    Attributes:
      scan: the scan.
      by_turn: value of the body -> its rows along the first axis.
      fixed: value of the body -> what it is on every turn.
    """

    scan: Scan
    by_turn: dict[Any, Any]
    fixed: dict[Any, Any]

    def varies(self, atom: Any) -> bool:
        """Whether a value is not the same on every turn."""
        return not isinstance(atom, Literal) and atom in self.scan.varies

    def value(self, atom: Any) -> Any:
        """A value that is the same on every turn."""
        return of_rows(self.scan.body, [atom], self.fixed)[0]

    def all(self, atom: Any) -> Any:
        """A value of every turn, along the first axis."""
        if self.varies(atom):
            return self.stacked(atom)
        value = jnp.asarray(self.value(atom))
        return jnp.broadcast_to(value, (self.scan.turns, *value.shape))

    def stacked(self, atom: Any) -> Any:
        """A value that varies, its rows along the first axis."""
        compute(self.scan.body, [atom], self.by_turn, self._on_each_turn, lambda v: not self.varies(v))
        return self.by_turn[atom]

    def _on_each_turn(self, eqn: Any) -> list[Any]:
        axes = [0 if self.varies(v) else None for v in eqn.invars]
        values = [self.by_turn[v] if self.varies(v) else self.value(v) for v in eqn.invars]
        return list(jax.vmap(lambda *operands: tuple(_compat.bind(eqn, *operands)), in_axes=axes)(*values))
