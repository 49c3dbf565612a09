"""Control flow: the axis that a scan runs along is carried, and axes that bodies leave alone are factors.

A chunk of a scan along its own axis is the same scan, of fewer steps, started from where the chunk before it ended; its
values are bit for bit those of the whole one.

Along any other axis a scan, while or cond can be cut if its bodies treat the indices of that axis independently of each
other, on every turn: the rows that a bisection (`jnp.searchsorted`) or a vmapped recurrence works on. That is found by
following the factor rules of the bodies' own equations (`_Axes`); the bodies are traced again at the chunk's shapes.
A while loop that asks whether *any* element goes on does not leave its axes alone: the elements wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import jax
import jax.numpy as jnp

from exla import _compat
from exla._compat import Literal
from exla.ir.factors import FACTOR_RULES, Carried, Chunk, EquationContext, FactorRule, Factors, tokens
from exla.ir.program import Program, as_struct, body_program, evaluate

Node = tuple[Any, int]
"""A variable of a body and one of its axes."""

COUNTS_FROM_ITS_OFFSET = frozenset({"random_bits"})
"""Primitives whose values on a chunk depend on where it begins, which a body does not know; an iota along its axis."""


class _Axes:
    """The axes of the values in some bodies, joined where they are one index."""

    def __init__(self, bodies: Iterable[Program]) -> None:
        self._parent: dict[Node, Node] = {}
        self._whole: set[Node] = set()
        for body in bodies:
            for position in range(len(body.eqns)):
                self._tie(body, position)

    def _tie(self, body: Program, position: int) -> None:
        eqn, factors = body.eqns[position], body.factors(position)
        values = (*eqn.invars, *eqn.outvars)
        alone = {(n, k) for n, v in enumerate(values) if not isinstance(v, Literal) for k in _ranks(v)}
        for name in () if factors is None else factors.names:
            assert factors is not None
            tied = independent(eqn, factors, name)
            if tied:
                self.join([(values[n], k) for n, k in tied])
                alone -= set(tied)
        for n, k in alone:
            self._whole.add(self.find((values[n], k)))

    def find(self, node: Node) -> Node:
        root = node
        while self._parent.get(root, root) != root:
            root = self._parent[root]
        self._parent[node] = root
        return root

    def join(self, nodes: Sequence[Node]) -> None:
        """Make some axes one index."""
        first = self.find(nodes[0])
        for node in nodes[1:]:
            root = self.find(node)
            if root != first:
                self._parent[root] = first
                if root in self._whole:
                    self._whole.add(first)

    def names(self, values: Iterable[Any]) -> dict[Node, str]:
        """A name for every index that runs along an axis of some values and can be cut."""
        along: dict[Node, list[Node]] = {}
        for node in list(self._parent):
            along.setdefault(self.find(node), []).append(node)
        roots: dict[Node, str] = {}
        for var in values:
            for k in _ranks(var):
                root = self.find((var, k))
                group = along.get(root, [(var, k)])
                alone = len({v for v, _ in group}) == len(group)
                if root not in self._whole and alone and var.aval.shape[k] > 1:
                    roots.setdefault(root, f"c{len(roots)}")
        return roots


def _ranks(var: Any) -> range:
    return range(len(getattr(var.aval, "shape", ())))


def independent(eqn: Any, factors: Factors, name: str) -> list[tuple[int, int]]:
    """(which operand or result, axis) along which a factor runs, if its indices are independent of each other."""
    rule = factors.rule
    if name in rule.reduced or name in rule.carried or eqn.primitive.name in COUNTS_FROM_ITS_OFFSET:
        return []
    values = zip((*eqn.invars, *eqn.outvars), (*factors.operands[name], *factors.results[name]), strict=True)
    placed = [(n, p) for n, (v, p) in enumerate(values) if p is not None and not isinstance(v, Literal)]
    if any(p.block != 1 or p.halo is not None for _, p in placed):
        return []
    if eqn.primitive.name == "iota" and any(p.axis == eqn.params["dimension"] for _, p in placed):
        return []
    return [(n, p.axis) for n, p in placed]


def _cut(body: Program, axes: _Axes, root: Node, size: int) -> Any:
    """A body as a closed jaxpr of values that have `size` indices along an index."""
    positions = {id(eqn): i for i, eqn in enumerate(body.eqns)}

    def step(eqn: Any, operands: list[Any]) -> list[Any]:
        position = positions[id(eqn)]
        factors = body.factors(position)
        for name in () if factors is None else factors.names:
            assert factors is not None
            tied = independent(eqn, factors, name)
            if tied and axes.find(((*eqn.invars, *eqn.outvars)[tied[0][0]], tied[0][1])) == root:
                context = body.context(position)
                chunk = Chunk(context=context, factors=factors, factor=name, size=size, offset=jnp.int32(0))
                with _compat.equation_context(eqn):
                    return list(factors.rule.replay(chunk, *operands))
        return _compat.bind(eqn, *operands)

    def struct(var: Any) -> Any:
        whole = as_struct(var.aval)
        shape = tuple(size if axes.find((var, k)) == root else n for k, n in enumerate(whole.shape))
        return jax.ShapeDtypeStruct(shape, whole.dtype, weak_type=whole.weak_type)

    return jax.make_jaxpr(lambda *values: evaluate(body.jaxpr, values, step))(*map(struct, body.invars))


class _Flow:
    """What the bodies of one control-flow equation leave alone.

    Args:
      context: the equation.
      operands: for each operand of the equation, the body inputs that it becomes.
      results: for each result, the body outputs that it comes from.
      rows: operands and results whose first axis the bodies do not see.
    """

    def __init__(
        self, context: EquationContext, operands: list, results: list, rows: Sequence[Set[int]] = (set(), set())
    ) -> None:
        self.context = context
        self.rows = rows
        self.bodies = [body_program(closed) for closed in _compat.bodies_of(context.primitive, context.params)]
        self.sides = (operands, results)
        self.axes = _Axes([b for b in self.bodies if b is not None])
        for tied in (*operands, *results):
            variables = [v for v in tied if not isinstance(v, Literal)]
            for k in _ranks(variables[0]) if variables else ():
                self.axes.join([(v, k) for v in variables])
        known = None not in self.bodies
        values = [v for side in self.sides for tied in side for v in tied[:1] if not isinstance(v, Literal)]
        self.names: Mapping[Node, str] = self.axes.names(values) if known else {}

    def tokens(self, side: int, first: str | None = None) -> str:
        """One side of the rule's equation."""
        found = []
        for k, (value, tied) in enumerate(zip(self._values(side), self.sides[side], strict=True)):
            seen = [self.name(tied, axis) for axis in range(len(value.shape) - (k in self.rows[side]))]
            found.append(tokens([first, *seen] if k in self.rows[side] else seen))
        return ", ".join(found)

    def _values(self, side: int) -> tuple[Any, ...]:
        return self.context.results if side else self.context.operands

    def name(self, tied: Sequence[Any], axis: int) -> str | None:
        if not tied or isinstance(tied[0], Literal):
            return None
        return self.names.get(self.axes.find((tied[0], axis)))

    def apart(self) -> dict[str, frozenset[int]]:
        """For each index, the results that do not have it, and are the same for every part of it."""
        found = {}
        for name in self.names.values():
            lacking = (
                k
                for k, tied in enumerate(self.sides[1])
                if all(self.name(tied, axis) != name for v in tied[:1] for axis in _ranks(v))
            )
            found[name] = frozenset(lacking)
        return found

    def replay(self, chunk: Chunk, *operands: Any) -> Sequence[Any]:
        """The equation with its bodies traced again at the chunk's shapes."""
        root = next(r for r, name in self.names.items() if name == chunk.factor)
        bodies = [_cut(body, self.axes, root, chunk.size) for body in self.bodies if body is not None]
        return chunk.bind(*operands, **_compat.body_params(self.context.primitive, self.context.params, bodies))


WHOLE = "its bodies do not treat the indices independently"


@FACTOR_RULES.register("scan")
def scan(context: EquationContext) -> FactorRule:
    """`_, c0, t c0 -> c0, t c0`: constants, carry and rows to carry and rows, with t carried."""
    consts, carry = _compat.scan_counts(context.params, len(context.operands))
    (closed,) = _compat.bodies_of("scan", context.params)
    inside, outside = closed.jaxpr.invars, closed.jaxpr.outvars
    operands = [[v] for v in inside[:consts]]
    operands += [[v, w] for v, w in zip(inside[consts : consts + carry], outside, strict=False)]
    operands += [[v] for v in inside[consts + carry :]]
    rows = (set(range(consts + carry, len(operands))), set(range(carry, len(outside))))
    flow = _Flow(context, operands, [[v] for v in outside], rows)

    def step(chunk: Chunk, state: list[Any], *operands: Any) -> tuple[list[Any], list[Any]]:
        results = chunk.bind(*operands[:consts], *state, *operands[consts + carry :], length=chunk.size)
        return results[carry:], results[:carry]

    carried = Carried(
        start=lambda context, *operands: list(operands),
        step=step,
        finish=lambda context, state: state,
        into=tuple(range(consts, consts + carry)),
        reverse=context.params["reverse"],
    )
    return FactorRule(
        equation=f"{flow.tokens(0, 't')} -> {flow.tokens(1, 't')}",
        carried={"t": carried},
        replay=flow.replay,
        apart=flow.apart(),
        whole=WHOLE,
    )


@FACTOR_RULES.register("while")
def while_(context: EquationContext) -> FactorRule:
    """`_, c0 -> c0`: constants and carry to carry; what the condition looks at is whole."""
    condition, body = _compat.bodies_of("while", context.params)
    first, second = context.params["cond_nconsts"], context.params["body_nconsts"]
    operands = [[v] for v in (*condition.jaxpr.invars[:first], *body.jaxpr.invars[:second])]
    loops = zip(body.jaxpr.invars[second:], condition.jaxpr.invars[first:], body.jaxpr.outvars, strict=True)
    flow = _Flow(context, [*operands, *(list(tied) for tied in loops)], [[v] for v in body.jaxpr.outvars])
    return FactorRule(
        equation=f"{flow.tokens(0)} -> {flow.tokens(1)}", replay=flow.replay, apart=flow.apart(), whole=WHOLE
    )


@FACTOR_RULES.register("cond")
def cond(context: EquationContext) -> FactorRule:
    """`, c0 -> c0`: the index, then what the branches take."""
    branches = _compat.bodies_of("cond", context.params)
    operands = [[], *(list(tied) for tied in zip(*(b.jaxpr.invars for b in branches), strict=True))]
    results = [list(tied) for tied in zip(*(b.jaxpr.outvars for b in branches), strict=True)]
    flow = _Flow(context, operands, results)
    return FactorRule(
        equation=f"{flow.tokens(0)} -> {flow.tokens(1)}", replay=flow.replay, apart=flow.apart(), whole=WHOLE
    )


@FACTOR_RULES.register("exla_unless", "exla_sealed")
def one_body(context: EquationContext) -> FactorRule:
    """`c0 _, c0 c1 -> c0 c1`: what is safe and used then, and what it is computed from otherwise; or that alone."""
    (body,) = _compat.bodies_of(context.primitive, context.params)
    inside, outside = body.jaxpr.invars, body.jaxpr.outvars
    flow = _Flow(context, [[v] for v in inside], [[v] for v in outside])
    return FactorRule(
        equation=f"{flow.tokens(0)} -> {flow.tokens(1)}", replay=flow.replay, apart=flow.apart(), whole=WHOLE
    )
