"""The arrange pass: what a chunk loop multiplies whole is transposed once, before the loop.

    rewrite: loop(s = q[chunk] k in another order than it lies, k) -> t = transpose(k); loop(s = q[chunk] t, t)

XLA:CPU multiplies batches of matrices whose batch axes lead, the contracted axes at the inner side; any other operand
it transposes first, and in a chunk loop it does so on every trip. Attention over (position, head, channel) transposes
all keys and all values for every chunk of queries. The transposed operand stays alive throughout the loop, which the
limit must allow; so it is a decision, made after the splits. The product is the one that XLA makes anyway: no bit
changes.

And the other way round: what a program transposes for products alone, as in `x.T @ y`, XLA reads as it lies, but not
from within a loop. So a split ends with `as_they_lie`, after which no loop needs both `x` and `x.T`. That is never a
decision.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from jax import lax

from exla import _compat
from exla._compat import Literal
from exla.errors import ReplayMiss
from exla.ir.memory import Path
from exla.ir.products import Order, axes_of, is_ordered, sizes_of, wanted_order
from exla.ir.program import Program, trace_function
from exla.passes.decisions import Arrange
from exla.passes.paths import at_site, bodies_to_rewrite
from exla.passes.split.loop import Loop

LONG = 16
"""Indices that a product sums at least, to read an operand as it lies: sums of three take a tenth longer so."""


def enumerate_arrangements(program: Program, path: Path = ()) -> Iterator[Arrange]:
    """Offer to transpose each operand that a chunk loop only multiplies, whole and in an unsuited order.

    Args:
      program: the program.
      path: where it is.

    Yields:
      One decision for each such operand, those of outer loops first.
    """
    for position, eqn in enumerate(program.eqns):
        if not _is_loop(eqn):
            continue
        loop: Loop = eqn.params["loop"]
        for k, operand in enumerate(eqn.invars):
            if not isinstance(operand, Literal) and _order_in(loop, k) is not None:
                yield Arrange(path=path, site=program.site(position), operand=k)
        yield from enumerate_arrangements(loop.body, (*path, (position, 0)))
    for body, inner in bodies_to_rewrite(program, path):
        yield from enumerate_arrangements(body, inner)


def apply_arrange(program: Program, decision: Arrange) -> Program:
    """Replay an arrangement.

    Raises:
      ReplayMiss: if there is no such operand.
    """
    return at_site(program, decision, lambda inner, position: _arranged(inner, position, decision))


def as_they_lie(program: Program) -> Program:
    """Let chunk loops multiply what a program transposes for products alone as it was before.

    Args:
      program: what a split has left.

    Returns:
      The program, without the transpositions that only loops read and can do without.
    """
    for position in reversed(range(len(program.eqns))):
        eqn = program.eqns[position]
        if eqn.primitive.name == "transpose" and isinstance(eqn.invars[0], _compat.Var):
            program = _unturned(program, position)
    return program


def _unturned(program: Program, position: int) -> Program:
    """The program without loops that read what an equation transposes; the same one where that is not possible."""
    turned = program.eqns[position]
    (made,) = turned.outvars
    order = tuple(sorted(range(len(made.aval.shape)), key=turned.params["permutation"].__getitem__))
    readers = program.consumers.get(made, ())
    loops = [(i, k) for i, k in readers if _is_loop(program.eqns[i])]
    others = [program.eqns[i] for i, _ in readers if not _is_loop(program.eqns[i])]
    if not loops or made in program.outvars or any(eqn.primitive.name != "dot_general" for eqn in others):
        return program
    for i, k in loops:
        products = _products(program.eqns[i].params["loop"], k)
        if not products or not all(_is_read_as_it_lies(e, s, order) for e, s in products):
            return program
    eqns = list(program.eqns)
    for i, k in loops:
        eqns[i] = _reading(eqns[i], k, turned.invars[0], order)
    if not others:
        del eqns[position]
    return Program(jaxpr=program.jaxpr.replace(eqns=eqns), consts=program.consts)


def _is_read_as_it_lies(eqn: Any, side: int, order: Order) -> bool:
    """Whether a product is as fast of an operand whose axes lie in an order: what it sums must not be short then."""
    return sizes_of(eqn, side)[1] >= LONG and is_ordered(eqn, side, order) and _keeps_free(eqn, side, order)


def _arranged(program: Program, position: int, decision: Arrange) -> Program:
    eqn, k = program.eqns[position], decision.operand
    is_loop = _is_loop(eqn) and 0 <= k < len(eqn.invars) and not isinstance(eqn.invars[k], Literal)
    order = _order_in(eqn.params["loop"], k) if is_loop else None
    if order is None:
        raise ReplayMiss(f"{decision}: it is no operand that the loop only multiplies, in another order than it lies")
    made = _transposed(program, eqn.invars[k], order, position)
    eqns = list(program.eqns)
    eqns[position] = _reading(eqn, k, made.outvars[0], order)
    if made not in eqns:
        eqns.insert(position, made)
    return Program(jaxpr=program.jaxpr.replace(eqns=eqns), consts=program.consts)


def _transposed(program: Program, var: Any, order: Order, before: int) -> Any:
    """The equation that transposes a value: one that is there already, or a new one."""
    for eqn in program.eqns[:before]:
        if eqn.primitive.name == "transpose" and eqn.invars == [var] and eqn.params["permutation"] == order:
            return eqn
    traced = trace_function(lambda x: [lax.transpose(x, order)], [var.aval])
    return traced.eqns[0].replace(invars=[var], outvars=[_compat.Var(traced.outvars[0].aval)])


def _reading(eqn: Any, k: int, var: Any, order: Order) -> Any:
    """A loop's equation that reads a transposed value in place of its operand."""
    loop: Loop = eqn.params["loop"]
    body = _with_transposed(loop, loop.body, k, order)
    tail = None if loop.tail is None else _with_transposed(loop, loop.tail, k, order)
    invars = [*eqn.invars[:k], var, *eqn.invars[k + 1 :]]
    return eqn.replace(invars=invars, params={**eqn.params, "loop": replace(loop, body=body, tail=tail)})


def _with_transposed(loop: Loop, body: Program, k: int, order: Order) -> Program:
    """A loop's body whose input for an operand is transposed."""
    old = _input_of(loop, body, k)
    new = _compat.Var(_compat.shaped_array([old.aval.shape[axis] for axis in order], old.aval.dtype))
    eqns = list(body.eqns)
    for position, index in body.consumers.get(old, ()):
        eqn = eqns[position]
        if _is_loop(eqn):
            eqns[position] = _reading(eqn, index, new, order)
            continue
        contracted, batched = (list(pair) for pair in eqn.params["dimension_numbers"])
        contracted[index] = tuple(order.index(axis) for axis in contracted[index])
        batched[index] = tuple(order.index(axis) for axis in batched[index])
        numbers = (tuple(map(tuple, contracted)), tuple(map(tuple, batched)))
        invars = [*eqn.invars[:index], new, *eqn.invars[index + 1 :]]
        eqns[position] = eqn.replace(invars=invars, params={**eqn.params, "dimension_numbers": numbers})
    invars = [new if v is old else v for v in body.invars]
    return Program(jaxpr=body.jaxpr.replace(eqns=eqns, invars=invars), consts=body.consts)


def _input_of(loop: Loop, body: Program, k: int) -> Any:
    """The input of a body for an operand that is passed whole; None where it is not."""
    return next((v for v, operand, placement in loop.inputs(body) if operand == k and placement is None), None)


def _order_in(loop: Loop, k: int) -> Order | None:
    """The order in which most of a loop's products want an operand; None where none is better than how it lies."""
    products = _products(loop, k) or []

    def copies(order: Order | None) -> int:
        return sum(not is_ordered(eqn, side, order) for eqn, side in products)

    wanted = dict.fromkeys(wanted_order(eqn, side) for eqn, side in products)
    possible = (order for order in wanted if all(_keeps_free(eqn, side, order) for eqn, side in products))
    best = min(possible, key=copies, default=None)
    return best if best is not None and copies(best) < copies(None) else None


def _products(loop: Loop, k: int) -> list[tuple[Any, int]] | None:
    """The products that read an operand, in loops within too, and at which side; None where something else does."""
    body = loop.body
    var = _input_of(loop, body, k)
    if var is None or var in body.outvars:
        return None
    found: list[tuple[Any, int]] = []
    for position, index in body.consumers.get(var, ()):
        eqn = body.eqns[position]
        if eqn.primitive.name == "dot_general":
            found.append((eqn, index))
            continue
        inner = _products(eqn.params["loop"], index) if _is_loop(eqn) else None
        if inner is None:
            return None
        found += inner
    return found


def _is_loop(eqn: Any) -> bool:
    return eqn.primitive.name == "exla_split"


def _keeps_free(eqn: Any, side: int, order: Order) -> bool:
    """Whether the free axes of a product stay in their order, which is that of its result."""
    return sorted(free := [order.index(axis) for axis in axes_of(eqn, side)[2]]) == free
