"""The beam: the split programs that promise most, found without looking at all of them.

Each step looks at the values that hold the projected peak, tries the regions that cutting one of their axes makes at
two chunk sizes, keeps the few that promise most, and for those tries chunk sizes from a part of the cache to what the
cap leaves. Where cutting one factor is not enough, the like of it is cut wherever it is computed
(`exla.search.repeated`), and the best unfinished programs are split again, inside their loops too. In a program of
hundreds of equations the beam may come to an end before (`Space.is_exhausted`).
"""

from __future__ import annotations

import enum
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from exla.passes.decisions import Rematerialize, Sink, Split
from exla.passes.split.carrying import combiner_of
from exla.passes.split.chunks import at_least, largest_chunk, probe, sizes, tidy
from exla.passes.split.combine import MANY
from exla.passes.split.decide import Seed
from exla.passes.split.regions import Instance, Region, factors_of
from exla.search.repeated import are_alike, repeated

if TYPE_CHECKING:
    from exla.search.space import Candidate, Goal, Space

T = TypeVar("T")


class Going(enum.Enum):
    """Whether the search goes on from a candidate that does not obey."""

    BY_TIME = "if it is among those that leave least, the faster of what leave nearly the same first"
    BY_BYTES = "if it leaves the least, beside those"
    NOT = "not at all, as it does from another chunk size of the same split"


@dataclass(frozen=True, kw_only=True)
class Probed:
    """A split at a chunk size and a larger one.

    Attributes:
      seed: what is split.
      cut: chunk size -> the candidate with such chunks.
      first: the smaller size.
      at_first: the candidate with it.
      second: the larger size; the same where there is none.
      at_second: the candidate with it.
      at_few: with so few chunks that sums keep no more than they come to, where neither obeys and that is another size.
    """

    seed: Seed
    cut: Callable[[int], Candidate]
    first: int
    at_first: Candidate
    second: int
    at_second: Candidate
    at_few: Candidate | None = None

    @property
    def all(self) -> tuple[Candidate, ...]:
        return self.at_first, self.at_second, *(() if self.at_few is None else (self.at_few,))

    @property
    def seconds(self) -> float:
        return min(p.seconds for p in self.all)

    @property
    def bytes(self) -> int:
        return min(p.peak.bytes for p in self.all)

    def may_shrink_to(self, most_bytes: int) -> bool:
        """Whether chunks of the smallest size may take so little, as a line through the two sizes says: mostly a peak
        is the largest of several such. Nothing is said where a remainder may hold the peak."""
        if self.second == self.first or self.seed.region.size % self.first or self.seed.region.size % self.second:
            return True
        slope, fixed = _line(self.first, self.at_first, self.second, self.at_second)
        return fixed + slope * self.seed.region.least_chunk <= most_bytes

    def is_beside(self, candidate: Candidate, goal: Goal) -> bool:
        """Whether chunks of any size leave more than the goal, and those of a candidate take a small part of it."""
        _, fixed = _line(self.first, self.at_first, self.second, self.at_second)
        room = goal.bytes - candidate.peak.arguments_bytes - candidate.peak.outputs_bytes
        return fixed > goal.bytes and candidate.peak.bytes - fixed <= BESIDE * room


def _line(first: int, at_first: Candidate, second: int, at_second: Candidate) -> tuple[float, float]:
    """What each index of a chunk adds to the peak, and what is there without any, on a line through two chunk sizes."""
    slope = (at_second.peak.bytes - at_first.peak.bytes) / max(second - first, 1)
    return slope, at_first.peak.bytes - slope * first


MOST_SPLITS = 8
BEAM = 3
FINALISTS = 3
FEW = 2
"""After so many splits, what is left to be cut must be less by half of the share that these are of all splits."""
STALLED, STALLED_AT = 2, 0.98
"""After so many splits one after another, one of them must have brought what is left to be cut, or the peak, to that
share of the least before them."""
ANY = 1 << 62
FEW_TRIPS = 64
AGAIN = 1.5
"""Times the predicted time of what is split, up to which what a split computes again is not worth keeping."""
SLOW = 2
"""Times the predicted time of what is split, beyond which one more split is tried though something is within the goal:
what takes so long computes the same for several chunks, and in two loops may not have to."""
HURRIED = 1.25
"""Times the predicted time of what obeys, from which on a slower candidate is not split further."""
MOST_LINES = 4
"""Lines through two points of a peak over chunk sizes, each through a nearer point, till one holds up to the goal."""
CACHE_SHARES = (1 / 8, 1 / 2, 2, 8, 32)
"""Working sets that are tried, as multiples of what stays in cache."""
BESIDE = 0.5
"""Share of the goal, beside arguments and results, up to which chunks may take of it what they add to a peak that is
brought within the goal by another split."""
NEARLY = 0.03
"""Peaks that differ by so small a part are the same, and the faster is taken: else chunks of one index, which take a
little less than those of eight, would fill the beam."""


def rank(space: Space, start: Candidate, goal: Goal, most_splits: int = MOST_SPLITS) -> list[Candidate]:
    """Split programs whose projected peak is within a goal.

    Args:
      space: what can be done.
      start: what is split.
      goal: what is wanted.
      most_splits: how many splits one after another are tried, each of one place or of all that are alike.

    Returns:
      Candidates, best first: those within the goal by predicted time, else the smallest peaks that were found. Empty
      where nothing can be split.
    """
    done: list[Candidate] = []
    failed: list[Candidate] = []
    beam = [start]
    for made in space.sunk(start, goal):
        (done if space.is_met(made, goal) else beam).append(made)
    all_left = start.peak.beyond(goal.bytes)

    def expanded(parents: Sequence[Candidate]) -> list[tuple[Candidate, Going]]:
        steps: list[tuple[Candidate, Going]] = []
        fastest = math.inf
        for parent in parents:
            if parent.seconds <= HURRIED * fastest:
                steps += [(p, going) for p, going in _expand(space, parent, goal) if space.is_steady(p)]
                fastest = min((p.seconds for p, _ in steps if space.is_met(p, goal)), default=fastest)
        return steps

    course: list[tuple[int, int]] = []  # what is left to be cut, and the peak, after each split
    least: list[Candidate] = []  # beside the beam: by bytes alone, whatever is predicted
    for count in range(most_splits):
        is_last = bool(done) and count > 0
        steps = expanded(beam)
        obeying = itertools.chain(done, (p for p, _ in steps if space.is_met(p, goal)))
        if not count and not any(c.seconds <= start.seconds for c in obeying):
            again = list(space.checkpointed(start, goal))
            done += [made for made in again if space.is_met(made, goal)]
            steps += expanded([made for made in again if not space.is_met(made, goal)])
        steps = [(space.with_less(p, goal), going) for p, going in steps]
        apart = [p for p, going in steps if going is Going.BY_BYTES]
        apart += [p for p, _ in expanded(least)]
        grown = [p for p, going in steps if going is not Going.BY_BYTES]
        ended = {id(p) for p, going in steps if going is Going.NOT}
        met = {id(p): p for p in (*grown, *apart) if space.is_met(p, goal)}
        done += [both for p in met.values() for both in space.both(p, goal)]
        if done and (is_last or min(c.seconds for c in done) <= SLOW * start.seconds):
            break
        grown, apart = ([p for p in found if id(p) not in met] for found in (grown, apart))
        failed += [*grown, *apart]
        grown = [p for p in grown if id(p) not in ended]
        smallest, least = (sorted(found, key=lambda p: _size(space, p, goal)) for found in (grown, apart))
        beam, least = _and_one(smallest, BEAM, _computes_again, _has_sunk), least[:1]
        if not beam and not least:
            break
        left = min(p.peak.beyond(goal.bytes) for p in (*beam, *least))
        course.append((left, min(p.peak.bytes for p in (*beam, *least))))
        is_late = count + 1 >= FEW and left > (1 - (count + 1) / (2 * most_splits)) * all_left
        if is_late or _is_stalled(course):
            break
    return _distinct(sorted(done, key=speed) if done else sorted(failed, key=lambda p: p.peak.bytes))


def _is_stalled(course: Sequence[tuple[int, int]]) -> bool:
    """Whether none of the last splits has made either of two numbers noticeably less than those before them did."""
    if len(course) <= STALLED:
        return False
    return all(min(found[-STALLED:]) > STALLED_AT * min(found[:-STALLED]) for found in zip(*course, strict=True))


def _distinct(found: Sequence[Candidate]) -> list[Candidate]:
    """Each candidate once, where it comes first."""
    return list({p.outcome: p for p in reversed(found)}.values())[::-1]


def _and_one(found: Sequence[T], count: int, *kinds: Callable[[T], bool]) -> list[T]:
    """The first few, and the first of each kind that may need a further split to show its worth."""
    chosen = list(found[:count])
    for is_one in kinds:
        if not any(map(is_one, chosen)):
            chosen += [p for p in found[count:] if is_one(p)][:1]
    return chosen


def _size(space: Space, candidate: Candidate, goal: Goal) -> tuple[int, bool, float]:
    """The peak, nearly; where it is elsewhere, whether the last loops are beyond the goal; the predicted time."""
    nearly = round(math.log(max(candidate.peak.bytes, 1)) / NEARLY)
    return nearly, _is_beyond(candidate, goal), _to_come_s(space, candidate)


def _to_come_s(space: Space, candidate: Candidate) -> float:
    """The predicted time, and that to hand out what the last loops take: all that counts once the rest is cut too."""
    taken = max((candidate.peak.course[i] for i in _last_loops(candidate)), default=0)
    return candidate.seconds + space.machine.touching_s(taken - candidate.peak.outputs_bytes)


def _is_beyond(candidate: Candidate, goal: Goal) -> bool:
    """Whether the loops that a candidate's last split has made need more than a goal, whatever else does."""
    return candidate.peak.beyond(goal.bytes, _last_loops(candidate)) > 0


def _last_loops(candidate: Candidate) -> list[int]:
    """The positions of the loops that a candidate's last split has made, or of what they are in."""
    seed = candidate.seeds[-1]
    if seed.decision.path:
        return [seed.decision.path[0][0]]
    before = {None, *(eqn.params.get("loop") for eqn in seed.region.program.eqns)}
    return [i for i, eqn in enumerate(candidate.program.eqns) if eqn.params.get("loop") not in before]


def _computes_again(candidate: Candidate) -> bool:
    return candidate.seeds[-1].decision.growth.again


def _has_sunk(candidate: Candidate) -> bool:
    """Whether a loop computes for itself what it reads, beside what is computed outside till that is cut as well."""
    return any(isinstance(decision, Sink | Rematerialize) for decision in candidate.decisions)


def speed(candidate: Candidate) -> tuple[float, int, int]:
    """Predicted time to two per cent, then the peak, then the number of decisions."""
    coarse = round(math.log(max(candidate.seconds, 1e-9)) * 50) if math.isfinite(candidate.seconds) else 1 << 30
    return (coarse, candidate.peak.bytes, len(candidate.decisions))


def _expand(space: Space, parent: Candidate, goal: Goal) -> Iterator[tuple[Candidate, Going]]:
    """Split a candidate's program once more, in the few ways that promise most.

    Where none of them obeys, what leaves the smallest peak may be what a further split needs: it is yielded as well;
    then those that promise most, made of all that is like what they cut.
    """
    limit = parent.peak.bytes if parent.seeds else space.unfused(parent).bytes
    beyond = parent.peak.beyond(goal.bytes)
    probed: list[Probed] = []
    seconds = dict[Split, float]()
    enough = set[Split]()
    obeying = 0

    def obeys(tried: Probed) -> bool:
        return any(space.is_met(p, goal) for p in tried.all)

    def gains(seed: Seed, made: Candidate) -> bool:
        """Whether a split lowers the peak or leaves less to be cut; what recomputes may need a further one for it."""
        if made.peak.bytes != limit:
            return made.peak.bytes < limit
        return seed.recomputes or made.peak.beyond(goal.bytes) < beyond

    for seed in space.offers(parent, goal):
        if space.is_exhausted:
            break
        region, growth = seed.region, seed.decision.growth
        alike = replace(seed.decision, growth=replace(growth, kept=0))
        if growth.kept and (alike in enough or seconds.get(alike, 0.0) <= AGAIN * parent.seconds):
            continue
        most, first = largest_chunk(region.size), probe(region.size, region.least_chunk)
        if first >= region.size:
            continue
        second = max(first, min(4 * first, most))
        may_shrink = _may_shrink(region, first, second)
        is_wanted = obeying < FINALISTS or growth.again or may_shrink
        if not is_wanted and _left_whole(parent, region) > goal.bytes:
            continue
        at_first = space.cut_if_possible(parent, seed, first)
        if at_first is None:
            continue
        if not growth.kept:
            seconds[alike] = at_first.seconds
        elif space.is_met(at_first, goal):
            enough.add(alike)
        if not gains(seed, at_first) and not may_shrink:
            continue
        if not is_wanted and not space.is_met(at_first, goal):
            continue  # the search goes on from those that obey
        at_second = space.cut_if_possible(parent, seed, second) if second > first else at_first
        if at_second is None or not (gains(seed, at_first) or gains(seed, at_second)):
            continue
        cut = functools.partial(space.cut, parent, seed)
        tried = Probed(seed=seed, cut=cut, first=first, at_first=at_first, second=second, at_second=at_second)
        few = None if obeys(tried) else _summed_at_once(region, second, space.machine.lanes)
        at_few = None if few is None else space.cut_if_possible(parent, seed, few)
        probed.append(replace(tried, at_few=at_few))
        obeying += obeys(probed[-1])

    def promise(tried: Probed) -> tuple[bool, bool, bool, float]:
        over = tried.bytes > goal.bytes  # if so by what is cut elsewhere, that is cut next
        return (not obeys(tried), over, over and all(_is_beyond(p, goal) for p in tried.all), tried.seconds)

    if not probed:
        return
    probed.sort(key=promise)
    finalists = _and_one(probed, FINALISTS, lambda p: p.seed.decision.growth.again)
    for tried in finalists:
        yield from _to_go_on(space, goal, tried, Going.BY_TIME)
    smallest = min(probed, key=lambda p: p.bytes)
    for tried in probed:
        seed = tried.seed
        if obeying and not tried.may_shrink_to(goal.bytes):
            continue  # else it may be what obeys, however slow
        if is_short(seed) and seed.region.least_chunk < tried.first and not space.is_met(tried.at_first, goal):
            smallest_chunks = tried.cut(seed.region.least_chunk)
            if space.is_met(smallest_chunks, goal):
                yield smallest_chunks, Going.BY_TIME
            elif smallest_chunks.peak.bytes < smallest.bytes:  # in the beam it would take the place of what is split on
                yield smallest_chunks, Going.BY_BYTES
    if not obeying:
        if not any(tried is smallest for tried in finalists):
            yield from _to_go_on(space, goal, smallest, Going.BY_BYTES)
        yield from ((made, Going.BY_TIME) for tried in finalists for made in _of_the_like(space, goal, tried))


def _to_go_on(space: Space, goal: Goal, tried: Probed, going: Going) -> Iterator[tuple[Candidate, Going]]:
    """Chunk sizes of a split that was probed. Where what is cut next has to bring the peak down, the search goes on
    from the fastest of those that leave room for it, and from the smallest of them, alone."""
    found = list(_chunk_sizes(space, goal, tried))
    beside = [c for c in found if tried.is_beside(c, goal)]
    fastest = min(beside, key=lambda c: _to_come_s(space, c), default=None)
    smallest = min(beside, key=lambda c: _size(space, c, goal), default=None)
    for candidate in found:
        if candidate is fastest:
            yield candidate, Going.BY_TIME
        elif candidate is smallest or not any(candidate is c for c in beside):
            yield candidate, going
        else:
            yield candidate, Going.NOT


def _of_the_like(space: Space, goal: Goal, tried: Probed) -> Iterator[Candidate]:
    """A split that was probed, made of all that is like what it cuts; at more sizes where that is within the goal."""

    def cut(chunk: int) -> Candidate:
        return repeated(space, tried.cut(chunk), goal)

    *before, last = tried.at_first.seeds
    if _is_beyond(tried.at_first, goal) or any(are_alike(last, seed) for seed in before):
        return
    at_first = cut(tried.first)
    if space.is_met(at_first, goal):
        at_second = cut(tried.second)
        yield from _chunk_sizes(space, goal, replace(tried, cut=cut, at_first=at_first, at_second=at_second))
    elif at_first is not tried.at_first:
        yield at_first


def _left_whole(candidate: Candidate, region: Region) -> int:
    """Bytes of what holds a candidate's peak and is there whole when a region of it is cut, in whatever chunks."""
    cut = {var for var, _ in region.makers} - region.stored
    return sum(held.bytes for held in candidate.peak.held if held.var not in cut)


def _may_shrink(region: Region, first: int, second: int) -> bool:
    """Whether larger chunks may leave less: with fewer of them, fewer states are saved, or sums keep less."""
    return region.saves_states or -(-region.size // second) <= MANY < -(-region.size // first)


def is_short(seed: Seed) -> bool:
    """Whether an axis is so short that chunks of the smallest size may be the fastest."""
    return seed.region.size <= FEW_TRIPS * seed.region.least_chunk


def _smaller(space: Space, goal: Goal, tried: Probed, at_first: Candidate, first: int) -> Iterator[Candidate]:
    """The smallest chunks of a split whose chunks of a first size are too large, and the largest that may obey."""
    least = tried.seed.region.least_chunk
    at_least = tried.cut(least)
    yield at_least
    room, grown = goal.bytes - at_least.peak.bytes, at_first.peak.bytes - at_least.peak.bytes
    if not 0 < room < grown:
        return
    for wanted in (least + (first - least) * room // grown, 2 * least):  # where the peak has a step, the second
        chunk = tidy(tried.seed.region.size, wanted, least, space.machine.lanes)
        if least < chunk < first:
            made = tried.cut(chunk)
            yield made
            if made.peak.bytes <= goal.bytes:
                return


def _chunk_sizes(space: Space, goal: Goal, tried: Probed) -> Iterator[Candidate]:
    """A split that was probed at two chunk sizes, at more of them."""
    machine, seed, cut = space.machine, tried.seed, tried.cut
    first, at_first, second, at_second = tried.first, tried.at_first, tried.second, tried.at_second
    region_size = seed.region.size
    least, most = seed.region.least_chunk, largest_chunk(region_size)
    known = {first}
    yield at_first
    if at_second.peak.bytes > at_first.peak.bytes > goal.bytes and least < first:
        yield from _smaller(space, goal, tried, at_first, first)

    def goes_on() -> bool:
        """Whether what holds the peak does not grow with the chunk yet, is a state saved for every chunk, or is cut
        next, beside loops that have room for more."""
        return at_second.peak.bytes <= at_first.peak.bytes or tried.is_beside(at_second, goal)

    while second < most and goes_on():
        first, at_first = second, at_second
        second = min(8 * second, most)
        at_second = cut(second)
        known.add(second)
        yield at_second
    few = _summed_at_once(seed.region, max(second, *known), machine.lanes)
    if at_first.peak.bytes <= goal.bytes:
        if least < first and is_short(seed):
            yield cut(least)
        if second not in known and at_second.peak.bytes <= goal.bytes and goal.most_chunk_bytes is None:
            known.add(second)
            yield at_second  # larger ones may turn out not to obey
        yield from _along(space, goal, seed, cut, (first, at_first), (second, at_second), known)
    if few is None or few <= max(known):
        return
    at_few = cut(few)
    if at_few.peak.bytes <= max(goal.bytes, at_first.peak.bytes):
        known.add(few)
        yield at_few  # else what is cut next may bring it within the goal
    if at_few.peak.bytes <= goal.bytes:
        twice = min(2 * few, most)
        yield from _along(space, goal, seed, cut, (few, at_few), (twice, cut(twice)), known, few)


def _summed_at_once(region: Region, beyond: int, lanes: int) -> int | None:
    """A size of chunks, beyond one, of which there are so few that sums keep no more than they come to; None where
    nothing is summed, or such chunks are no larger."""

    def keeps_more(instance: Instance) -> bool:
        position, name, _ = instance
        is_reduced = name in factors_of(region.program, position).rule.reduced
        return is_reduced and combiner_of(region, instance, MANY) != combiner_of(region, instance, MANY + 1)

    if region.size <= MANY * beyond or not any(keeps_more(o.instance) for o in region.outputs if o.stacked is None):
        return None
    found = at_least(region.size, max(-(-region.size // MANY), region.least_chunk), lanes)
    return found if found > beyond else None


def _along(
    space: Space,
    goal: Goal,
    seed: Seed,
    cut: Callable[[int], Candidate],
    near: tuple[int, Candidate],
    far: tuple[int, Candidate],
    known: set[int],
    lowest: int = 1,
) -> Iterator[Candidate]:
    """A split with chunks up to what a goal leaves for them, on a line through two sizes; those that are known left."""
    machine, region = space.machine, seed.region
    (first, at_first), (second, at_second) = near, far
    sets = [int(machine.cache_bytes * share) for share in CACHE_SHARES]
    arranged = space.arranged(at_first, replace(goal, bytes=ANY))
    more = 0 if arranged is None else arranged.peak.bytes - at_first.peak.bytes
    for _ in range(MOST_LINES):
        slope, fixed = _line(first, at_first, second, at_second)
        ceiling = goal.bytes
        if goal.most_chunk_bytes is not None:
            ceiling = min(ceiling, int(fixed) + goal.most_chunk_bytes)
        wanted = (*sets, max(ceiling - more - int(fixed), 0))  # the last leaves room to transpose before the loop
        for chunk in sizes(region.size, region.least_chunk, slope, fixed, ceiling, wanted, machine.lanes):
            if chunk in known or chunk < lowest:
                continue
            known.add(chunk)
            made = cut(chunk)
            yield made
            if made.peak.bytes > goal.bytes:
                # The peak grows faster than between the probes; the line through this point is nearer.
                second, at_second = chunk, made
                break
        else:
            break
