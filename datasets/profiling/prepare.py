"""An instance made ready: its program traced at a size that fits the wish, its limit, its space, its candidates."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from exla.call import read
from exla.datasets.profiling.campaign import Campaign, Instance
from exla.ir.memory import Peak, Storing, project
from exla.ir.program import Program
from exla.options import Options
from exla.search.attempt import Attempt
from exla.search.choice import Call
from exla.search.driver import limit_of, make_space
from exla.search.pool import first_of, pool, walks
from exla.search.ranker import find_ranker
from exla.search.record import Record
from exla.search.space import Candidate, Space
from exla.targets.base import Target, find_target

HEURISTIC = 3
"""Candidates of the paper's rule in each instance, so that it can be compared with: the first, and where that does not
obey the next."""
WIDER = 3
"""How many times the candidates of an instance the pool holds that the unsure ones are taken from."""
STEPS = 2**0.5
"""Sizes that are tried grow by this factor."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """An instance, ready to be measured.

    Attributes:
      instance: which.
      size: its size, found by its projected peak unless it was settled.
      function, arguments: the plain program and its arrays.
      attempt: compiles and counts; it reads and writes no records.
      space: what can be done.
    """

    instance: Instance
    size: int
    function: Callable[..., Any] = field(repr=False)
    arguments: tuple[Any, ...] = field(repr=False)
    attempt: Attempt = field(repr=False)
    space: Space = field(repr=False)

    def candidates(self, campaign: Campaign) -> list[Candidate]:
        """The candidates that the campaign measures: all walks where it asks for them, else a part of the space.

        What the heuristic asks first, then those of the pool, and last those of a wider pool whose lower confidence
        bound is the least: score less doubt of the target's weights.

        Source: lower confidence bounds: Srinivas et al., "Gaussian process optimization in the bandit setting", 2010.
        """
        if campaign.walk:
            return walks(self.space, campaign.walk)
        found: dict[tuple, Candidate] = {}
        for candidate in first_of("heuristic", self.space, HEURISTIC):
            for dressed in [candidate] if candidate.options is not None else self.space.suited(candidate):
                found[dressed.all_decisions] = dressed
        seed = seed_of(campaign, self.instance)
        found.update((c.all_decisions, c) for c in pool(self.space, most=campaign.candidates, seed=seed, seconds=2.0))
        ranker = find_ranker(campaign.target) if campaign.unsure else None
        if ranker is not None:
            wider = pool(self.space, most=WIDER * campaign.candidates, seed=seed, seconds=4.0)
            rest = [c for c in wider if c.all_decisions not in found]
            ranking = ranker.rank(self.space.starts, rest, self.space.option_sets)
            bounds = np.array(ranking.scores) - np.array(ranking.doubts)
            found.update((rest[k].all_decisions, rest[k]) for k in np.argsort(bounds, kind="stable")[: campaign.unsure])
        return [c for c in found.values() if c.all_decisions]


def seed_of(campaign: Campaign, instance: Instance) -> int:
    """The seed of an instance, the same in every process."""
    return zlib.crc32(f"{campaign.seed} {instance.name}".encode())


@dataclass(frozen=True, kw_only=True)
class Settled:
    """What the first record of an instance settles for all later ones, and for whoever reads them.

    A size and a limit are found by projected peaks, which change when the planner learns something. What was measured
    at one size says nothing about another.

    Attributes:
      size: of the program.
      limit_bytes: of its candidates.
    """

    size: int
    limit_bytes: int

    @classmethod
    def by(cls, records: Iterable[Record]) -> Settled | None:
        """What records of an instance settle; None where none says a size and a limit."""
        for record in records:
            size, limit = record.extra.get("size"), record.limit_bytes
            if type(size) is int and size > 0 and limit is not None and limit > 0:
                return cls(size=size, limit_bytes=limit)
        return None


def prepare(instance: Instance, target_name: str, settled: Settled | None = None) -> Prepared:
    """Trace an instance and say what can be done with it.

    Args:
      instance: which.
      target_name: what is compiled for.
      settled: the size and the limit, where records of the instance say them; None = they are found.
    """
    function, arguments_of, least = instance.made()
    target = find_target(target_name)
    at = _Sizes(function=function, arguments_of=arguments_of, target=target)
    sized = at(settled.size) if settled is not None else _nearest(at, least, instance.megabytes * 1e6)
    program, floor, arguments = sized.program, sized.peak, sized.arguments
    fixed = floor.arguments_bytes + floor.outputs_bytes
    found = fixed + max(int((floor.bytes - fixed) * instance.share), 4096)
    limit = settled.limit_bytes if settled is not None else found
    options = Options(memory_limit=limit, search="analytic", target=target_name, records="off")
    structs = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arguments)

    def compile_plain() -> Any:
        if target.platform == "cpu":
            return jax.jit(function).lower(*arguments).compile()
        placed = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=target.sharding()), structs)
        return jax.jit(function).lower(*placed).compile()

    call = Call(program=program, compile_plain=compile_plain, donated=(), compiler_options={})
    attempt = Attempt(
        call=call, target=target, options=options, limit_bytes=limit_of(options, target), store=None, key={}
    )
    return Prepared(
        instance=instance,
        size=sized.size,
        function=function,
        arguments=arguments,
        attempt=attempt,
        space=make_space(attempt, floor),
    )


@dataclass(frozen=True, kw_only=True)
class _Sized:
    """A program at one size."""

    size: int
    arguments: tuple[Any, ...]
    program: Program
    peak: Peak


@dataclass(frozen=True, kw_only=True)
class _Sizes:
    """A program at any size.

    The peak is what the program's values take, and not what a compiler packs beside them.
    """

    function: Callable[..., Any]
    arguments_of: Callable[[int], Any]
    target: Target

    def __call__(self, size: int) -> _Sized:
        arguments = self.arguments_of(size)
        program = read(jax.make_jaxpr(self.function)(*arguments), self.target.platform)
        storing = Storing(window=self.target.machine().longest_fused_reduction)
        return _Sized(size=size, arguments=arguments, program=program, peak=project(program, storing))


def _nearest(at: _Sizes, least: int, wanted: float) -> _Sized:
    """The size from `least` on at which the projected peak is nearest to what is wanted."""
    found = at(least)
    while found.peak.bytes < wanted:
        growth = wanted / max(found.peak.bytes, 1)
        # Peaks grow with the size or with its square or cube; a step never goes beyond what the square root says.
        size = max(math.ceil(found.size * min(max(growth**0.4, STEPS**0.5), 8)), found.size + 1)
        bigger = at(size)
        if bigger.peak.bytes > wanted and abs(math.log(bigger.peak.bytes / wanted)) > abs(math.log(growth)):
            break
        found = bigger
    return found
