"""The split pass: which splits a program offers, and applying one.

A pass has two verbs. `enumerate_splits(program)` looks at the values that hold the projected peak and offers one
`Seed` for each axis of each that leads to a different region; with a chunk size a seed is a `Split` decision.
`apply_split(program, decision)` replays one on a freshly traced program. A seed inside the body of a chunk loop, or of
the user's `scan`, `while` or `cond`, carries the path that leads there; applying it rebuilds what is around it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from exla._compat import Literal
from exla.errors import ReplayMiss
from exla.ir.factors import Placement
from exla.ir.memory import Held
from exla.ir.program import Program, Site
from exla.passes.decisions import KEPT, Growth, Share, Split
from exla.passes.paths import at_path
from exla.passes.split.apply import split_program
from exla.passes.split.grow import grow
from exla.passes.split.regions import Region

MOST_FOLLOWED = 200
"""How many values are followed downwards from one that is read with a halo."""


@dataclass(frozen=True, kw_only=True)
class Seed:
    """A region that could be split, and the decision that names it (its chunk is a placeholder)."""

    region: Region
    decision: Split

    @property
    def identity(self) -> tuple[Any, ...]:
        """What is cut, however it was found."""
        return self.decision.path, self.region.instances, self.region.outputs

    @property
    def recomputes(self) -> bool:
        """Whether something is computed inside that is computed outside as well, so that another split may follow."""
        return self.decision.growth.again or any(window for _, _, window in self.region.instances)

    def cuts(self, axes: Collection[tuple[int, int]]) -> bool:
        """Whether any of these axes of the outermost program's arguments, as (argument, axis), is cut."""
        if self.decision.path or not axes:
            return False
        program = self.region.program
        inputs = {v: k - len(program.consts) for k, v in enumerate(program.invars)}
        cut = (pair for instance in self.region.instances for pair in self.region.operands(instance))
        return any(how is not None and (inputs.get(v), how[0]) in axes for v, how in cut if not isinstance(v, Literal))

    def split(self, chunk: int) -> Split:
        """The decision to cut this seed's factor into chunks of this size."""
        return replace(self.decision, chunk=chunk)


def growths(small_bytes: Sequence[int], exact: bool = False, keep: bool = True) -> list[Growth]:
    """The ways to grow a region that are worth trying.

    Args:
      small_bytes: thresholds below which values may stay whole.
      exact: as of `Growth`.
      keep: whether loops may stack what later ones would compute again.
    """
    return [
        Growth(small_bytes=small, again=again, exact=exact, online=online, kept=kept)
        for small in dict.fromkeys(small_bytes)
        for again in (False, True)
        for online in (False, True)
        for kept in range(len(KEPT) if keep else 1)
        if not (exact and online or again and kept)
    ]


def enumerate_splits(
    program: Program, held: Sequence[Held], growths: Sequence[Growth], values: int = 4
) -> Iterator[Seed]:
    """Offer the splits that could shrink what holds the peak.

    Args:
      program: the outermost program.
      held: what is live at the peak, largest first.
      growths: the ways to grow a region that are tried.
      values: how many of the held values to look at; of those outside one more, where these are all of one turn of the
        user's control flow: it can be cut as a whole.

    Yields:
      Seeds with distinct regions.
    """
    known: set[Any] = set()
    looked_at, is_in_turns = 0, True
    for item in held:
        shape = getattr(item.var.aval, "shape", ())
        if looked_at > values or (looked_at == values and not is_in_turns):
            return
        if max(shape, default=0) < 2 or (looked_at == values and item.path):
            continue
        looked_at += 1
        is_in_turns &= bool(item.path) and program.eqns[item.path[0][0]].primitive.name != "exla_split"
        starts = [s for axis in range(len(shape)) for s in ((item.var, axis), *_behind_windows(item, axis))]
        for var, axis in dict.fromkeys(starts):
            region = None
            for growth in growths:
                if growth.online and (region is None or len(region.levels) < 2):
                    continue
                if growth.kept and (region is None or region.levels[-1] < growth.kept):
                    continue
                region = grow(item.program, var, axis, growth)
                if region is None:
                    continue
                seed = Seed(region=region, decision=_decision(replace(item, var=var), axis, growth))
                if seed.identity not in known:
                    known.add(seed.identity)
                    yield seed


def _behind_windows(item: Held, axis: int) -> Iterator[tuple[Any, int]]:
    """Where to start so that growing upwards reaches a value which is read with a halo: the last values it leads to."""
    program = item.program
    stack = [(item.var, axis, False)]
    seen: set[tuple[Any, int, bool]] = set()
    while stack and len(seen) < MOST_FOLLOWED:
        var, along, crossed = stack.pop()
        if (var, along, crossed) in seen:
            continue
        seen.add((var, along, crossed))
        further = [
            (result, place.axis, crossed or has_halo)
            for position, k in program.consumers.get(var, ())
            for name, has_halo in _factors_along(program, position, k, along)
            for result, place in zip(program.eqns[position].outvars, _results(program, position, name), strict=True)
            if place is not None
        ]
        if crossed and not further:
            yield var, along
        stack += further


def _factors_along(program: Program, position: int, k: int, axis: int) -> list[tuple[str, bool]]:
    """The factors that run along an axis of an operand, and whether with a halo."""
    factors = program.factors(position)
    places = {} if factors is None else {name: at[k] for name, at in factors.operands.items()}
    return [
        (name, place.halo is not None) for name, place in places.items() if place is not None and place.axis == axis
    ]


def _results(program: Program, position: int, name: str) -> Sequence[Placement | None]:
    factors = program.factors(position)
    assert factors is not None
    return factors.results[name]


def apply_split(program: Program, decision: Split) -> Program:
    """Replay a split.

    Args:
      program: the outermost program.
      decision: the split.

    Returns:
      The program with the region's equations in chunk loops.

    Raises:
      ReplayMiss: if the decision does not apply to this program.
    """

    return replay_split(program, decision)[0]


def replay_split(program: Program, decision: Split) -> tuple[Program, Seed]:
    """`apply_split`, and the seed that the decision names."""
    regions: list[Region] = []

    def change(inner: Program, is_tail: bool) -> Program:
        region = _resolve(inner, decision, is_tail)
        if not is_tail:
            regions.append(region)
        return split_program(region, decision.chunk)

    return at_path(program, decision.path, change), Seed(region=regions[0], decision=decision)


def apply_seed(program: Program, seed: Seed, chunk: int) -> Program:
    """Apply a seed that was enumerated on this very program, without growing its region again."""

    def change(inner: Program, is_tail: bool) -> Program:
        region = _resolve(inner, seed.split(chunk), is_tail) if is_tail else seed.region
        return split_program(region, chunk)

    return at_path(program, seed.decision.path, change)


def _decision(item: Held, axis: int, growth: Growth) -> Split:
    position = item.program.producers.get(item.var, -1)
    if position < 0:
        site, result = Site(position=-1, fingerprint=""), list(item.program.invars).index(item.var)
    else:
        site = item.program.site(position)
        result = list(item.program.eqns[position].outvars).index(item.var)
    return Split(path=item.path, site=site, result=result, axis=axis, growth=growth, chunk=0)


def region_of(program: Program, decision: Split | Share, is_tail: bool = False) -> Region:
    """Grow the region that a decision names; a tail program has the same equations at other shapes.

    Raises:
      ReplayMiss: if it names none.
    """
    position = decision.site.position
    if position >= len(program.eqns) or position < -1:
        raise ReplayMiss(f"{decision}: the program has only {len(program.eqns)} equations")
    if position >= 0 and not is_tail and program.site(position) != decision.site:
        raise ReplayMiss(f"{decision}: equation {position} is another one than when the decision was made")
    values = program.invars if position < 0 else program.eqns[position].outvars
    if not 0 <= decision.result < len(values):
        raise ReplayMiss(f"{decision}: there is no value {decision.result} there")
    var = values[decision.result]
    if isinstance(var, Literal) or not 0 <= decision.axis < len(var.aval.shape):
        raise ReplayMiss(f"{decision}: the value there has no axis {decision.axis}")
    region = grow(program, var, decision.axis, decision.growth)
    if region is None:
        raise ReplayMiss(f"{decision}: nothing can be cut there")
    return region


def _resolve(program: Program, decision: Split, is_tail: bool = False) -> Region:
    """`region_of` a split whose chunks it can be cut into."""
    region = region_of(program, decision, is_tail)
    if not region.least_chunk <= decision.chunk < region.size:
        raise ReplayMiss(
            f"{decision}: chunks must be from {region.least_chunk} to {region.size - 1} there, not {decision.chunk}"
        )
    return region
