"""The share pass: what is cut along an axis that devices share out is computed by each of them on its own share.

    rewrite: k = f(x, y); s = sum(k, 1)  ->  s = shard_map(x, y: k = f(x, y); sum(k, 1))

JAX's compilers would do the same, so by itself that changes nothing. But a chunk of the axis that is taken from the
whole lies on one device, and would have to be sent to the others; a chunk of a share is there already. In the body of
the `shard_map` the axis has the length of one share, and is cut like any other. Nothing in the body is exchanged: what
is reduced over the axis leaves it as one partial result of each device, and those are merged outside, as in the plain
program.

What reaches beyond its share is not mapped: a convolution along the axis, a running sum, what a top-k selects of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from exla._compat import Literal
from exla.errors import ReplayMiss
from exla.ir.check import check
from exla.ir.memory import Held
from exla.ir.program import Program, value_bytes
from exla.ir.spread import Spread, spread_axes
from exla.passes.decisions import Growth, Share
from exla.passes.split.decide import Seed, enumerate_splits, region_of
from exla.passes.split.regions import Region
from exla.passes.split.shares import Mapped, map_region

MOST_VALUES = 8
"""Of how many of the largest values the axes are looked at."""


def enumerate_shares(
    program: Program, arguments: Mapping[tuple[int, int], Spread], growths: Sequence[Growth]
) -> Iterator[Share]:
    """Offer to compute on each device's share what is cut along an axis that they share out.

    Args:
      program: the outermost program.
      arguments: (argument, axis) -> how it is shared out.
      growths: the ways to grow a region that are tried; values up to the smallest threshold are not looked at.
    """
    for seed, spread in _along_spreads(program, spread_axes(program, arguments), growths):
        cut = seed.decision
        if why_not(seed.region, spread, cut.growth.small_bytes) is None:
            yield Share(
                path=cut.path,
                site=cut.site,
                result=cut.result,
                axis=cut.axis,
                growth=cut.growth,
                mesh=spread.mesh,
                names=spread.names,
            )


def why_not_shared(
    program: Program, arguments: Mapping[tuple[int, int], Spread], growths: Sequence[Growth]
) -> Iterator[str]:
    """Say what stands in the way where nothing that is cut along a shared axis can be computed on shares."""
    spreads = spread_axes(program, arguments)
    for seed, spread in _along_spreads(program, spreads, growths):
        reason = why_not(seed.region, spread, seed.decision.growth.small_bytes)
        if reason is not None:
            yield f"What lies along {' and '.join(spread.names)} of the mesh is not cut inside the shares: {reason}."


def _along_spreads(
    program: Program, spreads: Mapping[tuple[Any, int], Spread], growths: Sequence[Growth]
) -> Iterator[tuple[Seed, Spread]]:
    """The regions that the largest values make along axes that are shared out."""
    least = min(how.small_bytes for how in growths)
    values = (v for eqn in program.eqns for v in eqn.outvars if value_bytes(v) > least)
    held = [Held(program=program, path=(), var=v, bytes=value_bytes(v)) for v in values]
    for seed in enumerate_splits(program, sorted(held, key=lambda h: -h.bytes), growths, MOST_VALUES):
        spread = spread_of(seed.region, spreads)
        if spread is not None:
            yield seed, spread


def apply_share(program: Program, decision: Share) -> Program:
    """Replay a share.

    Args:
      program: the outermost program.
      decision: the share.

    Returns:
      The program with the region's equations in a `shard_map`.

    Raises:
      ReplayMiss: if the decision does not apply to this program.
    """
    if decision.path:
        raise ReplayMiss(f"{decision}: only what is in no loop is computed on shares")
    region = region_of(program, decision)
    spread = Spread(mesh=decision.mesh, names=decision.names)
    if not set(spread.names) <= {name for name, _ in spread.mesh} or len(set(spread.names)) < len(spread.names):
        raise ReplayMiss(f"{decision}: the mesh has no such axes")
    reason = why_not(region, spread, decision.growth.small_bytes)
    if reason is not None:
        raise ReplayMiss(f"{decision}: {reason}")
    return check(map_region(Mapped(region=region, small_bytes=decision.growth.small_bytes), spread))


def spread_of(region: Region, spreads: Mapping[tuple[Any, int], Spread]) -> Spread | None:
    """How what a region cuts is shared out: as most of the bytes that it reads are; None where none of them is."""
    found: Counter[Spread] = Counter()
    read = {
        (v, cut[0])
        for instance in region.instances
        for v, cut in region.operands(instance)
        if cut is not None and not isinstance(v, Literal) and (v, cut) not in region.makers
    }
    for var, axis in read:
        if (var, axis) in spreads:
            found[spreads[var, axis]] += value_bytes(var)
    return max(found, key=lambda s: (found[s], s.names), default=None)


def why_not(region: Region, spread: Spread, small_bytes: int) -> str | None:
    """Why a region cannot be computed on shares; None where it can."""
    shares = spread.shares
    if shares < 2 or region.size % shares or region.size == shares:
        return f"an axis of {region.size} has no {shares} equal shares that could be cut"
    if region.least_chunk > region.size // shares:
        return f"it takes {region.least_chunk} of the axis at least"
    return Mapped(region=region, small_bytes=small_bytes).why_not
