"""Shape changes: broadcasting, reshaping, transposing, iota.

None of these computes anything, so every axis that survives is a factor. Reshape composes and decomposes axes:
merging `(4, 6) -> (24,)` is `"a b -> (a b)"`, where a chunk of `a` is a contiguous range of the merged axis. Where
both sides have several axes, as in `(4, 6) -> (8, 3)`, what they share is their outermost part of size gcd(4, 8).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jax import lax

from exla.ir.factors import FACTOR_RULES, Chunk, EquationContext, FactorRule, axis_names, tokens


def _replay_shape(chunk: Chunk, operand: Any, *sizes: Any) -> Sequence[Any]:
    return chunk.bind(operand, *sizes, shape=chunk.result_shape())


@FACTOR_RULES.register("broadcast_in_dim")
def broadcast_in_dim(context: EquationContext) -> FactorRule:
    """`a1 -> a0 a1`; an operand's unit axis that is stretched is whole, and so is the operand of a new axis."""
    (operand, *sizes), (result,) = context.operands, context.results
    if sizes:
        return FactorRule(equation=_all_whole(context), whole="its shape is dynamic")
    names = axis_names(len(result.shape))
    left = [
        names[axis] if operand.shape[k] == result.shape[axis] else None
        for k, axis in enumerate(context.params["broadcast_dimensions"])
    ]
    return FactorRule(equation=f"{tokens(left)} -> {tokens(names)}", replay=_replay_shape)


@FACTOR_RULES.register("transpose")
def transpose(context: EquationContext) -> FactorRule:
    """`a0 a1 -> a1 a0`."""
    names = axis_names(len(context.operands[0].shape))
    return FactorRule(equation=f"{tokens(names)} -> {tokens([names[k] for k in context.params['permutation']])}")


@FACTOR_RULES.register("squeeze")
def squeeze(context: EquationContext) -> FactorRule:
    """`_ a1 -> a1`."""
    rank = len(context.operands[0].shape)
    gone = {d % rank for d in context.params["dimensions"]}
    names = [None if k in gone else n for k, n in enumerate(axis_names(rank))]
    return FactorRule(equation=f"{tokens(names)} -> {tokens([n for n in names if n is not None])}")


def _replay_iota(chunk: Chunk) -> Sequence[Any]:
    (counted,) = chunk.bind(shape=chunk.result_shape())
    place = chunk.factors.results[chunk.factor][0]
    if place is None or place.axis != chunk.context.params["dimension"]:
        return [counted]
    return [lax.add(counted, lax.convert_element_type(lax.mul(chunk.offset, np.int32(place.block)), counted.dtype))]


@FACTOR_RULES.register("iota")
def iota(context: EquationContext) -> FactorRule:
    """`-> a0 a1`; a chunk counts from its own offset."""
    names = axis_names(len(context.results[0].shape))
    if context.operands:
        return FactorRule(equation=_all_whole(context), whole="its shape is dynamic")
    return FactorRule(
        equation=f" -> {tokens(names)}", replay=_replay_iota, counted=frozenset({names[context.params["dimension"]]})
    )


def _replay_reshape(chunk: Chunk, operand: Any) -> Sequence[Any]:
    return chunk.bind(operand, new_sizes=chunk.result_shape())


@FACTOR_RULES.register("reshape")
def reshape(context: EquationContext) -> FactorRule:
    """`a b -> (a b)`, `(a b) -> a b`, and outermost parts where both sides have several axes."""
    operand, result = context.operands[0], context.results[0]
    if len(context.operands) > 1 or context.params["dimensions"] is not None or 0 in operand.shape:
        return FactorRule(equation=_all_whole(context), whole="it permutes, is dynamic or is empty")
    left: list[str | None] = [None] * len(operand.shape)
    right: list[str | None] = [None] * len(result.shape)
    sizes: dict[str, int] = {}
    for k, (ours, theirs) in enumerate(_groups(operand.shape, result.shape)):
        outer = math.gcd(operand.shape[ours[0]], result.shape[theirs[0]])
        if len(ours) == 1 or len(theirs) == 1:
            _compose(left, right, ours, theirs, k) if len(theirs) > 1 else _compose(right, left, theirs, ours, k)
        elif outer > 1:
            sizes[f"g{k}"] = outer
            for side, axis, extent, inner in (
                (left, ours[0], operand.shape[ours[0]], f"r{k}"),
                (right, theirs[0], result.shape[theirs[0]], f"s{k}"),
            ):
                sizes[inner] = extent // outer
                side[axis] = f"(g{k} {inner})"
    return FactorRule(
        equation=f"{tokens(left)} -> {tokens(right)}",
        replay=_replay_reshape,
        sizes=sizes,
        whole="reshape regroups the axis",
    )


def _compose(merged: list[str | None], parts: list[str | None], one: list[int], many: list[int], k: int) -> None:
    """Name one axis of `merged` as composed of many axes of `parts`."""
    names = [f"g{k}_{i}" for i in range(len(many))]
    for axis, name in zip(many, names, strict=True):
        parts[axis] = name
    merged[one[0]] = names[0] if len(names) == 1 else f"({' '.join(names)})"


def _groups(left: Sequence[int], right: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Runs of axes of both shapes with equal products, axes of size 1 left out."""
    ours = [k for k, n in enumerate(left) if n != 1]
    theirs = [k for k, n in enumerate(right) if n != 1]
    while ours and theirs:
        a, b = [ours.pop(0)], [theirs.pop(0)]
        while math.prod(left[k] for k in a) != math.prod(right[k] for k in b):
            if math.prod(left[k] for k in a) < math.prod(right[k] for k in b):
                a.append(ours.pop(0))
            else:
                b.append(theirs.pop(0))
        yield a, b


def _all_whole(context: EquationContext) -> str:
    sides = (", ".join(tokens([None] * len(v.shape)) for v in side) for side in (context.operands, context.results))
    return " -> ".join(sides)
