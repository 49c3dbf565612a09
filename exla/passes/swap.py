"""The swap pass: the operands of a matrix product are multiplied in the order in which they need not be copied.

    rewrite: dot_general(v, p) -> transpose(dot_general(p, v))

A product reads its left operand by rows and its right one by columns: batch axes first, then on the left the free axes
before the contracted ones, on the right after them. Einsum puts the operands where they please the result, so that in
attention the probabilities may stand on the right with their contracted axis last; XLA:CPU then transposes them all, a
copy as large as what the split was to avoid. On the other side they are read as they lie, and only the small result is
transposed. The sums are the same sums; under numerics="exact" nothing is swapped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from jax import lax

from exla import _compat
from exla.errors import ReplayMiss
from exla.ir.memory import Path
from exla.ir.products import axes_of, copied_bytes
from exla.ir.program import Program
from exla.passes.decisions import Swap
from exla.passes.paths import at_site, bodies_to_rewrite
from exla.passes.rewritten import rewritten


def enumerate_swaps(program: Program, path: Path = ()) -> Iterator[Swap]:
    """Offer to swap the operands of each product that copies less of them in the other order.

    Args:
      program: the program.
      path: where it is.
    """
    for position, eqn in enumerate(program.eqns):
        if _can_swap(eqn) and copied_bytes(program, _swapped(eqn)) < copied_bytes(program, eqn):
            yield Swap(path=path, site=program.site(position))
    for body, inner in bodies_to_rewrite(program, path):
        yield from enumerate_swaps(body, inner)


def apply_swap(program: Program, decision: Swap) -> Program:
    """Replay a swap.

    Raises:
      ReplayMiss: if there is no such product.
    """

    def change(inner: Program, position: int) -> Program:
        eqn = inner.eqns[position]
        if not _can_swap(eqn):
            raise ReplayMiss(f"{decision}: equation {position} is no product whose operands can be swapped")
        return rewritten(inner, position, eqn.invars, lambda get: [_evaluated(eqn, get)])

    return at_site(program, decision, change)


def _can_swap(eqn: Any) -> bool:
    return eqn.primitive.name == "dot_general" and eqn.params.get("out_sharding") is None


def _swapped(eqn: Any) -> Any:
    """The equation with its operands in the other order; its result is not that of the equation yet."""
    contracted, batched = eqn.params["dimension_numbers"]
    numbers = (tuple(reversed(contracted)), tuple(reversed(batched)))
    return eqn.replace(invars=eqn.invars[::-1], params={**eqn.params, "dimension_numbers": numbers})


def _evaluated(eqn: Any, get: Callable[[Any], Any]) -> Any:
    """The product of the operands in the other order, its axes in the order of the result."""
    swapped = _swapped(eqn)
    (product,) = _compat.bind(swapped, *(get(v) for v in swapped.invars))
    (batched, _, left), (_, _, right) = (axes_of(eqn, side) for side in (0, 1))
    first, middle, last = len(batched), len(batched) + len(right), len(batched) + len(right) + len(left)
    return lax.transpose(product, (*range(first), *range(middle, last), *range(first, middle)))
