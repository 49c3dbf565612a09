"""Moves: ways through a space at random, and from one candidate to another.

candidate, weight = walk(space, generator)
neighbour = mutate(space, candidate, generator)
child = cross(space, candidate, neighbour, generator)
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from exla.errors import ReplayMiss
from exla.passes.decisions import Decision, Split
from exla.passes.split.chunks import tidy

if TYPE_CHECKING:
    from exla.search.space import Candidate, Space

WALKS = 4
"""Random walks among which a sample is drawn, by weight."""
TRIES = 64
"""Random walks that may end nowhere before sampling gives up."""


def walk(space: Space, generator: random.Random) -> tuple[Candidate | None, float]:
    """A random path through the tree: the complete candidate where it ends, and how many paths there are like it.

    The weights of many walks average to the number of complete candidates.
    """
    here, weight = generator.choice(space.uncut), float(len(space.uncut))
    if space.is_met(here):
        weight *= 2
        if generator.random() < 0.5:
            is_plain = not here.decisions and not any(space.option_sets)
            return (None, 0.0) if is_plain else _dressed(space, here, weight, generator)
    for _ in range(space.depth):
        offers = [(seed, chunk) for seed in space.offers(here) for chunk in space.chunks(seed)]
        if not offers:
            return None, 0.0
        weight *= len(offers)
        made = space.cut_if_possible(here, *generator.choice(offers))
        if made is None:
            return None, 0.0
        if space.is_met(made):
            return _dressed(space, made, weight, generator)
        here = made
    return None, 0.0


def _dressed(space: Space, made: Candidate, weight: float, generator: random.Random) -> tuple[Candidate, float]:
    """A candidate under an option set drawn at random."""
    sets = [dressed for one in space.both(made) for dressed in space.under(one)]
    return generator.choice(sets), weight * len(sets)


def sample(space: Space, generator: random.Random) -> Candidate | None:
    """A complete candidate drawn at random: of several walks one, by how many paths there are like it."""
    found: list[tuple[Candidate, float]] = []
    for _ in range(TRIES):
        candidate, weight = walk(space, generator)
        if candidate is not None:
            found.append((candidate, weight))
        if len(found) == WALKS:
            break
    if not found:
        return None
    return generator.choices([c for c, _ in found], [w for _, w in found])[0]


def mutate(space: Space, parent: Candidate, generator: random.Random) -> Candidate | None:
    """A complete candidate one step away: another chunk size, option set or way to grow, a split more or less."""
    moves = (_other_chunk, _other_growth, _other_options, _one_less, _one_more)
    for move in generator.sample(moves, len(moves)):
        decisions = move(space, parent, generator)
        if decisions is None:
            continue
        made = _complete(space, decisions)
        if made is not None and made.all_decisions != parent.all_decisions:
            return made
    return None


def cross(space: Space, one: Candidate, other: Candidate, generator: random.Random) -> Candidate | None:
    """A complete candidate with what one parent rewrites and the other splits, or with chunks between theirs."""
    pairs = list(zip(one.splits, other.splits, strict=False))
    between = {
        a: replace(a, chunk=max(round(math.sqrt(a.chunk * b.chunk)), 1))
        for a, b in pairs
        if replace(a, chunk=b.chunk) == b
    }
    if between:
        return _complete(space, [between.get(d, d) if isinstance(d, Split) else d for d in one.all_decisions])
    kept = [d for d in one.decisions if not isinstance(d, Split)]
    return _complete(space, [*kept, *other.splits, *(generator.choice((one, other)).options or ())])


def _complete(space: Space, decisions: Sequence[Decision]) -> Candidate | None:
    """The candidate of these decisions where they apply and it is within the goal."""
    try:
        made = space.build(decisions, anew=True)
    except ReplayMiss:
        return None
    barred = any(map(space.is_barred, made.seeds))
    return made if space.is_met(made) and not barred and (made.all_decisions or any(space.option_sets)) else None


def _other_chunk(space: Space, parent: Candidate, generator: random.Random) -> list[Decision] | None:
    if not parent.splits:
        return None
    k = generator.randrange(len(parent.splits))
    split, region = parent.splits[k], parent.seeds[k].region
    factor = generator.choice((1 / 4, 1 / 2, 1 / space.ratio**0.5, space.ratio**0.5, 2, 4))
    chunk = tidy(region.size, round(split.chunk * factor), region.least_chunk, space.machine.lanes)
    return [replace(split, chunk=chunk) if d == split else d for d in parent.all_decisions]


def _other_growth(space: Space, parent: Candidate, generator: random.Random) -> list[Decision] | None:
    if not parent.splits:
        return None
    split = generator.choice(parent.splits)
    flags = {"again": not split.growth.again} if generator.random() < 0.5 else {"online": not split.growth.online}
    if space.exact and "online" in flags:
        return None
    grown = replace(split, growth=replace(split.growth, **flags))
    return [grown if d == split else d for d in parent.all_decisions]


def _other_options(space: Space, parent: Candidate, generator: random.Random) -> list[Decision] | None:
    others = [c for c in space.under(parent) if c.options != parent.options]
    return list(generator.choice(others).all_decisions) if others else None


def _one_less(space: Space, parent: Candidate, generator: random.Random) -> list[Decision] | None:
    return [d for d in parent.all_decisions if d != parent.splits[-1]] if parent.splits else None


def _one_more(space: Space, parent: Candidate, generator: random.Random) -> list[Decision] | None:
    offers = list(space.offers(parent))
    if len(parent.splits) >= space.depth or not offers:
        return None
    seed = generator.choice(offers)
    return [*parent.decisions, seed.split(generator.choice(space.chunks(seed))), *(parent.options or ())]
