"""Putting values together and taking pieces: concatenate, split, slice, pad, rev, tile, dynamic slices.

An axis that is kept entirely is a factor; one that is cut, padded, reversed or joined is whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from exla.ir.factors import FACTOR_RULES, Chunk, EquationContext, FactorRule, axis_names, tokens


def _kept(shape: Sequence[int], kept: Sequence[bool]) -> list[str | None]:
    return [n if keep else None for n, keep in zip(axis_names(len(shape)), kept, strict=True)]


@FACTOR_RULES.register("concatenate")
def concatenate(context: EquationContext) -> FactorRule:
    """`_ a1, _ a1 -> _ a1`."""
    axis = context.params["dimension"]
    shape = context.results[0].shape
    names = tokens(_kept(shape, [k != axis for k in range(len(shape))]))
    left = ", ".join(names for _ in context.operands)
    return FactorRule(equation=f"{left} -> {names}", whole="concatenate joins along the axis")


@FACTOR_RULES.register("split")
def split(context: EquationContext) -> FactorRule:
    """`_ a1 -> _ a1, _ a1`."""
    axis = context.params["axis"]
    shape = context.operands[0].shape
    names = tokens(_kept(shape, [k != axis for k in range(len(shape))]))
    right = ", ".join(names for _ in context.results)
    return FactorRule(equation=f"{names} -> {right}", whole="split cuts the axis")


def _replay_slice(chunk: Chunk, operand: Any) -> Sequence[Any]:
    place = chunk.factors.operands[chunk.factor][0]
    assert place is not None
    limits = list(chunk.context.params["limit_indices"])
    limits[place.axis] = operand.shape[place.axis]
    return chunk.bind(operand, limit_indices=tuple(limits))


@FACTOR_RULES.register("slice")
def slice_(context: EquationContext) -> FactorRule:
    """`_ a1 -> _ a1`: axes that are taken entirely."""
    operand, result = context.operands[0], context.results[0]
    names = tokens(_kept(operand.shape, [a == b for a, b in zip(operand.shape, result.shape, strict=True)]))
    return FactorRule(equation=f"{names} -> {names}", replay=_replay_slice, whole="slice takes a part of the axis")


@FACTOR_RULES.register("pad")
def pad(context: EquationContext) -> FactorRule:
    """`_ a1,  -> _ a1`: axes without padding."""
    shape = context.operands[0].shape
    names = tokens(_kept(shape, [tuple(p) == (0, 0, 0) for p in context.params["padding_config"]]))
    return FactorRule(equation=f"{names},  -> {names}", whole="pad changes the axis")


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


@FACTOR_RULES.register("dynamic_update_slice")
def dynamic_update_slice(context: EquationContext) -> FactorRule:
    """`_ a1, _ a1, , -> _ a1`: axes that are overwritten entirely."""
    operand, update, *starts = context.operands
    names = tokens(_kept(operand.shape, [a == b for a, b in zip(operand.shape, update.shape, strict=True)]))
    left = ", ".join([names, names, *("" if not s.shape else "_" for s in starts)])
    return FactorRule(equation=f"{left} -> {names}", whole="dynamic_update_slice writes a part of the axis")


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
