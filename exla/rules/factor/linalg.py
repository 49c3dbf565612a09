"""Linear algebra and transforms: leading batch axes are factors, the matrices themselves are whole.

A triangular solve has one more: the columns of the right-hand side are independent of each other.

Libraries want matrices column by column, and XLA:CPU has what a chunk is a slice of in that order then: it copies the
whole argument before the loop. So a chunk has one axis more, of one index, beyond which XLA seeks no order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax import lax

from exla.ir.factors import FACTOR_RULES, Chunk, EquationContext, FactorRule, axis_names, tokens

CORE_RANK = {
    "cholesky": 2,
    "lu": 2,
    "qr": 2,
    "geqrf": 2,
    "householder_product": 2,
    "eigh": 2,
    "svd": 2,
    "eig": 2,
    "schur": 2,
    "hessenberg": 2,
    "tridiagonal": 2,
    "symmetric_product": 2,
    "lu_pivots_to_permutation": 1,
}
"""Primitive -> how many trailing axes of its first operand it works on."""


@FACTOR_RULES.register(*CORE_RANK)
def batched(context: EquationContext) -> FactorRule:
    """`b0 _ _ -> b0 _ _`."""
    count = len(context.operands[0].shape) - CORE_RANK[context.primitive]
    return FactorRule(
        equation=_leading(context, count),
        replay=_in_order(count),
        whole=f"`{context.primitive}` needs its matrices whole",
    )


def _in_order(count: int) -> Callable[..., Sequence[Any]]:
    """Replays on so many batch axes and one more."""

    def replay(chunk: Chunk, *operands: Any) -> Sequence[Any]:
        made = chunk.bind(*(lax.expand_dims(x, (count,)) for x in operands))
        return [lax.squeeze(x, (count,)) for x in made]

    return replay


@FACTOR_RULES.register("fft")
def fft(context: EquationContext) -> FactorRule:
    """`b0 _ -> b0 _`."""
    count = len(context.operands[0].shape) - len(context.params["fft_lengths"])
    return FactorRule(equation=_leading(context, count), whole="fft transforms the axis")


def _leading(context: EquationContext, count: int) -> str:
    names = axis_names(count, "b")

    def side(values: tuple) -> str:
        return ", ".join(tokens([*names, *[None] * (len(v.shape) - count)]) for v in values)

    return f"{side(context.operands)} -> {side(context.results)}"


@FACTOR_RULES.register("tridiagonal_solve")
def tridiagonal_solve(context: EquationContext) -> FactorRule:
    """`b0 _, b0 _, b0 _, b0 _ c -> b0 _ c`."""
    count = len(context.operands[0].shape) - 1
    names = axis_names(count, "b")
    diagonal, sides = tokens([*names, None]), tokens([*names, None, "c"])
    return FactorRule(
        equation=f"{diagonal}, {diagonal}, {diagonal}, {sides} -> {sides}",
        replay=_in_order(count),
        whole="tridiagonal_solve needs its matrix whole",
    )


@FACTOR_RULES.register("triangular_solve")
def triangular_solve(context: EquationContext) -> FactorRule:
    """`b0 _ _, b0 _ c -> b0 _ c`; with the matrix on the right, `b0 _ _, b0 c _ -> b0 c _`."""
    count = len(context.operands[0].shape) - 2
    names = axis_names(count, "b")
    sides = [*names, None, "c"] if context.params["left_side"] else [*names, "c", None]
    return FactorRule(
        equation=f"{tokens([*names, None, None])}, {tokens(sides)} -> {tokens(sides)}",
        replay=_in_order(count),
        whole="triangular_solve needs its matrix whole",
    )
