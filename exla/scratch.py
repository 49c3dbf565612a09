"""What XLA:CPU's libraries allocate while they compute one operation, from its extents.

The buffers that the compiler assigns do not include it. The formulas are what the libraries were seen to request (every
allocation above 32 kB traced), rounded up where what is requested depends on the machine's caches. They are used twice:
`exla.targets.cpu_scratch` bounds with them what compiled programs need, `exla.ir.memory` projects it.
"""

from __future__ import annotations

DEPTH = 832
"""Contracted indices that Eigen packs at once: two blocks."""
WALK = 4
SHORT = 256
LANES = 64
"""Rows of a Fourier transform that a thread computes at a time."""
RECORD_BYTES = 16


def product_bytes(*, batch: int, rows: int, columns: int, depth: int, item_bytes: int, threads: int) -> int:
    """Bytes for a matrix product: both operands packed in blocks along the contracted axis, for all batches at once.

    With both sides long and a short contraction each task allocates its own blocks, and the C library's aligned
    allocations do not reuse them at once; `WALK` is how many sets per thread were seen to stay resident.

    Args:
      batch: products.
      rows: of the left matrix of each.
      columns: of the right one.
      depth: contracted indices.
      item_bytes: of one number.
      threads: of the library.
    """
    if min(rows, columns) <= 1:
        return 0  # a matrix times a vector is compiled, not called
    packed = batch * (min(rows, 8 * columns) + columns) * min(depth, DEPTH) * item_bytes
    if batch > 1:
        return WALK * packed
    by_task = depth <= SHORT and rows < 8 * columns and columns < 8 * rows
    return packed * (WALK * threads if by_task else 1)


def sort_bytes(*, length: int, operands: int) -> int:
    """Bytes for a stable sort of rows of a length: one temporary record per element of one row, of all operands."""
    return RECORD_BYTES * operands * length


def transform_bytes(*, rows: int, length: int, item_bytes: int, threads: int) -> int:
    """Bytes for a Fourier transform of so many rows: `LANES` of them per thread at a time."""
    return min(rows, LANES * threads) * length * max(item_bytes, 8)
