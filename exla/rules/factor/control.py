"""Control flow: the axis that a scan runs along is carried, and axes that bodies leave alone are factors.

A chunk of a scan along its own axis is the same scan, of fewer steps, started from where the chunk before it ended; its
values are bit for bit those of the whole one.

Along any other axis a scan, while or cond can be cut if its bodies treat the indices of that axis independently of each
other, on every turn: the rows that a bisection (`jnp.searchsorted`) or a vmapped recurrence works on. That is found by
following the factor rules of the bodies' own equations (`exla.rules.factor.bodies`); the bodies are traced again at the
chunk's shapes. A while loop that asks whether *any* element goes on does not leave its axes alone: the elements wait
for each other. What a scan sums over such an axis, as a gradient of its weights, is carried from chunk to chunk
(`exla.rules.factor.accumulated`).
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

import jax.numpy as jnp
from jax import lax

from exla import _compat
from exla._compat import Literal
from exla.ir import sums
from exla.ir.factors import FACTOR_RULES, Adds, Carried, Chunk, EquationContext, FactorRule, tokens
from exla.ir.program import body_program, evaluate
from exla.rules.factor.accumulated import Accumulated, accumulated
from exla.rules.factor.bodies import Axes, Node, cut, on_chunk, ranks


class _Flow:
    """What the bodies of one control-flow equation leave alone.

    Args:
      context: the equation.
      operands: for each operand of the equation, the body inputs that it becomes.
      results: for each result, the body outputs that it comes from.
      rows: operands and results whose first axis the bodies do not see.
      carry: of a scan, the position of its first carry among the operands, and how many it has.

    Attributes:
      sums: name of an index -> the results that are sums over it, where there are such.
    """

    def __init__(
        self,
        context: EquationContext,
        operands: list,
        results: list,
        rows: Sequence[Set[int]] = (set(), set()),
        carry: tuple[int, int] | None = None,
    ) -> None:
        self.context = context
        self.rows = rows
        self.carry = carry
        self.bodies = [body_program(closed) for closed in _compat.bodies_of(context.primitive, context.params)]
        self.sides = (operands, results)
        self.axes = Axes([b for b in self.bodies if b is not None], in_scan=carry is not None)
        for tied in (*operands, *results):
            variables = [v for v in tied if not isinstance(v, Literal)]
            for k in ranks(variables[0]) if variables else ():
                self.axes.join([(v, k) for v in variables])
        known = None not in self.bodies
        values = [v for side in self.sides for tied in side for v in tied[:1] if not isinstance(v, Literal)]
        self.names: dict[Node, str] = self.axes.names(values) if known else {}
        self.sums: dict[str, Accumulated] = {}
        for root, name in list(self.names.items()):
            summing = self.axes.summing(root)
            if summing:
                found = self._accumulated(root, summing)
                if found is None:
                    del self.names[root]
                else:
                    self.sums[name] = found

    def _accumulated(self, root: Node, summing: dict[int, Adds]) -> Accumulated | None:
        (body,) = self.bodies
        assert body is not None and self.carry is not None

        def runs_along(var: Any) -> bool:
            return any(self.axes.find((var, k)) == root for k in ranks(var))

        return accumulated(body, *self.carry, summing, runs_along)

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
                if all(self.name(tied, axis) != name for v in tied[:1] for axis in ranks(v))
            )
            found[name] = frozenset(lacking)
        return found

    def replay(self, chunk: Chunk, *operands: Any) -> Sequence[Any]:
        """The equation with its bodies traced again at the chunk's shapes."""
        root = next(r for r, name in self.names.items() if name == chunk.factor)
        if self.carry is not None and self.axes.counts(root):
            return self._scan_from(chunk, root, operands)
        bodies = [cut(body, self.axes, root, chunk.size) for body in self.bodies if body is not None]
        return chunk.bind(*operands, **_compat.body_params(self.context.primitive, self.context.params, bodies))

    def _scan_from(self, chunk: Chunk, root: Node, operands: Sequence[Any]) -> Sequence[Any]:
        """A scan whose body knows where the chunk begins."""
        (body,) = self.bodies
        assert body is not None and self.carry is not None
        step = on_chunk(body, self.axes, root, chunk.size, chunk.offset)
        first, count = self.carry
        consts, start, rows = operands[:first], operands[first : first + count], operands[first + count :]

        def turn(carry: Any, row: Any) -> tuple[Any, Any]:
            made = evaluate(body.jaxpr, [*consts, *carry, *row], step)
            return tuple(made[:count]), tuple(made[count:])

        ends, stacked = lax.scan(turn, tuple(start), tuple(rows), **_compat.scan_options(self.context))
        return [*ends, *stacked]


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
    flow = _Flow(context, operands, [[v] for v in outside], rows, (consts, carry))

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
        carried={"t": carried, **{name: _adding(flow, name, consts) for name in flow.sums}},
        replay=flow.replay,
        apart={name: results for name, results in flow.apart().items() if name not in flow.sums},
        counted=frozenset(name for root, name in flow.names.items() if flow.axes.counts(root)),
        whole=WHOLE,
    )


def _adding(flow: _Flow, name: str, consts: int, keeps_lost: bool = False) -> Carried:
    """A scan that sums over an index: the sums of each chunk are added to those so far.

    Args:
      flow: the scan's bodies.
      name: the index.
      consts: how many constants the scan has.
      keeps_lost: whether what the roundings of the sums lose is kept beside them.
    """
    results, found = flow.context.results, flow.sums[name]
    unplaced, totals = sorted(flow.apart()[name]), sorted(found.totals)
    inits = frozenset(consts + k for k in found.totals | found.shared)
    lossy = [k for k in unplaced if keeps_lost and k in found.all and jnp.issubdtype(results[k].dtype, jnp.inexact)]

    def start(context: EquationContext, *firsts: Any) -> list[Any]:
        zeros = {k: _compat.zeros(results[k]) for k in unplaced}
        first = zeros | dict(zip(totals, firsts, strict=True))
        return [*(sums.widened(first[k]) for k in unplaced), *(sums.widened(zeros[k]) for k in lossy)]

    def step(chunk: Chunk, state: list[Any], *operands: Any) -> tuple[list[Any], list[Any]]:
        given = list(operands)
        for k in totals:
            given[consts + k] = _compat.zeros(results[k])
        for k in found.shared:
            given[consts + k] = jnp.where(chunk.offset == 0, given[consts + k], jnp.zeros_like(given[consts + k]))
        made = flow.replay(chunk, *given)
        so_far = dict(zip(unplaced, state, strict=False))
        lost = dict(zip(lossy, state[len(unplaced) :], strict=True))
        for k in unplaced:
            more = sums.widened(made[k])
            if k in lost:
                so_far[k], lost[k] = sums.add(so_far[k], lost[k], more)
            else:
                so_far[k] = so_far[k] + more if k in found.all else more
        return [r for k, r in enumerate(made) if k not in so_far], [*so_far.values(), *lost.values()]

    def finish(context: EquationContext, state: list[Any]) -> list[Any]:
        lost = dict(zip(lossy, state[len(unplaced) :], strict=True))
        ends = zip(unplaced, state, strict=False)
        return [(end + lost[k] if k in lost else end).astype(results[k].dtype) for k, end in ends]

    return Carried(
        start=start,
        step=step,
        finish=finish,
        into=tuple(consts + k for k in totals),
        reverse=None,
        exact=not any(jnp.issubdtype(results[k].dtype, jnp.inexact) for k in found.all),
        adds=Adds(results=found.all, inits=inits),
        many=None if keeps_lost else _adding(flow, name, consts, keeps_lost=True),
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
