"""The pool: the part of a space that is ranked, and that campaigns measure.

A space has thousands of candidates, most of them alike. The pool holds those that differ in what matters: what needs
no loop, and what the beam finds from each start, under each option set that suits it; where that is few, steps around
them. `walks` is all that the walks find with chunk sizes a factor apart, for spaces that are measured from end to end.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterable, Iterator
from typing import Any

from exla.ir.fingerprint import fingerprint
from exla.search.beam import speed
from exla.search.space import Candidate, Space
from exla.search.strategy import STRATEGIES, Outcome, SearchSpace, starts

MOST = 48
"""Candidates in a pool."""
SECONDS = 2.0
"""After so long no more chunk sizes are tried."""
FEW = 8
"""Walks of one split from which on none of two are made."""
FIRST = 4
"""Candidates that the beam and the paper's rule begin with."""
MOST_WALKED = 1000
"""Walks of a space are that many at most."""


def pool(space: SearchSpace, *, most: int = MOST, seed: int = 0, seconds: float = SECONDS) -> list[Candidate]:
    """The candidates of a space that are worth telling apart.

    Args:
      space: the space.
      most: how many there are at most.
      seed: of the chunk sizes that are tried besides those of the beam.
      seconds: for trying them.

    Returns:
      Complete candidates, each with its option set, no program twice, the fastest by prediction first.
    """
    end = time.perf_counter() + seconds
    found: dict[Any, Candidate] = {}

    def add(candidates: Iterable[Candidate]) -> None:
        for candidate in candidates:
            if candidate.all_decisions:
                found.setdefault(_identity(candidate), candidate)

    add(space.unsplit())
    for start in starts(space):
        met = [c for c in space.ranked(start) if space.is_met(c)]
        add(dressed for candidate in met for dressed in space.suited(candidate))
    kept = _few(sorted(found.values(), key=speed), most)
    generator, parents, misses = random.Random(seed), [c for c in kept if c.splits], 0
    while parents and len(kept) < most and misses < most and time.perf_counter() < end:
        made = space.mutate(generator.choice(parents), generator)
        if made is not None and made.options is None:
            made = next(iter(space.suited(made)))
        if made is None or not made.all_decisions or _identity(made) in found:
            misses += 1
            continue
        found[_identity(made)] = made
        kept.append(made)
    return sorted(kept, key=speed)


def walks(space: Space, ratio: float) -> list[Candidate]:
    """Every candidate of a space whose chunk sizes are a factor apart, and what the strategies begin with.

    Args:
      space: the space.
      ratio: between a chunk size and the next.

    Returns:
      Candidates, each with its option set, no program twice: what needs no loop, what the beam finds first, and all
      walks of one split, or of two where those are fewer than `FEW`; all complete. What the paper's rule asks first is
      there too, whether it is or not.
    """
    found: dict[Any, Candidate] = {}

    def add(candidates: Iterable[Candidate]) -> None:
        for candidate in candidates:
            for dressed in [candidate] if candidate.options is not None else space.under(candidate):
                if dressed.all_decisions:
                    found.setdefault(_identity(dressed), dressed)

    add(space.unsplit())
    for start in starts(space):
        add(itertools.islice((c for c in space.ranked(start) if space.is_met(c)), FIRST))
    add(first_of("heuristic", space, FIRST))
    space.ratio = ratio
    for depth in (1, 2):
        space.depth = depth
        walked = list(itertools.islice(space.all(), MOST_WALKED))
        if len(walked) >= FEW:
            break
    add(walked)
    return list(found.values())


def first_of(strategy: str, space: SearchSpace, count: int) -> Iterator[Candidate]:
    """What a strategy asks first, and so on where nothing of it obeys."""
    session = STRATEGIES.get(strategy).start(space)
    for candidate in iter(session.ask, None):
        yield candidate
        count -= 1
        if count == 0:
            break
        session.tell(Outcome(status="over_limit", peak_bytes=2 * space.goal.bytes))


def _identity(candidate: Candidate) -> Any:
    """What two candidates share that are one program, whatever decisions led to it."""
    if candidate.program is None:  # it was read from records
        return candidate.all_decisions
    known = candidate.program.known
    if "fingerprint" not in known:
        known["fingerprint"] = fingerprint(candidate.program)
    return known["fingerprint"], candidate.options


def _few(ordered: list[Candidate], most: int) -> list[Candidate]:
    """So many of a list: its first half as it is, and the rest evenly spread."""
    if len(ordered) <= most:
        return ordered
    first, rest = ordered[: most // 2], ordered[most // 2 :]
    step = len(rest) / (most - len(first))
    return first + [rest[int(k * step)] for k in range(most - len(first))]
