"""A chunk loop whose trips are devices: every one runs the body on its own share, all at once.

    map_region(region, spread) -> Program

The loop of one level of a region, with as many chunks as there are shares, says all that a `shard_map` needs: how each
operand is sliced is how it is shared out, what is stacked lies where it was computed, and what is combined is one
partial state of each device, which are merged outside. A body is told its first index, so that rules which count
indices (iota, masks, random bits) are right on every share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from exla import _compat
from exla.ir.factors import Placement
from exla.ir.program import Program, as_it_is, evaluate
from exla.ir.spread import Spread
from exla.passes.split.apply import loops_of, order_of, traced
from exla.passes.split.combine import COMBINERS
from exla.passes.split.loop import Combine, Loop, Stack
from exla.passes.split.regions import Region


def map_region(region: Region, spread: Spread) -> Program:
    """Run each level of a region on the shares that devices have of its factor.

    Args:
      region: what is cut; nothing in it is carried, has a halo or is repaired.
      spread: how the factor is shared out, evenly.

    Returns:
      The program with one `shard_map` for each level of the region of which anything is wanted.
    """
    loops = loops_of(region, region.size // spread.shares)

    def run(level: int, loop: Loop, operands: Sequence[Any]) -> list[Any]:
        return on_shares(loop, operands, spread)

    return traced(region, loops, order_of(region, loops), run)


def on_shares(loop: Loop, operands: Sequence[Any], spread: Spread) -> list[Any]:
    """Run a loop on the devices' shares; arguments and results as of `exla.passes.split.loop.run`."""
    consts = loop.body.consts

    def on_one(first: Any, *values: Any) -> list[Any]:
        parts = evaluate(loop.body.jaxpr, [*values[: len(consts)], first[0], *values[len(consts) :]], as_it_is)
        made: list[Any] = []
        for output in loop.outputs:
            mine, parts = parts[: output.parts], parts[output.parts :]
            if isinstance(output, Stack):
                made.append(lax.convert_element_type(mine[0], output.aval.dtype))
            else:
                assert isinstance(output, Combine)
                prepare = COMBINERS.get(output.combiner).prepare
                made += [lax.expand_dims(prepare(part), (0,)) for part in mine]
        return made

    along = [p.axis if isinstance(p, Placement) else None for p in loop.operands]
    left = [axis for o in loop.outputs for axis in ([o.placement.axis] if isinstance(o, Stack) else [0] * o.parts)]
    found = _compat.share_out(
        [lax.mul(lax.iota(jnp.int32, spread.shares), jnp.int32(loop.chunk)), *consts, *operands],
        on_one,
        mesh=spread.mesh,
        names=spread.names,
        taken=[0, *(None for _ in consts), *along],
        left=left,
    )
    results: list[Any] = []
    for output in loop.outputs:
        mine, found = found[: output.parts], found[output.parts :]
        if isinstance(output, Combine):
            combiner = COMBINERS.get(output.combiner)
            assert combiner.across is not None
            state = [combiner.across(part) for part in mine]
            results += combiner.finish(output.context, state)
        else:
            results += mine
    return results
