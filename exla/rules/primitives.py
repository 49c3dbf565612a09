"""What replacements are written with besides `jax.lax`.

A replacement is traced in every process that replays it. A function of `jax.numpy` traces a jit of its own wherever it
meets new shapes, which is then taken apart again: a rule written with primitives is traced in a quarter of the time.
Operands of a primitive are of one type, and of one rank, where an axis of 1 stands for any size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax

_ALONG_ROWS = lax.GatherDimensionNumbers(
    offset_dims=(),
    collapsed_slice_dims=(1,),
    start_index_map=(1,),
    operand_batching_dims=(0,),
    start_indices_batching_dims=(0,),
)
_INTO_ROWS = lax.ScatterDimensionNumbers(
    update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,)
)


def number(like: Any, value: float) -> Any:
    """A number of the type of an array."""
    return np.asarray(value, like.dtype)[()]


def padded(x: Any, after: Sequence[int], value: float) -> Any:
    """An array with so many more of a value at the end of each axis."""
    return lax.pad(x, number(x, value), [(0, n, 0) for n in after]) if any(after) else x


def spread(x: Any, shape: Sequence[int], axes: Sequence[int]) -> Any:
    """An array whose axes become these ones of a shape."""
    return lax.broadcast_in_dim(x, tuple(shape), tuple(axes))


def rows_added(rows: Any, index: Any, count: int) -> Any:
    """Rows (n, d) added up by their index (n,) into so many, (count, d); one beyond them is left out."""
    zeros = lax.full((count, rows.shape[1]), 0, rows.dtype)
    mode = lax.GatherScatterMode.FILL_OR_DROP
    return lax.scatter_add(zeros, lax.expand_dims(index, (1,)), rows, _INTO_ROWS, mode=mode)


def rows_at(table: Any, index: Any) -> Any:
    """Rows (m, d) of a table at indices (n, …), which must be inside: (n, …, d)."""
    rank = index.ndim
    numbers = lax.GatherDimensionNumbers(offset_dims=(rank,), collapsed_slice_dims=(0,), start_index_map=(0,))
    index = lax.expand_dims(_stored(index, table.shape[0]), (rank,))
    return lax.gather(table, index, numbers, (1, table.shape[1]), mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS)


def at_columns(values: Any, columns: Any) -> Any:
    """Elements of each row (n, m) at columns (n, k), the last one beyond them: (n, k)."""
    columns = lax.reshape(_stored(columns, values.shape[1]), (*columns.shape, 1))
    return lax.gather(values, columns, _ALONG_ROWS, (1, 1), mode=lax.GatherScatterMode.CLIP)


def _stored(index: Any, count: int) -> Any:
    """An index, counted from the end where it is negative, as `jax.numpy` counts.

    None is. But XLA:CPU computes once, and stores, what is read twice; an index that only a gather reads is computed
    again there, sums and all: the nearest neighbours of 2,000 points take a third longer.
    """
    return lax.select(lax.lt(index, number(index, 0)), lax.add(index, number(index, count)), index)
