"""The strategy "off": nothing is split.

The program as it is under the target's compile options, then after the rewrites that pay. The other strategies begin
with the same two: a program that obeys without a loop is better than any loop.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from exla.search.space import Candidate
from exla.search.strategy import SearchSpace, Steps, each, strategy


@strategy("off", measures=False)
def unsplit(space: SearchSpace, generator: random.Random) -> Steps:
    """The candidates without a loop."""
    yield from each(worth_compiling(space))


def worth_compiling(space: SearchSpace) -> Iterator[Candidate]:
    """The candidates without a loop that may obey: compile options change the plain program too."""
    if any(space.option_sets) and _keeps_to(space, space.root):
        yield space.root
    rewritten = space.rewritten
    if rewritten.decisions and rewritten.peak.bytes <= space.goal.bytes and _keeps_to(space, rewritten):
        yield rewritten


def _keeps_to(space: SearchSpace, candidate: Candidate) -> bool:
    return space.has_small_values(candidate) and space.is_steady(candidate)
