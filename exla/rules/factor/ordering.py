"""Sorting, selecting and cumulating: the axis that is sorted stays whole, all others are factors.

A cumulative operation carries what has come out so far from chunk to chunk.

`top_k` is the exception: the k best of the whole axis are the k best of each chunk's k best, and with stable
merging the indices are those of `lax.top_k`. Its partial state is the pair (values, indices in the whole axis).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from exla import _compat
from exla.ir import sums
from exla.ir.factors import FACTOR_RULES, Carried, Chunk, EquationContext, FactorRule, axis_names, tokens
from exla.ir.identities import full, highest, lowest


def _all_but(rank: int, axis: int) -> str:
    return tokens([None if k == axis % rank else n for k, n in enumerate(axis_names(rank))])


CUMULATIVE: dict[str, Callable[[Any, Any], Any]] = {
    "cumsum": lax.add,
    "cumprod": lax.mul,
    "cummax": lax.max,
    "cummin": lax.min,
    "cumlogsumexp": jnp.logaddexp,
}
"""Primitive -> the operation that it accumulates with."""

IDENTITIES = {
    "cumsum": full(0),
    "cumprod": full(1),
    "cummax": lowest,
    "cummin": highest,
    "cumlogsumexp": lowest,
}

ORDER_FREE = ("cummax", "cummin")
"""Those that give the same bits in whatever groups they accumulate."""


@FACTOR_RULES.register(*CUMULATIVE)
def cumulative(context: EquationContext) -> FactorRule:
    """`a0 a1 -> a0 a1` with what has come out so far carried along a0, of sums with what their roundings lost."""
    operand = context.operands[0]
    rank = len(operand.shape)
    names = axis_names(rank)
    axis, reverse = context.params["axis"] % rank, context.params["reverse"]
    accumulate = CUMULATIVE[context.primitive]
    keeps_lost = context.primitive == "cumsum" and jnp.issubdtype(operand.dtype, jnp.inexact)

    def step(chunk: Chunk, state: list[Any], values: Any) -> tuple[list[Any], list[Any]]:
        (local,) = chunk.bind(values)
        last = 0 if reverse else chunk.size - 1
        if keeps_lost:
            total, lost = state
            more = lax.slice_in_dim(local, last, last + 1, axis=axis)
            return [total + lost + local], list(sums.add(total, lost, more))
        done = accumulate(state[0], local)
        return [done], [lax.slice_in_dim(done, last, last + 1, axis=axis)]

    def start(context: EquationContext) -> list[Any]:
        shape = tuple(1 if k == axis else n for k, n in enumerate(context.operands[0].shape))
        return [IDENTITIES[context.primitive](_compat.shaped_array(shape, operand.dtype))] * (2 if keeps_lost else 1)

    return FactorRule(
        equation=f"{tokens(names)} -> {tokens(names)}",
        carried={names[axis]: Carried(start=start, step=step, reverse=reverse, exact=context.primitive in ORDER_FREE)},
    )


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
