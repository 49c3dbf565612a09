"""Chunk sizes: which ones are worth considering for a factor.

A chunk that divides the factor needs no tail program, and one that is a multiple of the device's lanes (8 on a CPU, 128
on a TPU) fills its vectors. Sizes are proposed from working sets: from a part of the cache up to what the cap leaves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

LANES = 8
MANY_LANES = 8
"""From this many full vectors on, a last partial one costs nothing that can be measured."""


def largest_chunk(size: int) -> int:
    """The largest chunk worth considering: half of the factor, rounded up. Larger ones leave two chunks as well."""
    return -(-size // 2)


def probe(size: int, least: int) -> int:
    """The chunk by which a split is judged first: a small one, of a factor that has several."""
    return max(least, min(LANES, largest_chunk(size) // 4))


def tidy(size: int, chunk: int, least: int = 1, lanes: int = LANES) -> int:
    """Move a chunk size down to a nearby one that wastes less.

    Args:
      size: indices of the factor.
      chunk: the largest chunk wanted.
      least: the smallest allowed.
      lanes: indices that the hardware takes at once.

    Returns:
      In this order of preference: a divisor of `size` that is a multiple of the lanes, from half of `chunk` up; any
      divisor from half of `chunk` up, if the chunk is so large that lanes do not matter; else the balanced chunk
      of the same trip count, rounded up to a multiple of the lanes where that stays within `chunk`, and down where
      that costs little.
    """
    chunk = max(least, min(chunk, largest_chunk(size)))
    lowest = max(least, -(-chunk // 2))
    divisors = [d for d in _divisors(size) if lowest <= d <= chunk]
    for divisor in reversed(divisors):
        if divisor % lanes == 0 or chunk < lanes or divisor >= MANY_LANES * lanes:
            return divisor
    trips = -(-size // chunk)
    balanced = max(least, -(-size // trips))
    rounded = -(-balanced // lanes) * lanes
    if rounded <= chunk:
        return rounded
    below = chunk // lanes * lanes
    return below if 4 * below >= 3 * chunk and below >= least else balanced


def at_least(size: int, chunk: int, lanes: int = LANES) -> int:
    """The chunk size nearest above one, or it, that wastes little: mostly a divisor of `size`, as of `tidy`."""
    divisors = (d for d in _divisors(size) if chunk <= d < 2 * chunk)
    return next((d for d in divisors if d % lanes == 0 or d >= MANY_LANES * lanes), -(-chunk // lanes) * lanes)


def grid(size: int, least: int, lanes: int = LANES, ratio: float = 2) -> list[int]:
    """Chunk sizes spread over a factor, smallest first: from half of it down, each a ratio below the one before.

    Args:
      size: indices of the factor.
      least: the smallest chunk allowed.
      lanes: indices that the hardware takes at once.
      ratio: above 1.
    """
    found: set[int] = set()
    wanted = size / 2
    while wanted >= max(least, 1):
        found.add(tidy(size, int(wanted), least, lanes))
        wanted /= ratio
    return sorted(found | ({least} if least < size else set()))


def _divisors(size: int) -> list[int]:
    small = [d for d in range(1, math.isqrt(size) + 1) if size % d == 0]
    return [*small, *(size // d for d in reversed(small) if d * d != size)]


def sizes(
    size: int,
    least: int,
    bytes_per_index: float,
    fixed_bytes: float,
    room_bytes: float,
    working_sets: Sequence[int],
    lanes: int = LANES,
) -> Iterator[int]:
    """Propose chunk sizes whose working sets are spread up to what the cap leaves.

    Args:
      size: indices of the factor.
      least: the smallest chunk allowed.
      bytes_per_index: how the projected peak grows with the chunk.
      fixed_bytes: the projected peak of an empty chunk.
      room_bytes: what the peak may be.
      working_sets: bytes per chunk to aim at; the room itself is always added.
      lanes: indices that the hardware takes at once.

    Yields:
      Distinct chunk sizes, smallest first.
    """
    known: set[int] = set()
    room = max(room_bytes - fixed_bytes, 0.0)
    for target in sorted({min(float(w), room) for w in (*working_sets, room)}):
        wanted = int(min(target / bytes_per_index, size)) if bytes_per_index > 0 else size
        if fixed_bytes + lanes * bytes_per_index <= room_bytes:
            wanted = max(wanted, lanes)
        chunk = tidy(size, max(wanted, least), least, lanes)
        if chunk not in known and fixed_bytes + chunk * bytes_per_index <= room_bytes:
            known.add(chunk)
            yield chunk
