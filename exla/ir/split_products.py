"""What XLA:GPU adds to a matrix product whose contracted axis it cuts, so that all multiprocessors have work.

A product with few rows and columns and a long contraction, `[10, 100000] @ [100000, 10]`, is computed as a batch of
products of pieces of the contracted axis, whose results are summed. Where the pieces do not divide the axis into whole
16 bytes, both operands are copied into longer ones first, with zeros at the end. So the product of an n x n matrix with
a vector takes the matrix twice where n is odd, and once where n is a multiple of 512. What the program computes
element by element is written in its longer form at once.

Source: XLA, `xla/backends/gpu/transforms/splitk_rewriter.cc`, whose estimate of costs this follows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from exla import _compat
from exla.ir.products import axes_of

TILE = 128
"""Rows and columns of a result that one multiprocessor computes at a time."""
ALIGNED_BYTES = 16
COMPUTE = 100.0
PIECES = tuple(1 << k for k in range(12))


@dataclass(frozen=True, kw_only=True)
class Cutting:
    """A GPU as its compiler sees it when it cuts contractions.

    Attributes:
      cores: multiprocessors.
      moved: cost of a byte that the product reads or writes, in hundredths of an operation.
      summed: of a byte that is read or written to sum the pieces.
      started: of the kernel that sums them.
    """

    cores: int
    moved: float
    summed: float
    started: float

    @classmethod
    def of(cls, cores: int, capability: float) -> Cutting:
        """That of a GPU with so many multiprocessors and of a compute capability."""
        if capability >= 10:
            return cls(cores=cores, moved=0.0848863, summed=189.711, started=1.21563e8)
        if capability >= 9:
            return cls(cores=cores, moved=0.194136, summed=193.1384, started=4.36e7)
        return cls(cores=cores, moved=0.0666955, summed=467.815, started=5.65307e7)


def padded_depth(eqn: Any, cutting: Cutting | None) -> int:
    """The length to which a product's contracted axis is padded; 0 where no operand is copied for that."""
    if cutting is None or len(eqn.params["dimension_numbers"][0][0]) != 1:
        return 0
    batch, rows, columns, depth, item = _sizes(eqn)
    pieces = _pieces(batch, rows, columns, depth, item, cutting)
    whole = pieces * ALIGNED_BYTES // min(item, ALIGNED_BYTES)
    return 0 if pieces == 1 or depth % whole == 0 else -(-depth // whole) * whole


def idleness(eqn: Any, cutting: Cutting) -> float:
    """How many times as long a product takes as if all multiprocessors had some of it to compute."""
    batch, rows, columns, depth, item = _sizes(eqn)
    pieces = _pieces(batch, rows, columns, depth, item, cutting)
    tiles = batch * pieces * -(-rows // TILE) * -(-columns // TILE)
    return max(cutting.cores / max(tiles, 1), 1.0)


def _sizes(eqn: Any) -> tuple[int, int, int, int, int]:
    """Of a product: its batch, rows and columns of its results, the contracted length, and bytes of an element."""
    (contracted, _), (batched, _) = eqn.params["dimension_numbers"]
    left, right = (v.aval for v in eqn.invars)
    rows = math.prod(left.shape[k] for k in axes_of(eqn, 0)[2])
    columns = math.prod(right.shape[k] for k in axes_of(eqn, 1)[2])
    item = min(_compat.item_bytes(left.dtype), _compat.item_bytes(right.dtype))
    depth = math.prod(left.shape[k] for k in contracted)
    return math.prod(left.shape[k] for k in batched), rows, columns, depth, item


@lru_cache(maxsize=1 << 12)
def _pieces(batch: int, rows: int, columns: int, depth: int, item: int, cutting: Cutting) -> int:
    """Into how many pieces the contraction is cut: the cheapest number."""
    if 0 in (batch, rows, columns, depth):
        return 1
    return min(PIECES, key=lambda pieces: _cost(batch, rows, columns, depth, item, pieces, cutting))


def _cost(batch: int, rows: int, columns: int, depth: int, item: int, pieces: int, cutting: Cutting) -> float:
    tile = min(rows, TILE) * min(columns, TILE)
    tiles = batch * pieces * -(-rows // TILE) * -(-columns // TILE)
    waves = max(1.0, tiles / (cutting.cores * TILE * TILE / tile))
    computed = 2 * tile * -(-depth // pieces) * waves * COMPUTE
    results = batch * rows * columns * item
    moved = batch * (rows + columns) * depth * item + pieces * results
    product = max(computed, moved * cutting.moved)
    return product if pieces == 1 else product + cutting.started + (pieces + 1) * results * cutting.summed
