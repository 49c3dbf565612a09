"""How a loop carries what it combines, where others in it need that as it is so far.

A sum of squares about a mean so far carries the sum of what is squared beside it, and that mean
(`exla.passes.split.online`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from exla.ir.factors import Carried, Chunk, EquationContext
from exla.passes.split.combine import COMBINERS, Combiner, for_chunks
from exla.passes.split.regions import Instance, Region, factors_of


def carried_online(region: Region, level: int, chunks: int) -> dict[Instance, Carried]:
    """How the combined outputs of a level are carried that others in the loop need so far, and those others."""
    here = {o.instance for o in region.outputs if o.level == level}
    sums = [instance for instance in region.repairs if instance in here]
    bases = [base for instance in sums for value in region.repairs[instance].by for base in value.bases]
    return {
        i: _as_carried(COMBINERS.get(combiner_of(region, i, chunks)), about(region, i), _count(region, i))
        for i in dict.fromkeys((*bases, *sums))
    }


def about(region: Region, instance: Instance) -> list[Any]:
    """Abstract values of the late values that an instance sums squares about; none where it sums no such squares."""
    repair = region.repairs.get(instance)
    if repair is None or repair.kind != "squared":
        return []
    return [value.late.var.aval for value in repair.by]


def _count(region: Region, instance: Instance) -> int:
    """How many numbers are added up for each that a sum of squares makes; 0 for every other instance."""
    repair = region.repairs.get(instance)
    return 0 if repair is None else repair.count


def combiner_of(region: Region, instance: Instance, chunks: int) -> str:
    """The name of what merges so many chunks of a reduction."""
    position, name, _ = instance
    reduced = factors_of(region.program, position).rule.reduced[name]
    return for_chunks(reduced, region.program.context(position), chunks)


def _as_carried(combiner: Combiner, values: Sequence[Any] = (), count: int = 0) -> Carried:
    """A reduction as something carried: its combiner's state.

    A sum of `count` squares about some late values has the state of the sum of what is squared beside it, and those
    values: its last operands are what is squared, and the values. In the end it is about the mean, and not about that
    mean rounded.
    """
    assert combiner.identity is not None

    def start(context: EquationContext) -> list[Any]:
        structs = [jax.ShapeDtypeStruct(r.shape, r.dtype) for r in context.results]
        sums = [array for _ in range(2 if values else 1) for array in combiner.start(structs)]
        return [*sums, *(jnp.zeros(a.shape, a.dtype) for a in values)]

    def step(chunk: Chunk, state: list[Any], *operands: Any) -> tuple[list[Any], list[Any]]:
        def merged(so_far: list[Any], *reduced: Any) -> Sequence[Any]:
            partial = [combiner.prepare(p) for p in chunk.factors.rule.replay(chunk, *reduced)]
            return combiner.merge(chunk.context, so_far, partial)

        if not values:
            return [], list(merged(state, *operands))
        squares, shifts, _ = apart(state, len(values))
        value, shifted, *used = operands
        return [], [*merged(squares, value), *merged(shifts, shifted), *used]

    def finish(context: EquationContext, state: list[Any]) -> list[Any]:
        if not values:
            return list(combiner.finish(context, state))
        squares, shifts, _ = apart(state, len(values))
        (total,), (shift,) = combiner.finish(context, squares), combiner.finish(context, shifts)
        return [total - shift * (shift / count)]

    return Carried(start=start, step=step, finish=finish)


def apart(state: Sequence[Any], count: int) -> tuple[list[Any], list[Any], list[Any]]:
    """The state of a sum of squares about so many values: that of the sum, that of what is squared, and the values."""
    each = (len(state) - count) // 2
    return list(state[:each]), list(state[each : 2 * each]), list(state[2 * each :])
