"""Sorting, selecting and cumulating: the axis that is ordered stays whole, all others are factors.

`top_k` is the exception: the k best of the whole axis are the k best of each chunk's k best, and with stable
merging the indices are those of `lax.top_k`. Its partial state is the pair (values, indices in the whole axis).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax import lax

from exla.ir.factors import FACTOR_RULES, Chunk, EquationContext, FactorRule, axis_names, tokens


def _all_but(rank: int, axis: int) -> str:
    return tokens([None if k == axis % rank else n for k, n in enumerate(axis_names(rank))])


@FACTOR_RULES.register("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
def cumulative(context: EquationContext) -> FactorRule:
    """`_ a1 -> _ a1`."""
    names = _all_but(len(context.results[0].shape), context.params["axis"])
    return FactorRule(equation=f"{names} -> {names}", whole="a cumulative operation runs along the axis")


@FACTOR_RULES.register("sort")
def sort(context: EquationContext) -> FactorRule:
    """`_ a1, _ a1 -> _ a1, _ a1`, keys and values together."""
    names = _all_but(len(context.results[0].shape), context.params["dimension"])
    side = ", ".join(names for _ in context.operands)
    return FactorRule(equation=f"{side} -> {side}", whole="sort orders the axis")


def _replay_top_k(chunk: Chunk, operand: Any) -> Sequence[Any]:
    if chunk.factor not in chunk.factors.rule.reduced:
        return chunk.bind(operand)
    values, indices = chunk.bind(operand, k=min(chunk.context.params["k"], chunk.size))
    return [values, lax.add(indices, lax.convert_element_type(chunk.offset, indices.dtype))]


@FACTOR_RULES.register("top_k")
def top_k(context: EquationContext) -> FactorRule:
    """`a0 a1 -> a0 _, a0 _` with a1 reduced by top_k where the selection is stable."""
    rank = len(context.operands[0].shape)
    axis = context.params.get("axis", rank - 1) % rank
    stable = context.params.get("is_stable", True)
    names: list[str | None] = list(axis_names(rank))
    kept = [None if k == axis else n for k, n in enumerate(names)]
    return FactorRule(
        equation=f"{tokens(names if stable else kept)} -> {tokens(kept)}, {tokens(kept)}",
        reduced={f"a{axis}": "top_k"} if stable else {},
        replay=_replay_top_k,
        whole="the selection is not stable",
    )


@FACTOR_RULES.register("approx_top_k")
def approx_top_k(context: EquationContext) -> FactorRule:
    """`a0 _ -> a0 _, a0 _`."""
    names = _all_but(len(context.operands[0].shape), context.params["reduction_dimension"])
    return FactorRule(equation=f"{names} -> {names}, {names}", whole="the approximate selection sees the whole axis")
