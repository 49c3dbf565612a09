"""The analytic strategy: cut what holds the peak, predict, take what is fastest within the cap.

The prediction is a roofline for the target (`exla.search.cost`), and the candidates are those of the beam
(`exla.search.beam`).

*The cap is a bound, not a target*: among programs under it the one with the smallest predicted time wins, and
that is usually one whose chunks stay in cache. Where the compiler counts more than was projected, the goal is
tightened by as much: at first for what is cut in the same places alone, and once several of them failed for all, by as
much as for the worst. Where it counts less of the first that obeys, the goal is loosened by as much, and what is
predicted to be much faster is asked for: projected too high, chunks would be small for nothing. So it is where the one
before was over the limit and most of the room is left: the goal is then between the two.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from exla.passes.decisions import Change, Split
from exla.search.space import Candidate, Goal
from exla.search.strategies.off import worth_compiling
from exla.search.strategy import Outcome, SearchSpace, Steps, each, starts, strategy

MOST_COMPILES = 8
HOPELESS, HOPELESS_FINER = 3, 1
"""After so many candidates in a row that come no nearer to the limit, the search gives up; where it cuts finer, too."""
PLACES = 3
"""After so many candidates that are over the limit, whatever is cut elsewhere is expected to be so as well."""
FEW_SPLITS = 2
"""One after another; what is met by so few from one start is taken before what takes more from the one before."""
MOST_LOOSENED = 2
FAR_TOO_HIGH = 1.5
"""Times what the compiler counts beside arguments and results that is projected: there may be better then."""
MOSTLY_UNUSED = 0.5
"""Share of the room beside arguments and results that what obeys may take, if something between it and the last that
did not is to be worth compiling."""
MUCH_FASTER = 0.75
"""Share of the predicted time of what obeys, below which something with a higher projected peak is worth compiling."""
SLOW = 4
"""Times the predicted time of what is not split, above which larger values are kept whole too."""
FAR, NEARER = 1.25, 0.95
"""What is projected above the limit by `FAR`, and no nearer to it than `NEARER` of what failed before, is not tried.

Nor what is projected above the limit by less, once the compiler has counted nearly what was projected above it.
"""

TIGHT = 0.4
"""Share of the room that is aimed at where nothing else obeys: what is cut for less room is cut in other places."""

Way = Callable[[], Sequence[Candidate]]
"""Starts, made when they are asked for."""


@strategy("analytic", measures=False, improves=True)
def analytic(space: SearchSpace, generator: random.Random) -> Steps:
    """The fastest by prediction, and the next best; with the rewrites, and without where nothing obeys with them.

    At last what waits elsewhere, or in narrower types, where that is allowed, and what has no loop and is projected far
    above the limit.
    """
    whole, unsplit = list(worth_compiling(space)), starts(space)
    yield from each(c for c in whole if c.peak.bytes <= FAR * space.goal.bytes)
    is_met = yield from _split(space, unsplit)
    for start in () if is_met else unsplit:
        is_met |= yield from _kept_elsewhere(space, start)
    if not is_met:
        yield from each(c for c in whole if c.peak.bytes > FAR * space.goal.bytes)


def _split(space: SearchSpace, unsplit: Sequence[Candidate]) -> Generator[Candidate, Outcome, bool]:
    """Ask for split programs until one obeys.

    Where nothing does, what computes by itself what is compared for equality; then what has values of its own for
    each comparison, which computes more again; then what is cut finer: a small value that stays whole may tie
    a loop to the big ones that it is made of. At last what would obey a tighter limit.
    """

    @cache
    def distributed() -> Sequence[Candidate]:
        return [made for start in unsplit for made in space.distributed(start)]

    @cache
    def sealed() -> Sequence[Candidate]:
        return [made for start in unsplit for made in space.sealed(start)]

    tried = defaultdict[tuple[Change, ...], _Tried](_Tried)
    easiest = _easiest_first(space, unsplit)
    goals = (
        (space.goal, HOPELESS + PLACES - 1),
        (replace(space.goal, finest=True), HOPELESS_FINER),
        (_tight(space), HOPELESS_FINER),
    )
    for goal, hopeless in goals:
        ways: list[Way] = [lambda: easiest, sealed, distributed]
        for place, way in enumerate(ways, 1):
            is_met = False
            for start in way():
                is_met |= yield from _descend(space, start, goal, tried[start.decisions], hopeless, ways[place:])
            if is_met:
                return True
    return False


def _tight(space: SearchSpace) -> Goal:
    """A goal of less room, for which other places are cut, and the finest."""
    peak = space.root.peak
    fixed = peak.arguments_bytes + peak.outputs_bytes
    return replace(space.goal, bytes=fixed + int(TIGHT * (space.goal.bytes - fixed)), finest=True)


def _easiest_first(space: SearchSpace, unsplit: Sequence[Candidate]) -> Sequence[Candidate]:
    """The starts, the first that few splits bring within the limit before the others; as they are where none is."""
    if len(unsplit) == 1:
        return unsplit
    easy = (s for s in unsplit if any(space.is_met(c) for c in space.ranked(s, most_splits=FEW_SPLITS)))
    first = next(easy, unsplit[0])
    return [first, *(s for s in unsplit if s is not first)]


@dataclass(kw_only=True)
class _Tried:
    """What was compiled from one start.

    Attributes:
      seen: what the candidates lead to.
      projected: the smallest projected peak.
      is_told: whether what was over the limit last is projected above it, and counted as about that.
      smallest: the smallest peak so far, after each.
      over: where they were cut -> what was projected and what was counted of each that was over the limit, in bytes
        beside arguments and results.
    """

    seen: set[tuple[str, int, float]] = field(default_factory=set)
    projected: float = math.inf
    is_told: bool = False
    smallest: list[int] = field(default_factory=list)
    over: dict[Any, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))

    def note(self, space: SearchSpace, candidate: Candidate, outcome: Outcome) -> None:
        """Keep what the compiler counted of a candidate that is over the limit."""
        if outcome.status == "over_limit":
            projected = candidate.peak.bytes
            self.is_told = not space.is_met(candidate) and NEARER * projected <= _counted(outcome) <= FAR * projected
            self.over[_places(candidate)].append((_beside(candidate, projected), _taken(candidate, outcome)))

    def is_far(self, space: SearchSpace, candidate: Candidate) -> bool:
        """Whether a candidate is projected above the limit, and no nearer to it than those that were tried."""
        return not space.is_met(candidate) and candidate.peak.bytes > NEARER * self.projected


def _descend(
    space: SearchSpace,
    start: Candidate,
    goal: Goal,
    tried: _Tried,
    hopeless: int,
    later: Sequence[Way] = (),
) -> Generator[Candidate, Outcome, bool]:
    """Ask for one candidate after another until one obeys; the goal is tightened by the compiler's word.

    What was ranked for the goal before is asked first, as far as it is within the new one, unless it is far slower than
    what is ranked for that. Where there are others to start from, nothing is ranked again after one that is projected
    far above the limit.
    """
    seen, smallest = tried.seen, tried.smallest
    ranked: list[Candidate] = []
    last: Candidate | None = None
    missed: tuple[Candidate, int] | None = None
    first_goal, goals = goal, dict[Any, Goal]()
    for _ in range(MOST_COMPILES + PLACES - 1):
        found = [
            c
            for c in ranked
            if c.outcome not in seen
            and space.is_met(c, goals.get(_places(c), first_goal) if len(goals) < PLACES else goal)
        ]
        if not found and last is not None and last.peak.bytes > FAR * space.goal.bytes and any(way() for way in later):
            return False
        if not found:
            ranked = space.ranked(start, goal)
            if _is_slow(ranked, start) and not goal.coarser:
                coarser = replace(goal, coarser=True)
                faster = [c for c in space.ranked(start, coarser) if space.is_met(c, goal)]
                if faster and faster[0].seconds < MUCH_FASTER * ranked[0].seconds:
                    goal, ranked = coarser, faster
            found = [c for c in ranked if c.outcome not in seen]
        if found and missed and (finer := _finer(space, start, goal, *missed, found[0], seen)):
            ranked, found = [*finer, *ranked], [*finer, *found]
        if not found or _is_hopeless(space, found[0], last):
            return False
        if (goal.finest or tried.is_told) and tried.is_far(space, found[0]):
            return False
        first = last = found[0]
        seen.add(first.outcome)
        tried.projected = min(tried.projected, first.peak.bytes)
        outcome = yield first
        if outcome.status == "ok":
            yield from _loosened(space, start, goal, first, outcome, tried)
            others_met = (c for c in found[1:] if c.outcome not in seen and space.is_met(c, goal))
            yield from each(others_met)  # for a driver that measures
            return True
        if outcome.status == "barred":
            ranked, missed = [], None
            continue
        tried.note(space, first, outcome)
        missed = first, _over(outcome, space.goal.bytes) - space.goal.bytes
        smallest.append(min([*smallest[-1:], outcome.peak_bytes or goal.bytes]))
        if len(smallest) > hopeless and smallest[-1] > NEARER * smallest[-1 - hopeless]:
            return False
        places = _places(first)
        before = goals.get(places, replace(goal, bytes=first_goal.bytes))
        goals[places] = tightened(before, first, outcome, space.goal.bytes)
        goal = min(goals.values(), key=lambda g: g.bytes)
    return False


def _is_slow(ranked: Sequence[Candidate], start: Candidate) -> bool:
    """Whether what is ranked first computes most of it again on many trips, or is cut too finely.

    Something a little too big to stay whole may have to be computed on every trip.
    """
    return bool(ranked) and ranked[0].seconds > SLOW * start.seconds


def _finer(
    space: SearchSpace,
    start: Candidate,
    goal: Goal,
    last: Candidate,
    excess: int,
    following: Candidate,
    seen: Set[Any],
) -> list[Candidate]:
    """What is much faster than the candidate that follows on one over the limit, as fast as that; fastest first.

    It need not be within the tightened goal: smaller chunks of the same may be counted as they are projected, or be
    over by the bytes that were in excess, not by their share.
    """
    if last.seconds >= MUCH_FASTER * following.seconds:
        return []
    limits = goal.bytes, (goal.bytes + last.peak.bytes) // 2, last.peak.bytes - excess
    goals = [replace(goal, bytes=limit) for limit in sorted({limit for limit in limits if limit >= goal.bytes})]
    within = [c for g in goals for c in space.ranked(start, g) if c.outcome not in seen and space.is_met(c, g)]
    return sorted((c for c in within if c.seconds < MUCH_FASTER * following.seconds), key=lambda c: c.seconds)


def _loosened(
    space: SearchSpace, start: Candidate, goal: Goal, candidate: Candidate, outcome: Outcome, tried: _Tried
) -> Steps:
    """Ask for what is predicted to be much faster, as far as the compiler's word of what obeys leaves room for it."""
    taken = _taken(candidate, outcome)
    for _ in range(MOST_LOOSENED):
        wanted = _looser(space, candidate, taken, tried.over[_places(candidate)])
        if outcome.peak_bytes is None or wanted is None:
            return
        looser = replace(goal, bytes=_fixed(candidate) + wanted)
        faster = next((c for c in space.ranked(start, looser) if c.outcome not in tried.seen), candidate)
        if not faster.splits or faster.seconds > MUCH_FASTER * candidate.seconds:
            return
        tried.seen.add(faster.outcome)
        outcome = yield faster
        tried.note(space, faster, outcome)
        if outcome.status == "ok":
            candidate, taken = faster, _taken(faster, outcome)
        elif outcome.status != "over_limit" or _places(faster) != _places(candidate):
            return


def _looser(space: SearchSpace, candidate: Candidate, taken: int, over: Sequence[tuple[int, int]]) -> int | None:
    """What may be projected beside arguments and results for the compiler to count most of the room; None = no more."""
    room, projected = _beside(candidate, space.goal.bytes), _beside(candidate, candidate.peak.bytes)
    wanted = int(0.9 * room)
    failed = min((known for known in over if known[0] > projected and known[1] > room), default=None)
    if failed is not None and taken < MOSTLY_UNUSED * room:
        return projected + int((failed[0] - projected) * (wanted - taken) / (failed[1] - taken))
    return int(wanted * projected / taken) if projected > FAR_TOO_HIGH * taken and failed is None else None


def _beside(candidate: Candidate, peak_bytes: int) -> int:
    """What a peak holds beside arguments and results."""
    return peak_bytes - _fixed(candidate)


def _taken(candidate: Candidate, outcome: Outcome) -> int:
    """What the compiler counts beside arguments and results, of all devices; at least 1."""
    return max(_beside(candidate, _counted(outcome)), 1)


def _counted(outcome: Outcome) -> int:
    """What the compiler counts, of all devices."""
    return (outcome.peak_bytes or 0) * outcome.devices


def _over(outcome: Outcome, limit_bytes: int) -> int:
    """What the compiler counts of what is over the limit; twice the limit where it does not say."""
    return 2 * limit_bytes if outcome.peak_bytes is None else _counted(outcome)


def _fixed(candidate: Candidate) -> int:
    return candidate.peak.arguments_bytes + candidate.peak.outputs_bytes


def _places(candidate: Candidate) -> tuple[Any, ...]:
    """What is done where: the decisions without sizes."""
    return tuple((d.path, d.site, d.result, d.axis) if isinstance(d, Split) else d for d in candidate.decisions)


def _kept_elsewhere(space: SearchSpace, start: Candidate) -> Generator[Candidate, Outcome, bool]:
    """Ask for a program whose values wait elsewhere until one obeys, as it is or split.

    As many wait as are projected to be enough, then as many as the compiler's word asks for, then all.
    """
    goal, seen = space.goal, set[tuple[str, int, float]]()
    while True:
        over: Goal | None = None
        for candidate in space.stored(start, goal):
            if candidate.outcome in seen:
                continue
            seen.add(candidate.outcome)
            if not space.is_met(candidate):
                if (yield from _descend(space, candidate, space.goal, _Tried(), HOPELESS)):
                    return True
                continue
            outcome = yield candidate
            if outcome.status == "ok":
                return True
            over = over or tightened(goal, candidate, outcome, space.goal.bytes)
        if over is None or goal.bytes == 0:
            return False
        goal = replace(over, bytes=0) if goal is not space.goal else over


def _is_hopeless(space: SearchSpace, candidate: Candidate, last: Candidate | None) -> bool:
    """Whether a candidate is projected far above the limit like the last one asked about, and no nearer to it."""
    if last is None:
        return False
    far = FAR * space.goal.bytes
    return last.peak.bytes > far and candidate.peak.bytes > max(far, NEARER * last.peak.bytes)


def tightened(goal: Goal, candidate: Candidate, outcome: Outcome, limit_bytes: int) -> Goal:
    """The goal that a candidate would have had to have, to obey by the compiler's word."""
    over = _over(outcome, limit_bytes)
    fixed = _fixed(candidate)
    share = max(limit_bytes - fixed, 0) / max(over - fixed, 1)
    return replace(
        goal, bytes=fixed + max(int((min(goal.bytes, candidate.peak.bytes) - fixed) * min(share, 0.9) * 0.9), 0)
    )
