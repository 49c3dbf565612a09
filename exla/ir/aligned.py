"""Indices that count along an axis are that axis: `x[arange(n), i]` reads row by row, as `take_along_axis` does.

    rewrite: gather(x, [iota, i]) -> gather(x, [i]), where x and i are batched along what the iota counts

A gather looks anywhere along an axis that it indexes, so that nothing which it reads could be cut along it. Where the
indices of that axis count along one of the gather's own batch axes, each batch index reads its own slice, and both are
one axis: the logits of labels, the diagonal of a matrix, `fill_diagonal`, and the scatters that are their gradients.
No number changes: the same elements are read, and the same ones are added to, in another order at most.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax import lax

from exla import _compat
from exla.ir.counting import Count, Counting
from exla.ir.primitives import SCATTERS

INDEXING = SCATTERS | {"gather"}
GATHER_NUMBERS = ("collapsed_slice_dims", "start_index_map", "start_indices_batching_dims")
SCATTER_NUMBERS = ("inserted_window_dims", "scatter_dims_to_operand_dims", "scatter_indices_batching_dims")
"""What dimension numbers call the axes that an index takes one of, those that its components are of, and batch axes."""


@dataclass(frozen=True, kw_only=True)
class Aligned:
    """What is known of the indices of a gather or scatter.

    Attributes:
      axes: axis of the operand -> the batch axis of the indices that counts along it, and from where.
      others: which of the values that are concatenated to its indices are left.
    """

    axes: Mapping[int, Count]
    others: tuple[int, ...]


def find_aligned(jaxpr: Any, constants: Mapping[Any, Any]) -> dict[int, Aligned]:
    """The gathers and scatters of a jaxpr, bodies included, that can be batched; by the `id` of the equation.

    Args:
      jaxpr: the jaxpr.
      constants: values of its variables, where they are known.
    """
    every = list(_equations(jaxpr))
    indexing = [eqn for eqn in every if eqn.primitive.name in INDEXING and len(eqn.invars) in (2, 3)]
    if not indexing:
        return {}
    counting = Counting({v: eqn for eqn in every for v in eqn.outvars}, constants)
    return {id(eqn): found for eqn in indexing if (found := _aligned(eqn, counting)) is not None}


def bind_aligned(eqn: Any, operands: Sequence[Any], aligned: Aligned, parts: Sequence[Any]) -> list[Any]:
    """Evaluate a gather or scatter with the axes that its indices count along as batch axes.

    Args:
      eqn: the equation.
      operands: its operands.
      aligned: what `find_aligned` says of it.
      parts: what is concatenated to its indices.
    """
    operand, _, *updates = operands
    others = [parts[k] for k in aligned.others]
    indices = others[0] if len(others) == 1 else lax.concatenate(others, np.ndim(others[0]) - 1)
    for axis, count in aligned.axes.items():
        if operand.shape[axis] > indices.shape[count.axis]:
            operand = lax.slice_in_dim(operand, count.first, count.last(indices.shape) + 1, axis=axis)
    numbers = eqn.params["dimension_numbers"]
    names = SCATTER_NUMBERS if eqn.primitive.name in SCATTERS else GATHER_NUMBERS
    dropped, mapped, along = (getattr(numbers, name) for name in names)
    batched = dict(zip(numbers.operand_batching_dims, along, strict=True))
    batched |= {axis: count.axis for axis, count in aligned.axes.items()}
    left = [tuple(a for a in every if a not in aligned.axes) for every in (dropped, mapped)]
    changes = dict(zip(names, (*left, tuple(batched[a] for a in sorted(batched))), strict=True))
    # Whole indices that are unique are so for each number that is counted, without it; their order says nothing.
    return _compat.bind(
        eqn,
        operand,
        indices,
        *updates,
        dimension_numbers=numbers._replace(operand_batching_dims=tuple(sorted(batched)), **changes),
        indices_are_sorted=False,
    )


def _aligned(eqn: Any, counting: Counting) -> Aligned | None:
    operand, indices, *_ = (v.aval for v in eqn.invars)
    scatters = eqn.primitive.name in SCATTERS
    names = SCATTER_NUMBERS if scatters else GATHER_NUMBERS
    dropped, mapped, already = (getattr(eqn.params["dimension_numbers"], name) for name in names)
    used = set(already)
    axes: dict[int, Count] = {}
    others: list[int] = []
    position = 0
    for k, part in enumerate(counting.parts(eqn.invars[1])):
        width = part.aval.shape[-1]
        axis, count = mapped[position], counting.along(part) if width == 1 else None
        position += width
        is_free = axis in dropped and len(axes) + 1 < len(mapped)
        is_free = is_free and count is not None and count.axis not in used and count.axis < len(indices.shape) - 1
        if count is not None and is_free and _lies_on(operand.shape[axis], count, indices.shape, scatters):
            axes[axis] = count
            used.add(count.axis)
        else:
            others.append(k)
    return Aligned(axes=axes, others=tuple(others)) if axes and others else None


def _lies_on(extent: int, count: Count, shape: Sequence[int], scatters: bool) -> bool:
    """Whether all that is counted lies on an axis, and for a scatter all of the axis is counted."""
    end = count.last(shape) + 1
    return end == extent and count.first == 0 or end <= extent and not scatters


def _equations(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxpr.eqns:
        yield eqn
        for body in _compat.bodies(eqn):
            yield from _equations(body.jaxpr)
