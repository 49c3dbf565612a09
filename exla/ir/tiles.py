"""Bytes of a value as a TPU lays it out: its two minor axes are padded to whole tiles.

A tile is 8 sublanes by 128 lanes. The compiler orders the axes of each value itself, mostly so that little is padded:

    f32[6000, 3]      {0,1:T(4,128)}     47 x 128 lanes, 4 sublanes
    f32[98072, 64, 8] {1,2,0:T(8,128)}   64 lanes padded to 128: what a loop stacks has its first axis outermost
    f32[2047712, 64]  {1,0:T(8,128)}     64 lanes padded to 128: rows that are gathered lie whole

Up to four sublanes are padded to the next power of two only, and vectors to 1024 numbers. The forms above are those
that libtpu 0.0.42.1 writes; the tiles are documented in XLA's "Tiled layout" and "Shapes and layout".
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache

SUBLANES, LANES = 8, 128
VECTOR = 1024
"""Numbers to a whole of which a vector is padded."""


@lru_cache(maxsize=1 << 14)
def padded_bytes(shape: tuple[int, ...], item_bytes: int, pinned: str = "") -> int:
    """Bytes of a value on a TPU.

    Args:
      shape: its shape.
      item_bytes: of one number.
      pinned: which layout its maker or readers need: "rows" (the last axis on the lanes), "stacked" (the first axis on
        neither), "" (any).
    """
    if math.prod(shape) == 0:
        return 0
    if len(shape) < 2:
        size = shape[0] if shape else 1
        return _up(size, VECTOR if size > VECTOR else LANES) * item_bytes
    return min(_elements(shape, lane, sublane) for lane, sublane in _orders(shape, pinned)) * item_bytes


def _orders(shape: Sequence[int], pinned: str) -> Sequence[tuple[int, int]]:
    """The pairs of axes that may lie on lanes and sublanes."""
    axes = len(shape)
    if pinned == "rows":
        return [(axes - 1, axes - 2)]
    first = 1 if pinned == "stacked" and axes > 2 else 0
    pairs = list(itertools.permutations(range(first, axes), 2))
    return [p for p in pairs if p[0] > 0] if pinned == "stacked" else pairs


def _elements(shape: Sequence[int], lane: int, sublane: int) -> int:
    whole = math.prod(shape) // (shape[lane] * shape[sublane])
    return whole * _up(shape[lane], LANES) * _sublanes(shape[sublane])


def _sublanes(size: int) -> int:
    return _up(size, SUBLANES) if size > SUBLANES // 2 else 1 << (size - 1).bit_length()


def _up(size: int, whole: int) -> int:
    return -(-size // whole) * whole
