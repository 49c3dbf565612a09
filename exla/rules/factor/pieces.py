"""Putting values together and taking pieces: concatenate, split, slice, pad, rev, tile, dynamic slices.

An axis that is kept entirely is a factor. One that is sliced, padded or joined is a factor of the result that is
shifted against that of the operand: a chunk of `x[1:]` needs a chunk of `x` that starts one later. One that is
reversed, repeated or cut at a place that is only known when it runs is whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from exla.ir.factors import FACTOR_RULES, Chunk, EquationContext, FactorRule, Placement, axis_names, inside, tokens


def _kept(shape: Sequence[int], kept: Sequence[bool]) -> list[str | None]:
    return [n if keep else None for n, keep in zip(axis_names(len(shape)), kept, strict=True)]


MOST_JOINED = 8
"""Up to how many arrays a chunk of a concatenation looks into."""


def _replay_concatenate(chunk: Chunk, *operands: Any) -> Sequence[Any]:
    """Along the joined axis: each operand where the chunk lies in it."""
    axis = chunk.context.params["dimension"]
    place = chunk.factors.results[chunk.factor][0]
    if place is None or place.axis != axis:
        return chunk.bind(*operands)
    shape = [chunk.size if k == axis else 1 for k in range(operands[0].ndim)]
    index = lax.add(lax.broadcasted_iota(np.int32, shape, axis), chunk.offset)  # jnp's takes longer to trace
    joined, first = operands[0], 0
    for operand, before in zip(operands[1:], chunk.context.operands, strict=False):
        first += before.shape[axis]
        is_there = lax.broadcast_in_dim(lax.ge(index, np.int32(first)), operand.shape, range(operand.ndim))
        joined = lax.select(is_there, operand, joined)
    return [joined]


@FACTOR_RULES.register("concatenate")
def concatenate(context: EquationContext) -> FactorRule:
    """`_ a1, _ a1 -> a0 a1`, the pieces along a0 one after the other."""
    axis = context.params["dimension"]
    shape = context.results[0].shape
    kept = _kept(shape, [k != axis for k in range(len(shape))])
    left = ", ".join(tokens(kept) for _ in context.operands)
    if len(context.operands) > MOST_JOINED:
        return FactorRule(equation=f"{left} -> {tokens(kept)}", whole="concatenate joins many arrays along the axis")
    name, first, places = f"a{axis}", 0, {}
    for k, operand in enumerate(context.operands):
        places[k] = Placement(axis=axis, halo=(first, 0))
        first += operand.shape[axis]
    return FactorRule(
        equation=f"{left} -> {tokens(axis_names(len(shape)))}",
        replay=_replay_concatenate,
        windows={name: places},
        whole="concatenate joins along the axis",
    )


@FACTOR_RULES.register("split")
def split(context: EquationContext) -> FactorRule:
    """`_ a1 -> _ a1, _ a1`."""
    axis = context.params["axis"]
    shape = context.operands[0].shape
    names = tokens(_kept(shape, [k != axis for k in range(len(shape))]))
    right = ", ".join(names for _ in context.results)
    return FactorRule(equation=f"{names} -> {right}", whole="split cuts the axis")


def _replay_slice(chunk: Chunk, operand: Any) -> Sequence[Any]:
    p = chunk.context.params
    place = chunk.factors.operands[chunk.factor][0]
    assert place is not None
    starts, limits, strides = (list(p[key] or (1,) * operand.ndim) for key in PARTS)
    limits[place.axis] = operand.shape[place.axis]
    if place.halo is not None:
        starts[place.axis] = 0
    return chunk.bind(
        operand, start_indices=tuple(starts), limit_indices=tuple(limits), strides=p["strides"] and tuple(strides)
    )


PARTS = ("start_indices", "limit_indices", "strides")


@FACTOR_RULES.register("slice")
def slice_(context: EquationContext) -> FactorRule:
    """`_ a1 -> a0 a1`: a0 is shifted against the operand where only a part of that is taken."""
    operand, result = context.operands[0], context.results[0]
    entire = [a == b for a, b in zip(operand.shape, result.shape, strict=True)]
    strides = context.params["strides"] or (1,) * len(entire)
    windows = {
        f"a{k}": {0: Placement(axis=k, block=stride, halo=(-start, 1 - stride))}
        for k, (start, stride) in enumerate(zip(context.params["start_indices"], strides, strict=True))
        if not entire[k]
    }
    return FactorRule(
        equation=f"{tokens(_kept(operand.shape, entire))} -> {tokens(axis_names(len(entire)))}",
        replay=_replay_slice,
        windows=windows,
        whole="slice takes a part of the axis",
    )


def _replay_pad(chunk: Chunk, operand: Any, value: Any) -> Sequence[Any]:
    place = chunk.factors.operands[chunk.factor][0]
    assert place is not None
    config = list(chunk.context.params["padding_config"])
    if place.halo is not None:
        config[place.axis] = (0, 0, 0)
    return chunk.bind(chunk.mask_outside(0, operand, value), value, padding_config=tuple(config))


@FACTOR_RULES.register("pad")
def pad(context: EquationContext) -> FactorRule:
    """`_ a1,  -> a0 a1`: a0 is shifted against the operand where that is padded; spread axes stay whole."""
    names = axis_names(len(context.operands[0].shape))
    config = [tuple(c) for c in context.params["padding_config"]]
    left = [n if c == (0, 0, 0) else None for n, c in zip(names, config, strict=True)]
    right = [n if c[2] == 0 else None for n, c in zip(names, config, strict=True)]
    windows = {
        n: {0: Placement(axis=k, halo=(c[0], 0))}
        for k, (n, c) in enumerate(zip(names, config, strict=True))
        if c != (0, 0, 0) and c[2] == 0
    }
    return FactorRule(
        equation=f"{tokens(left)},  -> {tokens(right)}",
        replay=_replay_pad,
        windows=windows,
        whole="pad changes the axis",
    )


@FACTOR_RULES.register("rev")
def rev(context: EquationContext) -> FactorRule:
    """`_ a1 -> _ a1`: axes that keep their direction."""
    shape = context.operands[0].shape
    names = tokens(_kept(shape, [k not in context.params["dimensions"] for k in range(len(shape))]))
    return FactorRule(equation=f"{names} -> {names}", whole="rev reverses the axis")


@FACTOR_RULES.register("tile")
def tile(context: EquationContext) -> FactorRule:
    """`_ a1 -> _ a1`: axes that are not repeated."""
    operand, result = context.operands[0], context.results[0]
    names = tokens(_kept(operand.shape, [a == b for a, b in zip(operand.shape, result.shape, strict=True)]))
    return FactorRule(equation=f"{names} -> {names}", whole="tile repeats the axis")


def _replay_dynamic_slice(chunk: Chunk, operand: Any, *starts: Any) -> Sequence[Any]:
    return chunk.bind(operand, *starts, slice_sizes=chunk.result_shape())


@FACTOR_RULES.register("dynamic_slice")
def dynamic_slice(context: EquationContext) -> FactorRule:
    """`_ a1, , -> _ a1`: axes that are taken entirely (their start is clamped to 0)."""
    operand, *starts = context.operands
    result = context.results[0]
    names = tokens(_kept(operand.shape, [a == b for a, b in zip(operand.shape, result.shape, strict=True)]))
    left = ", ".join([names, *("" if not s.shape else "_" for s in starts)])
    return FactorRule(
        equation=f"{left} -> {names}", replay=_replay_dynamic_slice, whole="dynamic_slice takes a part of the axis"
    )


def _replay_dynamic_update_slice(chunk: Chunk, operand: Any, update: Any, *starts: Any) -> Sequence[Any]:
    """Along an axis of which a part is written: that of the update which lies in the chunk, if any does."""
    place = chunk.factors.results[chunk.factor][0]
    assert place is not None
    axis, written = place.axis, update.shape[place.axis]
    if chunk.factors.operands[chunk.factor][1] is not None:
        return chunk.bind(operand, update, *starts)
    first = inside(starts[axis], chunk.context.operands[0].shape[axis] - written)
    if written == 1:
        there = jnp.broadcast_to(update, [chunk.size if k == axis else n for k, n in enumerate(update.shape)])
    else:
        beyond = [(chunk.size, chunk.size, 0) if k == axis else (0, 0, 0) for k in range(update.ndim)]
        wide = lax.pad(update, update.dtype.type(0), beyond)
        begin = jnp.clip(chunk.offset - first + chunk.size, 0, written + chunk.size)
        there = lax.dynamic_slice_in_dim(wide, begin, chunk.size, axis)
    index = lax.broadcasted_iota(np.int32, [chunk.size if k == axis else 1 for k in range(operand.ndim)], axis)
    index = index + chunk.offset
    rest = [
        np.int32(0) if k == axis else inside(s, n - u)
        for k, (s, n, u) in enumerate(zip(starts, operand.shape, update.shape, strict=True))
    ]
    made = lax.dynamic_update_slice(operand, there, rest)
    return [jnp.where((index >= first) & (index < first + written), made, operand)]


@FACTOR_RULES.register("dynamic_update_slice")
def dynamic_update_slice(context: EquationContext) -> FactorRule:
    """`a0 a1, _ a1, , -> a0 a1`: the update is cut along axes that are overwritten entirely, looked into on others."""
    operand, update, *starts = context.operands
    entire = [a == b for a, b in zip(operand.shape, update.shape, strict=True)]
    names = _kept(operand.shape, [True] * len(entire))
    if jnp.issubdtype(operand.dtype, jax.dtypes.extended) or any(s.shape for s in starts):
        names = _kept(operand.shape, entire)
    left = ", ".join(
        [tokens(names), tokens(_kept(update.shape, entire)), *("" if not s.shape else "_" for s in starts)]
    )
    return FactorRule(
        equation=f"{left} -> {tokens(names)}",
        replay=_replay_dynamic_update_slice,
        counted=frozenset(n for n, is_entire in zip(names, entire, strict=True) if n is not None and not is_entire),
        whole="dynamic_update_slice writes a part of the axis",
    )


@FACTOR_RULES.register("stack", "unstack")
def stack(context: EquationContext) -> FactorRule:
    """`a0 a1, a0 a1 -> a0 _ a1`, and back."""
    rank = max(len(v.shape) for v in (*context.operands, *context.results))
    names: list[str | None] = list(axis_names(rank - 1))
    axis = context.params["axis"] % rank
    long = tokens([*names[:axis], None, *names[axis:]])
    left, right = (
        ", ".join(long if len(v.shape) == rank else tokens(names) for v in side)
        for side in (context.operands, context.results)
    )
    return FactorRule(equation=f"{left} -> {right}", whole="its arrays lie along the axis")
