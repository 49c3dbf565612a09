"""The analytic strategy: cut what holds the peak, predict, take what is fastest within the cap.

The prediction is a roofline for the target (`exla.search.cost`), and the candidates are those of the beam
(`exla.search.beam`).

*The cap is a bound, not a target*: among programs under it the one with the smallest predicted time wins, and
that is usually one whose chunks stay in cache. Where the compiler counts more than was projected, the goal is
tightened by as much.
"""

from __future__ import annotations

import random
from dataclasses import replace

from exla.search.space import Candidate, Goal
from exla.search.strategies.off import worth_compiling
from exla.search.strategy import Outcome, SearchSpace, Steps, each, starts, strategy

MOST_COMPILES = 8
HOPELESS = 3
"""After so many candidates in a row that come no nearer to the limit, the search gives up."""
FAR, NEARER = 1.25, 0.95
"""What is projected above the limit by `FAR`, and no nearer to it than `NEARER` of what failed before, is not tried."""


@strategy("analytic", measures=False)
def analytic(space: SearchSpace, generator: random.Random) -> Steps:
    """The fastest by prediction, and the next best; with the rewrites, and without where nothing obeys with them."""
    yield from each(worth_compiling(space))
    for start in starts(space):
        yield from descend(space, start)


def descend(space: SearchSpace, start: Candidate) -> Steps:
    """The best by prediction from one start; the goal is tightened by the compiler's word.

    What was ranked for the goal before is asked first, as far as it is within the new one.
    """
    goal = space.goal
    seen: set[tuple[str, int, float]] = set()
    smallest: list[int] = []
    ranked: list[Candidate] = []
    last: Candidate | None = None
    for _ in range(MOST_COMPILES):
        found = [c for c in ranked if c.outcome not in seen and space.is_met(c, goal)]
        if not found:
            ranked = space.ranked(start, goal)
            found = [c for c in ranked if c.outcome not in seen]
        if not found or _is_hopeless(space, found[0], last):
            return
        first = last = found[0]
        seen.add(first.outcome)
        outcome = yield first
        if outcome.status == "ok":
            yield from each(found[1:])  # for a driver that measures
            return
        if outcome.status == "barred":
            ranked = []
            continue
        smallest.append(min([*smallest[-1:], outcome.peak_bytes or goal.bytes]))
        if len(smallest) > HOPELESS and smallest[-1] > NEARER * smallest[-1 - HOPELESS]:
            return
        goal = tightened(goal, first, outcome, space.goal.bytes)


def _is_hopeless(space: SearchSpace, candidate: Candidate, last: Candidate | None) -> bool:
    """Whether a candidate is projected far above the limit like the last one asked about, and no nearer to it."""
    if last is None:
        return False
    far = FAR * space.goal.bytes
    return last.peak.bytes > far and candidate.peak.bytes > max(far, NEARER * last.peak.bytes)


def tightened(goal: Goal, candidate: Candidate, outcome: Outcome, limit_bytes: int) -> Goal:
    """The goal that a candidate would have had to have, to obey by the compiler's word."""
    over = 2 * limit_bytes if outcome.peak_bytes is None else outcome.peak_bytes * outcome.devices
    fixed = candidate.peak.arguments_bytes + candidate.peak.outputs_bytes
    share = max(limit_bytes - fixed, 0) / max(over - fixed, 1)
    return replace(
        goal, bytes=fixed + max(int((min(goal.bytes, candidate.peak.bytes) - fixed) * min(share, 0.9) * 0.9), 0)
    )
