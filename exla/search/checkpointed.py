"""What waits for a backward pass is computed again before that, in as few segments as the goal asks for.

That saves memory whether what is computed is split or not (`exla.passes.checkpoint`).

One set of segments keeps what each begins with, and what one of them computes. Where that is still too much, what the
segments begin with is computed again in its turn, of what the segments of a second set begin with: few of those, with
many of the first in each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from exla.errors import ReplayMiss
from exla.passes.checkpoint import enumerate_checkpoints
from exla.search.moved import room_bytes
from exla.strict import tolerate

if TYPE_CHECKING:
    from exla.search.space import Candidate, Goal, Space

LEVELS = 3
FINEST = 2
"""How many of the sets with most segments are computed again in segments, beside the one that needs least."""
WORTH = 0.9
"""Share of the temporaries to which a level must bring them."""
WORTH_SPLITTING = 1 / 2
"""The same of all levels, for what does not obey to be split: there is twice as much of it then."""
KEPT = 256
"""What takes a smaller share of the room is not computed again."""
HOPELESS = 4
"""Sets of segments of a level that need no less than that, one after the other, before no more are tried there."""
MOST = 3
"""How many that obey by projection are offered, each of which needs less than the one before."""


def checkpointed(space: Space, start: Candidate, goal: Goal) -> Iterator[Candidate]:
    """A start that computes again what waits at its peak, as much of it as a goal asks for.

    Args:
      space: what can be done.
      start: the program before any split.
      goal: what is wanted.

    Yields:
      What obeys, with the fewest levels that do, the fewest segments first; where nothing does what needs least, if
      that is much less than what the start needs.
    """
    if space.spread:
        return  # that something is computed late is told by one number, which only one device has
    small_bytes = max(room_bytes(start, goal) // KEPT, 1)
    fixed = start.peak.arguments_bytes
    least, parents, offered = start, [start], 0
    for _ in range(LEVELS if start.peak.bytes > goal.bytes else 0):
        made: list[tuple[int, Candidate]] = []
        worth = fixed + WORTH * (least.peak.bytes - fixed)
        for parent in parents:
            for tried, (count, candidate) in enumerate(_in_segments(space, parent, small_bytes), 1):
                made.append((count, candidate))
                is_less = candidate.peak.bytes < least.peak.bytes
                least = candidate if is_less else least
                if is_less and space.is_met(candidate, goal):
                    yield candidate
                    offered += 1
                if offered == MOST:
                    return
                if tried >= HOPELESS and least.peak.bytes > worth:
                    break
        if offered or least.peak.bytes > worth:
            break
        finest = sorted(made, key=lambda pair: -pair[0])[:FINEST]
        parents = [least, *(candidate for _, candidate in finest if candidate is not least)]
    if not offered and least.peak.bytes - fixed <= WORTH_SPLITTING * (start.peak.bytes - fixed):
        yield least


def _in_segments(space: Space, parent: Candidate, small_bytes: int) -> Iterator[tuple[int, Candidate]]:
    """A candidate in ever more segments, and how many, where what is compared keeps its bits."""
    for decision in enumerate_checkpoints(parent.peak.held, small_bytes):
        with tolerate(f"trying to {decision}"), contextlib.suppress(ReplayMiss):
            made = space.after(parent, decision)
            if space.is_steady(made):
                yield len(decision.ends), made
