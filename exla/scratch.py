"""What XLA:CPU's libraries allocate while they compute one operation, from its extents.

The buffers that the compiler assigns do not include it. The formulas are what the libraries were seen to request (every
allocation above 32 kB traced), rounded up where what is requested depends on the machine's caches. They are used twice:
`exla.targets.cpu_scratch` bounds with them what compiled programs need, `exla.ir.memory` projects it.
"""

from __future__ import annotations

import math

DEPTH = 832
"""Contracted indices that Eigen packs at once: two blocks."""
WALK = 4
SHORT = 256
TASKS = ((4, 8), (8, 4), (16, 2))
"""Up to so many threads -> tasks for each, from which on Eigen has every task pack for itself."""
SLICE, BLOCK = 288, 3 << 16
"""Contracted indices of a block of patches, and numbers of it, at most; 0.12 million were seen with a second-level
cache of 2 MiB."""
TASK = 1 << 18
"""Numbers that are packed for a task, at most: two such blocks, of which 0.2 million were seen."""
VOLUME = 3
MOST_ADDED = 8 << 30
"""Bytes that XLA allocates for what the points of a dilated image add, at most; where it were more it packs patches."""
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
    return packed * (WALK * threads if _packs_by_task(rows, columns, depth) else 1)


def convolution_bytes(
    *,
    image: tuple[int, int],
    result: tuple[int, int],
    window: tuple[int, ...],
    groups: int,
    is_dilated: bool,
    item_bytes: int,
    threads: int,
) -> int:
    """Bytes for a convolution: the patches of the image and the kernel are packed, as a matrix product's operands are.

    In groups it makes its result once more, and one channel of every group's patches (with one channel in a group that
    is all of them: nine times the image for a window of 3 x 3); over a volume its result once more; of a dilated image
    what each of its points adds to the result, up to a size (`EigenTransposedConv2D` of XLA).

    Args:
      image: its places, of all batches, and channels.
      result: its places, of all batches, and features.
      window: extents of the kernel.
      groups: of features.
      is_dilated: whether there is space between the points of the image, and none between those of the window, which
        goes over all places.
      item_bytes: of one number.
      threads: of the library.
    """
    (points, channels), (places, features), size = image, result, math.prod(window)
    needed = _packed_patches(places, features // groups, size * channels // groups, threads)
    if groups > 1:
        needed += places * features + places * size * groups
    elif len(window) == VOLUME:
        needed += places * features
    added = points * size * features * item_bytes
    is_added = is_dilated and groups == 1 and len(window) < VOLUME and added <= MOST_ADDED
    return needed * item_bytes + (added if is_added else 0)


def _packed_patches(places: int, features: int, depth: int, threads: int) -> int:
    """Elements of patches and kernel that Eigen packs at once, for so many places, features, and numbers in a patch.

    The kernel is packed whole. Where there are more than enough tasks for every thread, each packs the patches that it
    works on, and little of what was allocated is touched; with both long and small patches, it is as for products.
    """
    packed = (places + features) * (min(depth, DEPTH) + 7) * 21 // 20
    if _packs_by_task(places, features, depth):
        return WALK * threads * packed
    kernel = features * (depth + 7) * 21 // 20
    tasks = threads * next((count for most, count in TASKS if threads <= most), 1)
    if places * min(depth, SLICE) > BLOCK * tasks:
        return 2 * TASK * threads + kernel
    return min(packed, TASK * tasks) + kernel


def _packs_by_task(rows: int, columns: int, depth: int) -> bool:
    """Whether each task of a product packs blocks of both operands for itself."""
    return depth <= SHORT and rows < 8 * columns and columns < 8 * rows


def sort_bytes(*, length: int, operands: int) -> int:
    """Bytes for a stable sort of rows of a length: one temporary record per element of one row, of all operands."""
    return RECORD_BYTES * operands * length


def transform_bytes(*, rows: int, length: int, item_bytes: int, threads: int) -> int:
    """Bytes for a Fourier transform of so many rows: `LANES` of them per thread at a time."""
    return min(rows, LANES * threads) * length * max(item_bytes, 8)
