"""Gather and scatter: window axes taken entirely and batch axes are factors, indexed axes are whole.

A gather with `indices` of shape (batch…, depth) makes one window per batch index. Cutting a batch axis needs the
operand whole; cutting a window axis needs the indices whole. A scatter's updates and operand are cut along window
axes together; its indexed axes are whole, because any update may land anywhere. Its updates themselves are a carried
factor: a chunk of them is written into what the chunks before it left, in the order of the whole scatter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from exla.ir.factors import FACTOR_RULES, Carried, Chunk, EquationContext, FactorRule, tokens
from exla.ir.primitives import SCATTERS


def _replay_gather(chunk: Chunk, operand: Any, indices: Any) -> Sequence[Any]:
    place = chunk.factors.operands[chunk.factor][0]
    sizes = list(chunk.context.params["slice_sizes"])
    if place is not None and place.axis not in chunk.context.params["dimension_numbers"].operand_batching_dims:
        sizes[place.axis] = operand.shape[place.axis]
    return chunk.bind(operand, indices, slice_sizes=tuple(sizes))


@FACTOR_RULES.register("gather")
def gather(context: EquationContext) -> FactorRule:
    """`_ w1, b0 _ -> b0 w1`, batching axes shared by all three."""
    operand, indices = context.operands
    rank = len(context.results[0].shape)
    numbers = context.params["dimension_numbers"]
    left: list[str | None] = [None] * len(operand.shape)
    index: list[str | None] = [f"b{k}" for k in range(len(indices.shape) - 1)] + [None]
    result: list[str | None] = [None] * rank
    batch = [axis for axis in range(rank) if axis not in numbers.offset_dims]
    for k, axis in enumerate(batch):
        result[axis] = index[k]
    for axis, k in zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True):
        left[axis] = index[k]
    gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    windows = [axis for axis in range(len(operand.shape)) if axis not in gone]
    for axis, place in zip(windows, numbers.offset_dims, strict=True):
        entire = context.params["slice_sizes"][axis] == operand.shape[axis]
        if entire and axis not in numbers.start_index_map:
            left[axis] = result[place] = f"w{axis}"
    return FactorRule(
        equation=f"{tokens(left)}, {tokens(index)} -> {tokens(result)}",
        replay=_replay_gather,
        whole="gather looks anywhere along the axis",
    )


def _write(chunk: Chunk, state: list[Any], _: Any, indices: Any, updates: Any) -> tuple[list[Any], list[Any]]:
    return [], chunk.bind(*state, indices, updates)


_INTO_OPERAND = Carried(
    start=lambda context, operand: [operand], step=_write, finish=lambda context, state: state, into=(0,)
)


@FACTOR_RULES.register(*SCATTERS)
def scatter(context: EquationContext) -> FactorRule:
    """`_ w1, u0 _, u0 w1 -> _ w1` with u0 carried, batching axes shared by all."""
    if len(context.operands) != 3:
        whole = ", ".join(tokens([None] * len(v.shape)) for v in context.operands)
        right = ", ".join(tokens([None] * len(v.shape)) for v in context.results)
        return FactorRule(equation=f"{whole} -> {right}", whole="scatter of several operands")
    operand, indices, updates = context.operands
    numbers = context.params["dimension_numbers"]
    left: list[str | None] = [None] * len(operand.shape)
    index: list[str | None] = [None] * len(indices.shape)
    update: list[str | None] = [None] * len(updates.shape)
    batch = [axis for axis in range(len(updates.shape)) if axis not in numbers.update_window_dims]
    for k, axis in enumerate(batch):
        index[k] = update[axis] = f"u{k}"
    for axis, k in zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True):
        left[axis] = index[k] = update[batch[k]] = f"b{k}"
    gone = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    windows = [axis for axis in range(len(operand.shape)) if axis not in gone]
    for axis, place in zip(windows, numbers.update_window_dims, strict=True):
        entire = updates.shape[place] == operand.shape[axis]
        if entire and axis not in numbers.scatter_dims_to_operand_dims:
            left[axis] = update[place] = f"w{axis}"
    return FactorRule(
        equation=f"{tokens(left)}, {tokens(index)}, {tokens(update)} -> {tokens(left)}",
        carried={name: _INTO_OPERAND for name in index if name is not None and name[0] == "u"},
        whole="scatter writes anywhere along the axis",
    )
