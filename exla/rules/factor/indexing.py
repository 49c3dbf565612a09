"""Gather and scatter: window axes taken entirely, batch axes and axes that are indexed one by one are factors.

A gather with `indices` of shape (batch…, depth) makes one window per batch index. Cutting a batch axis needs the
operand whole; cutting a window axis needs the indices whole. So does cutting an axis that an index takes one of: every
chunk looks for all indices, and what it has of them is picked from it.

A scatter's updates and operand are cut along window axes together. Cut along an axis that an index takes one of, every
chunk takes the updates that land in it and drops the others, in the order of the whole scatter. The updates themselves
are a carried factor: a chunk of them is written into what the chunks before it left. An axis on which windows of more
than one index begin anywhere stays whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from exla import _compat
from exla.ir.factors import FACTOR_RULES, Carried, Chunk, EquationContext, FactorRule, tokens
from exla.ir.primitives import SCATTERS


def _replay_gather(chunk: Chunk, operand: Any, indices: Any) -> Sequence[Any]:
    place = chunk.factors.operands[chunk.factor][0]
    sizes = list(chunk.context.params["slice_sizes"])
    if chunk.factor in chunk.factors.rule.reduced:
        return _look(chunk, operand, indices)
    if place is not None and place.axis not in chunk.context.params["dimension_numbers"].operand_batching_dims:
        sizes[place.axis] = operand.shape[place.axis]
    return chunk.bind(operand, indices, slice_sizes=tuple(sizes))


def _look(chunk: Chunk, operand: Any, indices: Any) -> list[Any]:
    """What a chunk has of an axis that an index takes one of: the windows, zero where they are not its own, and which.

    What lies on the axis nowhere is filled by the first chunk.
    """
    params, place = chunk.context.params, chunk.factors.operands[chunk.factor][0]
    assert place is not None
    numbers, axis = params["dimension_numbers"], place.axis
    extent = chunk.context.operands[0].shape[axis]
    component = numbers.start_index_map.index(axis)
    indices = _signed(indices)
    wanted = indices[..., component]
    if params["mode"] is not lax.GatherScatterMode.FILL_OR_DROP:
        wanted = _clamp(wanted, extent - 1)
    nowhere = (wanted < 0) | (wanted >= extent)
    here = wanted - chunk.offset.astype(wanted.dtype)
    mine = ((here >= 0) & (here < chunk.size)) | (nowhere & (chunk.offset == 0))
    shifted = lax.select(nowhere, lax.full_like(here, -1), _clamp(here, chunk.size - 1))
    components = _components(indices)
    components[component] = shifted
    (found,) = chunk.bind(operand, _together(components))
    batch = [k for k in range(found.ndim) if k not in numbers.offset_dims]
    mine = lax.broadcast_in_dim(mine, found.shape, batch)
    return [lax.select(mine, found, lax.full_like(found, 0)), mine]


def _components(indices: Any) -> list[Any]:
    """Indices by the axis of the operand that they are of."""
    return [indices[..., k] for k in range(indices.shape[-1])]


def _together(components: Sequence[Any]) -> Any:
    return lax.concatenate([c[..., None] for c in components], components[0].ndim)


def _clamp(indices: Any, last: Any) -> Any:
    whole = indices.dtype.type
    return lax.clamp(whole(0), indices, whole(last))


def _signed(indices: Any) -> Any:
    """Indices from which an offset can be subtracted.

    XLA needs them too: by an index of 8 bits it scatters one update, as a chunk of one has it, into the wrong row of
    more than 256.
    """
    signed = jnp.dtype(np.int64 if indices.dtype.itemsize > 4 else np.int32)
    if jnp.issubdtype(indices.dtype, jnp.unsignedinteger) and indices.dtype.itemsize == signed.itemsize:
        indices = jnp.minimum(indices, indices.dtype.type(jnp.iinfo(signed).max))
    return lax.convert_element_type(indices, signed)


@FACTOR_RULES.register("gather")
def gather(context: EquationContext) -> FactorRule:
    """`_ w1, b0 _ -> b0 w1`, batching axes shared by all three; an axis that an index takes one of is reduced."""
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
    for axis, place in zip(_window_axes(context, numbers.collapsed_slice_dims), numbers.offset_dims, strict=True):
        entire = context.params["slice_sizes"][axis] == operand.shape[axis]
        if entire and axis not in numbers.start_index_map:
            left[axis] = result[place] = f"w{axis}"
    searched = _taken_one_by_one(context, numbers.start_index_map, context.params["slice_sizes"])
    if _compat.is_extended(operand.dtype):  # keys are picked whole
        searched = []
    for axis in searched:
        left[axis] = f"s{axis}"
    return FactorRule(
        equation=f"{tokens(left)}, {tokens(index)} -> {tokens(result)}",
        reduced={f"s{axis}": "pick" for axis in searched},
        replay=_replay_gather,
        whole="gather looks anywhere along the axis",
    )


def _window_axes(context: EquationContext, dropped: Sequence[int]) -> list[int]:
    """The axes of the operand that a gather's or scatter's windows have, given those that they drop."""
    gone = {*dropped, *context.params["dimension_numbers"].operand_batching_dims}
    return [axis for axis in range(len(context.operands[0].shape)) if axis not in gone]


def _taken_one_by_one(context: EquationContext, indexed: Sequence[int], lengths: Sequence[int]) -> list[int]:
    """The indexed axes of an operand along which a window has one index, given the lengths of windows by axis."""
    known = lax.GatherScatterMode.FILL_OR_DROP, lax.GatherScatterMode.CLIP, lax.GatherScatterMode.PROMISE_IN_BOUNDS
    return [axis for axis in indexed if lengths[axis] == 1] if context.params["mode"] in known else []


def _write(chunk: Chunk, state: list[Any], _: Any, indices: Any, updates: Any) -> tuple[list[Any], list[Any]]:
    return [], chunk.bind(*state, _signed(indices), updates)


_INTO_OPERAND = Carried(
    start=lambda context, operand: [operand], step=_write, finish=lambda context, state: state, into=(0,)
)


def _replay_scatter(chunk: Chunk, operand: Any, indices: Any, updates: Any) -> Sequence[Any]:
    """On a chunk of an axis that an index takes one of, what lands elsewhere is dropped."""
    params, place = chunk.context.params, chunk.factors.operands[chunk.factor][0]
    numbers = params["dimension_numbers"]
    indices = _signed(indices)
    if place is None or place.axis not in numbers.scatter_dims_to_operand_dims:
        return chunk.bind(operand, indices, updates)
    components = _components(indices)
    if params["mode"] is lax.GatherScatterMode.CLIP:
        extents, lengths = chunk.context.operands[0].shape, _window_lengths(chunk.context)
        axes = numbers.scatter_dims_to_operand_dims
        components = [_clamp(c, extents[a] - lengths[a]) for c, a in zip(components, axes, strict=True)]
    component = numbers.scatter_dims_to_operand_dims.index(place.axis)
    components[component] = components[component] - chunk.offset.astype(indices.dtype)
    return chunk.bind(operand, _together(components), updates, mode=lax.GatherScatterMode.FILL_OR_DROP)


def _window_lengths(context: EquationContext) -> list[int]:
    """How long a scatter's windows are along each axis of what it writes into."""
    operand, _, updates = context.operands
    numbers = context.params["dimension_numbers"]
    lengths, windows = [1] * len(operand.shape), _window_axes(context, numbers.inserted_window_dims)
    for axis, place in zip(windows, numbers.update_window_dims, strict=True):
        lengths[axis] = updates.shape[place]
    return lengths


@FACTOR_RULES.register(*SCATTERS)
def scatter(context: EquationContext) -> FactorRule:
    """`s0 w1, u0 _, u0 w1 -> s0 w1` with u0 carried, batching axes shared by all."""
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
    lengths, windows = _window_lengths(context), _window_axes(context, numbers.inserted_window_dims)
    for axis, place in zip(windows, numbers.update_window_dims, strict=True):
        if lengths[axis] == operand.shape[axis] and axis not in numbers.scatter_dims_to_operand_dims:
            left[axis] = update[place] = f"w{axis}"
    entered = _taken_one_by_one(context, numbers.scatter_dims_to_operand_dims, lengths)
    for axis in entered:
        left[axis] = f"s{axis}"
    return FactorRule(
        equation=f"{tokens(left)}, {tokens(index)}, {tokens(update)} -> {tokens(left)}",
        carried={name: _INTO_OPERAND for name in index if name is not None and name[0] == "u"},
        replay=_replay_scatter,
        counted=frozenset(f"s{axis}" for axis in entered),
        whole="scatter writes anywhere along the axis",
    )
