"""What waits at the peak, kept elsewhere: the last resort of a search.

A split program computes what it needs in chunks, and again where it must; its bits are those of other sums at most.
What waits in the host's memory costs transfers, what waits in bfloat16 costs digits. So values are kept in other ways
(`exla.passes.store`) only where nothing obeys the limit without, as few as are enough, and the program may be split
after that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from exla.passes.replay import replay
from exla.passes.store import enumerate_stores
from exla.search.rewriting import source_of
from exla.strict import tolerate

if TYPE_CHECKING:
    from exla.search.space import Candidate, Goal, Space

MOST_STORED = 48
"""Values that are kept in other ways."""
TRIES = 12
"""Values that are tried for each of them."""


def stored(space: Space, start: Candidate, goal: Goal) -> Iterator[Candidate]:
    """A program whose values wait in other ways, as many as bring it within a goal, or as bring it nearer to it.

    Args:
      space: what can be done.
      start: the program before any split.
      goal: what is wanted.

    Yields:
      One candidate for the host's memory, one for narrower types and one for both, as far as they are allowed and make
      the projected peak smaller.
    """
    for ways in _combinations(space):
        made = start
        for _ in range(MOST_STORED):
            further = None if made.peak.bytes <= goal.bytes else _one_more(space, made, ways)
            if further is None:
                break
            made = further
        if made.peak.bytes < start.peak.bytes:
            yield made


def _combinations(space: Space) -> list[tuple[str, ...]]:
    """The ways that may be used: the host's memory, which keeps every bit, before narrower types."""
    host = ("host",) if space.machine.host_bytes_per_s > 0 else ()
    narrow = ("bfloat16",) if space.mixed else ()
    return list(dict.fromkeys(ways for ways in (host, narrow, (*host, *narrow)) if ways))


def _one_more(space: Space, candidate: Candidate, ways: tuple[str, ...]) -> Candidate | None:
    """The candidate with one more value kept in another way; None where that does not help any more."""
    for decision in islice(enumerate_stores(candidate.peak.held, ways), TRIES):
        with tolerate(f"trying to {decision}"):
            made = space.of(replay(candidate.program, decision), (*candidate.decisions, decision), candidate.seeds)
            if made.peak.bytes < candidate.peak.bytes:
                space.sources = {**space.sources, decision: source_of(candidate.program, decision)}
                return replace(made, options=candidate.options)
    return None
