"""Reductions: the axes that stay are factors, and so are the reduced ones, merged by the reducer's monoid.

The combiner is named in `exla.passes.split.combine`. `argmax` and `argmin` give only an index, so their partial
state on a chunk is the pair (extreme value, its index in the whole axis).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax import lax

from exla.ir.factors import FACTOR_RULES, Chunk, EquationContext, FactorRule, axis_names

COMBINERS = {
    "reduce_sum": "sum",
    "reduce_prod": "prod",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_and": "and",
    "reduce_or": "or",
    "reduce_xor": "xor",
}


@FACTOR_RULES.register(*COMBINERS)
def reduction(context: EquationContext) -> FactorRule:
    """`a0 a1 -> a0` with a1 reduced."""
    names = axis_names(len(context.operands[0].shape))
    axes = context.params["axes"]
    kept = [n for k, n in enumerate(names) if k not in axes]
    return FactorRule(
        equation=f"{' '.join(names)} -> {' '.join(kept)}",
        reduced={names[k]: COMBINERS[context.primitive] for k in axes},
    )


def _replay_arg(chunk: Chunk, operand: Any) -> Sequence[Any]:
    """The index alone, or, when the searched axis itself is cut, the pair (extreme value, index)."""
    (index,) = chunk.bind(operand)
    (axis,) = chunk.context.params["axes"]
    place = chunk.factors.operands[chunk.factor][0]
    if place is None or place.axis != axis:
        return [index]
    value = lax.squeeze(_take_along(operand, lax.expand_dims(index, [axis]), axis), [axis])
    return [value, index + lax.convert_element_type(chunk.offset, index.dtype)]


def _take_along(operand: Any, index: Any, axis: int) -> Any:
    """`operand` at `index` along `axis`, other axes aligned."""
    import jax.numpy as jnp

    return jnp.take_along_axis(operand, index, axis=axis)


@FACTOR_RULES.register("argmax", "argmin")
def arg_reduction(context: EquationContext) -> FactorRule:
    """`a0 a1 -> a0` with a1 reduced by argmax or argmin, the lowest index winning ties, as lax does."""
    names = axis_names(len(context.operands[0].shape))
    axes = context.params["axes"]
    kept = [n for k, n in enumerate(names) if k not in axes]
    return FactorRule(
        equation=f"{' '.join(names)} -> {' '.join(kept)}",
        reduced={names[k]: context.primitive for k in axes},
        replay=_replay_arg,
    )
