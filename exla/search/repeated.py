"""One split made wherever a program holds the like: layer after layer of a network that is written out.

The beam would come to the same, one layer at a time, after trying every way to cut each of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from exla.ir.program import Program
from exla.passes.paths import program_at
from exla.passes.split.decide import Seed
from exla.passes.split.grow import grow

if TYPE_CHECKING:
    from exla.search.space import Candidate, Goal, Space

MOST_LIKE = 64
"""Places at which a split is tried again."""


def repeated(space: Space, made: Candidate, goal: Goal) -> Candidate:
    """A candidate with its last split made of all that is like what it cuts, till it is within a goal.

    Args:
      space: what can be done.
      made: a candidate of at least one split.
      goal: what is wanted.

    Returns:
      The candidate itself where nothing like it leaves less to be cut.
    """
    seed, chunk, tried = made.seeds[-1], made.splits[-1].chunk, set[Any]()
    while not space.is_met(made, goal) and len(tried) < MOST_LIKE:
        like = next(_like(made.program, seed, tried), None)
        if like is None:
            break
        if space.is_barred(like) or not like.region.least_chunk <= chunk < like.region.size:
            continue
        further = space.cut_if_possible(made, like, chunk)
        if further is not None and further.peak.beyond(goal.bytes) < made.peak.beyond(goal.bytes):
            made = further if space.is_steady(further) else made
    return made


def _like(program: Program, seed: Seed, tried: set[Any]) -> Iterator[Seed]:
    """What to cut where other equations compute the same of the same shapes as the one whose value a seed cuts.

    Args:
      program: the outermost program.
      seed: what was cut, maybe before other splits.
      tried: the values that were looked at, which are passed over; further ones are added.
    """
    decision = seed.decision
    if decision.site.position < 0:
        return
    cut, here = seed.region.program.eqns[decision.site.position], program_at(program, decision.path)
    for position, eqn in enumerate(here.eqns):
        if eqn.primitive is not cut.primitive or len(eqn.outvars) != len(cut.outvars):
            continue
        if (var := eqn.outvars[decision.result]) in tried:
            continue
        site = here.site(position)
        if site.fingerprint != decision.site.fingerprint:
            continue
        tried.add(var)
        region = grow(here, var, decision.axis, decision.growth)
        if region is not None and region.size == seed.region.size:
            yield Seed(region=region, decision=replace(decision, site=site))


def are_alike(seed: Seed, other: Seed) -> bool:
    """Whether the same axis of what the same equation computes is cut, in two places."""
    return _kind(seed) == _kind(other)


def _kind(seed: Seed) -> tuple[Any, ...]:
    decision = seed.decision
    return decision.path, decision.site.fingerprint, decision.result, decision.axis, decision.growth
