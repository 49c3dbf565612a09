"""The heuristic strategy: cut what holds the peak, predict, keep what is fastest within the cap.

From the program as it is, each step looks at the values that hold the projected peak, tries the regions that
cutting one of their axes makes at two chunk sizes, keeps the few that promise most, and for those tries chunk
sizes from a part of the cache to what the cap leaves. Where one factor is not enough, the best unfinished
programs are split again, inside their loops too.

*The cap is a bound, not a target*: among programs under it the one with the smallest predicted time wins, and
that is usually one whose chunks stay in cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from exla.ir.memory import Peak, largest_bytes, project
from exla.ir.program import Program, value_bytes
from exla.passes.decisions import Change, Decision
from exla.passes.sink import apply_sink, enumerate_sinks
from exla.passes.split.chunks import sizes
from exla.passes.split.decide import Seed, apply_seed, enumerate_splits, growths
from exla.search.cost import predict_s
from exla.strict import tolerate
from exla.targets.machine import Machine

T = TypeVar("T")

MOST_SPLITS = 6
MOST_SINKS = 6
BEAM = 3
FINALISTS = 3
PROBE = 8
CACHE_SHARES = (1 / 8, 1 / 2, 2, 8, 32)
"""Working sets that are tried, as multiples of what stays in cache."""


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A rewritten program with what is predicted for it; one seed for each split among its decisions."""

    program: Program
    decisions: tuple[Decision, ...]
    seeds: tuple[Seed, ...]
    peak: Peak
    seconds: float


@dataclass(frozen=True, kw_only=True)
class _Goal:
    """What is wanted of a proposal, on which machine; the names are those of `propose`."""

    bytes: int
    machine: Machine
    most_chunk_bytes: int | None
    most_value_bytes: int | None
    exact: bool
    barred: Callable[[Seed], bool]

    def peak(self, program: Program, *, fused: bool = True) -> Peak:
        return project(program, fused=fused, window=self.machine.longest_fused_reduction)

    def is_met(self, proposal: Proposal) -> bool:
        if proposal.peak.bytes > self.bytes:
            return False
        if self.most_value_bytes is not None and largest_bytes(proposal.program) > self.most_value_bytes:
            return False
        loops = (e.params["loop"] for e in proposal.program.eqns if e.primitive.name == "exla_split")
        return self.most_chunk_bytes is None or all(self.peak(p.body).bytes <= self.most_chunk_bytes for p in loops)


def propose(
    program: Program,
    goal_bytes: int,
    machine: Machine,
    most_chunk_bytes: int | None = None,
    most_value_bytes: int | None = None,
    exact: bool = False,
    changes: Sequence[Change] = (),
    barred: Callable[[Seed], bool] = lambda seed: False,
) -> list[Proposal]:
    """Propose split programs whose projected peak is within a goal.

    Args:
      program: the canonical program.
      goal_bytes: what the projected peak may be, arguments included.
      machine: the machine, for predicted time.
      most_chunk_bytes: the paper's tensor_split_size: working set that no chunk may exceed, or None.
      most_value_bytes: the paper's tensor_size_threshold: values above it are split although they fit, or None.
      exact: whether what is cut must keep every bit, wherever the chunks begin.
      changes: what was decided to make the program out of the user's.
      barred: seeds that are not to be split.

    Returns:
      Proposals, best first: those within the goal by predicted time, then the smallest peaks found. Empty where
      nothing can be split.
    """
    goal = _Goal(
        bytes=goal_bytes,
        machine=machine,
        most_chunk_bytes=most_chunk_bytes,
        most_value_bytes=most_value_bytes,
        exact=exact,
        barred=barred,
    )
    start = Proposal(program=program, decisions=tuple(changes), seeds=(), peak=goal.peak(program), seconds=math.inf)
    beam, failed = [start, *_sunk(start, goal)], []
    for _ in range(MOST_SPLITS):
        grown = [p for parent in beam for p in _expand(parent, goal)]
        finished = sorted(filter(goal.is_met, grown), key=_speed)
        if finished:
            return finished
        failed += grown
        smallest = sorted(grown, key=lambda p: (p.peak.bytes, p.seconds))
        beam = _and_one(smallest, BEAM, lambda p: p.seeds[-1].decision.growth.again)
        if not beam:
            break
    return sorted(failed, key=lambda p: p.peak.bytes)


def _sunk(start: Proposal, goal: _Goal) -> Iterator[Proposal]:
    """The program whose loops compute for themselves the big values that they read, where there are such."""
    room = max(goal.bytes - start.peak.arguments_bytes - start.peak.outputs_bytes, 1)
    program, decisions = start.program, list[Decision]()
    while len(decisions) < MOST_SINKS:
        with tolerate("moving a value into the loop that reads it"):
            sink = next(enumerate_sinks(goal.peak(program).held, max(room // 8, 1)), None)
            if sink is None:
                break
            program = apply_sink(program, sink)
            decisions.append(sink)
    if decisions:
        yield replace(start, program=program, decisions=(*start.decisions, *decisions), peak=goal.peak(program))


def _and_one(found: Sequence[T], count: int, computes_again: Callable[[T], bool]) -> list[T]:
    """The first few, and the first that computes something again: it may need a further split to show its worth."""
    chosen = list(found[:count])
    if not any(map(computes_again, chosen)):
        chosen += [p for p in found[count:] if computes_again(p)][:1]
    return chosen


def _speed(proposal: Proposal) -> tuple[float, int, int]:
    """Predicted time to a few per cent, then the peak, then the number of decisions."""
    coarse = round(math.log(max(proposal.seconds, 1e-9)) * 20)
    return (coarse, proposal.peak.bytes, len(proposal.decisions))


def _expand(parent: Proposal, goal: _Goal) -> Iterator[Proposal]:
    """Split a proposal's program once more, in the few ways that promise most."""
    machine = goal.machine
    unfused = goal.peak(parent.program, fused=False)
    largest = max((value_bytes(h.var) for h in unfused.held), default=0)
    room = max(goal.bytes - parent.peak.arguments_bytes - parent.peak.outputs_bytes, 1)
    most = min(largest // 2, goal.most_value_bytes or largest)
    small = sorted({max(min(room // 64, most), 1), max(min(room // 8, most), 1)})
    held = unfused.held if not parent.seeds else (*parent.peak.held, *unfused.held)
    limit = unfused.bytes if not parent.seeds else parent.peak.bytes
    probed = []
    for seed in enumerate_splits(parent.program, held, growths(small, goal.exact)):
        region = seed.region
        first = max(region.least_chunk, min(PROBE, region.size // 2))
        if first >= region.size or goal.barred(seed):
            continue
        at_first = at_second = None
        second = min(4 * first, region.size - 1)
        with tolerate(f"trying to {seed.split(first)}"):
            at_first = _apply(parent, seed, first, goal)
            at_second = _apply(parent, seed, second, goal) if second > first else at_first
        if at_first is None or at_second is None:
            continue
        smaller = min(at_first.peak.bytes, at_second.peak.bytes)
        if smaller > limit or (smaller == limit and not seed.recomputes):
            continue
        probed.append((seed, first, at_first, second, at_second))

    def promise(probe: tuple[Seed, int, Proposal, int, Proposal]) -> tuple[bool, bool, float]:
        both = (probe[2], probe[4])
        within = any(map(goal.is_met, both))
        return (not within, min(p.peak.bytes for p in both) > goal.bytes, min(p.seconds for p in both))

    probed.sort(key=promise)
    for seed, first, at_first, second, at_second in _and_one(probed, FINALISTS, lambda p: p[0].decision.growth.again):
        region_size = seed.region.size
        least = seed.region.least_chunk
        yield at_first
        if at_second.peak.bytes > at_first.peak.bytes > goal.bytes and least < first:
            yield _apply(parent, seed, least, goal)
        while at_second.peak.bytes <= at_first.peak.bytes and second < region_size - 1:
            # What holds the peak does not grow with the chunk yet, or is a state saved for every chunk; go on.
            first, at_first = second, at_second
            second = min(8 * second, region_size - 1)
            at_second = _apply(parent, seed, second, goal)
            yield at_second
        if at_first.peak.bytes > goal.bytes:
            continue
        sets = [int(machine.cache_bytes * share) for share in CACHE_SHARES]
        known = {first}
        for _ in range(2):
            slope = (at_second.peak.bytes - at_first.peak.bytes) / max(second - first, 1)
            fixed = at_first.peak.bytes - slope * first
            ceiling = goal.bytes
            if goal.most_chunk_bytes is not None:
                ceiling = min(ceiling, int(fixed) + goal.most_chunk_bytes)
            for chunk in sizes(region_size, least, slope, fixed, ceiling, sets, machine.lanes):
                if chunk in known:
                    continue
                known.add(chunk)
                made = _apply(parent, seed, chunk, goal)
                yield made
                if made.peak.bytes > goal.bytes:
                    # The peak grows faster than between the probes; the line through this point is nearer.
                    second, at_second = chunk, made
                    break
            else:
                break


def _apply(parent: Proposal, seed: Seed, chunk: int, goal: _Goal) -> Proposal:
    split = seed.split(chunk)
    program = apply_seed(parent.program, seed, chunk)
    peak = goal.peak(program)
    return Proposal(
        program=program,
        decisions=(*parent.decisions, split),
        seeds=(*parent.seeds, seed),
        peak=peak,
        seconds=predict_s(program, goal.machine) + peak.temporary_bytes / goal.machine.first_touch_bytes_per_s,
    )


def describe(proposals: Sequence[Proposal]) -> str:
    """The proposals as text, for debugging and `explain`."""
    return "\n".join(f"{p.seconds:.4f} s {p.peak.bytes} bytes: {'; '.join(map(str, p.decisions))}" for p in proposals)
