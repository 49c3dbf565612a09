"""Chunk sizes: which ones are worth considering for a factor.

A chunk that divides the factor needs no tail program, and one that is a multiple of 8 fills vector lanes. Sizes
are proposed from working sets: from a part of the cache up to what the cap leaves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

LANES = 8


def tidy(size: int, chunk: int, least: int = 1) -> int:
    """Move a chunk size down to a nearby one that wastes less.

    Args:
      size: indices of the factor.
      chunk: the largest chunk wanted.
      least: the smallest allowed.

    Returns:
      A divisor of `size` in the upper 40 % below `chunk` if there is one, multiples of 8 first; else the
      balanced chunk of the same trip count, rounded up to a multiple of 8 where that stays within `chunk`.
    """
    chunk = max(least, min(chunk, size - 1))
    lowest = max(least, -(-chunk * 6 // 10))
    divisors = [d for d in range(chunk, lowest - 1, -1) if size % d == 0] if chunk - lowest < 100_000 else []
    for divisor in divisors:
        if divisor % LANES == 0:
            return divisor
    if divisors:
        return divisors[0]
    trips = -(-size // chunk)
    balanced = max(least, -(-size // trips))
    rounded = -(-balanced // LANES) * LANES
    return rounded if rounded <= chunk else balanced


def sizes(
    size: int, least: int, bytes_per_index: float, fixed_bytes: float, room_bytes: float, working_sets: Sequence[int]
) -> Iterator[int]:
    """Propose chunk sizes whose working sets are spread up to what the cap leaves.

    Args:
      size: indices of the factor.
      least: the smallest chunk allowed.
      bytes_per_index: how the projected peak grows with the chunk.
      fixed_bytes: the projected peak of an empty chunk.
      room_bytes: what the peak may be.
      working_sets: bytes per chunk to aim at; the room itself is always added.

    Yields:
      Distinct chunk sizes, smallest first.
    """
    known: set[int] = set()
    room = max(room_bytes - fixed_bytes, 0.0)
    for target in sorted({min(float(w), room) for w in (*working_sets, room)}):
        wanted = int(target / bytes_per_index) if bytes_per_index > 0 else size - 1
        chunk = tidy(size, max(wanted, least), least)
        if chunk not in known and fixed_bytes + chunk * bytes_per_index <= room_bytes:
            known.add(chunk)
            yield chunk
