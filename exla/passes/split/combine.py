"""Combiners: how a region's output is put together from the chunks.

`stack` writes each chunk in place along the factor and is done by the loop itself. Everything else is a monoid:
a partial state per chunk, `merge`d into the state so far, turned into the equation's results by `finish`. Chunks
are merged in increasing order, so a merge that prefers its left argument on ties keeps the lowest index, as
`lax.argmax` and `lax.top_k` do.

    state = start(partial)            # the identity, or None: the first chunk is the state
    state = merge(context, state, partial)
    results = finish(context, state)

Sums and products of floats below 32 bits are kept in float32 between chunks, so that many chunks do not lose
what one long reduction would have kept. Sums of more than `MANY` chunks keep what their roundings lose, too: XLA adds
in a tree, or in windows of a few, and a loop of a million trips would be off by a million roundings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax

from exla.ir import sums
from exla.ir.factors import EquationContext
from exla.ir.identities import all_ones, full, highest, lowest
from exla.ir.program import trace_function
from exla.registry import Registry

State = Sequence[Any]

MANY = 64
"""Chunks up to which a sum is just added up: the roundings of two passes over windows of 32, as XLA:CPU makes them."""


@dataclass(frozen=True, kw_only=True)
class Combiner:
    """A monoid over partial states.

    Attributes:
      merge: (context, state, partial) -> state; where chunks are taken from last to first, (context, partial, state).
      identity: abstract partial -> its identity array; None where the first chunk must start the state.
      prepare: partial -> partial as it is kept (wider dtype).
      finish: (context, state) -> the equation's results.
      least_chunk: context -> the smallest chunk of the factor that the combiner can take.
      exact: context -> whether the result is the same bits in whatever groups the elements are merged.
      kept: arrays of the state for each array of a partial state.
      across: an array of each of several devices, along a first axis -> their array of the merged state; None where the
        arrays of a state are not merged each for itself.
      exchange_as: the same inside a `shard_map`: (array, axes of the mesh) -> merged; None = by gathering them.
    """

    merge: Callable[[EquationContext, State, State], State]
    identity: Callable[[Any], Any] | None = None
    prepare: Callable[[Any], Any] = lambda array: array
    finish: Callable[[EquationContext, State], State] = lambda context, state: state
    least_chunk: Callable[[EquationContext], int] = lambda context: 1
    exact: Callable[[EquationContext], bool] = lambda context: True
    kept: int = 1
    across: Callable[[Any], Any] | None = None
    exchange_as: Callable[[Any, tuple[str, ...]], Any] | None = None

    def start(self, partial: State) -> State:
        """The first state, from abstract values of the partial states; zeros where the first chunk starts it."""
        make = self.identity or full(0)
        wide = [v.aval for v in trace_function(lambda *given: [self.prepare(p) for p in given], partial).outvars]
        return [make(aval) for _ in range(self.kept) for aval in wide]

    def exchange(self, array: Any, names: tuple[str, ...]) -> Any:
        """The merged array of a state, inside a `shard_map`, where each device has one."""
        if self.exchange_as is not None:
            return self.exchange_as(array, names)
        assert self.across is not None
        return self.across(lax.all_gather(array, names))


COMBINERS: Registry[Combiner] = Registry("combiner")


def _narrow(context: EquationContext, state: State) -> State:
    return [lax.convert_element_type(s, r.dtype) for s, r in zip(state, context.results, strict=True)]


def _elementwise(operation: Callable[[Any, Any], Any]) -> Callable[..., State]:
    return lambda context, state, partial: [operation(a, b) for a, b in zip(state, partial, strict=True)]


def _is_integral(context: EquationContext) -> bool:
    return not jnp.issubdtype(context.results[0].dtype, jnp.inexact)


def _first_axis(reduce: Callable[..., Any]) -> Callable[[Any], Any]:
    return lambda array: reduce(array, (0,))


for _name, _operation, _identity, _reduce, _exchange in (
    ("sum", lax.add, 0, lax.reduce_sum, lax.psum),
    ("prod", lax.mul, 1, lax.reduce_prod, None),
):
    COMBINERS.register(_name)(
        Combiner(
            merge=_elementwise(_operation),
            identity=full(_identity),
            prepare=sums.widened,
            finish=_narrow,
            exact=_is_integral,
            across=_first_axis(_reduce),
            exchange_as=_exchange,
        )
    )


def _merge_long_sum(context: EquationContext, state: State, partial: State) -> State:
    """State: the sums, then what they have lost."""
    if len(state) < len(partial):  # from last to first; a sum does not mind
        state, partial = partial, state
    count = len(partial)
    both = [sums.add(a, lost, b) for a, lost, b in zip(state[:count], state[count:], partial, strict=True)]
    return [total for total, _ in both] + [lost for _, lost in both]


def _finish_long_sum(context: EquationContext, state: State) -> State:
    count = len(state) // 2
    return _narrow(context, [lax.add(a, lost) for a, lost in zip(state[:count], state[count:], strict=True)])


COMBINERS.register("long_sum")(
    Combiner(
        merge=_merge_long_sum,
        identity=full(0),
        prepare=sums.widened,
        finish=_finish_long_sum,
        exact=_is_integral,
        kept=2,
    )
)


def for_chunks(name: str, context: EquationContext, chunks: int) -> str:
    """The combiner that does what one does, for so many chunks."""
    return "long_sum" if name == "sum" and chunks > MANY and not _is_integral(context) else name


for _name, _operation, _start, _reduce, _exchange in (
    ("max", lax.max, lowest, lax.reduce_max, lax.pmax),
    ("min", lax.min, highest, lax.reduce_min, lax.pmin),
    ("and", lax.bitwise_and, all_ones, lax.reduce_and, None),
    ("or", lax.bitwise_or, full(0), lax.reduce_or, None),
    ("xor", lax.bitwise_xor, full(0), lax.reduce_xor, None),
):
    COMBINERS.register(_name)(
        Combiner(merge=_elementwise(_operation), identity=_start, across=_first_axis(_reduce), exchange_as=_exchange)
    )


def _merge_arg(better: Callable[[Any, Any], Any]) -> Callable[..., State]:
    """Keep the state on ties; a NaN beats every number, and the first NaN stays."""

    def merge(context: EquationContext, state: State, partial: State) -> State:
        (value, index), (new_value, new_index) = state, partial
        take = better(new_value, value)
        if jnp.issubdtype(value.dtype, jnp.inexact):
            is_nan = lax.ne(value, value)
            take = lax.bitwise_and(lax.bitwise_not(is_nan), lax.bitwise_or(take, lax.ne(new_value, new_value)))
        return [lax.select(take, new_value, value), lax.select(take, new_index, index)]

    return merge


def _index_only(context: EquationContext, state: State) -> State:
    return [state[1]]


COMBINERS.register("argmax")(Combiner(merge=_merge_arg(lax.gt), finish=_index_only))
COMBINERS.register("argmin")(Combiner(merge=_merge_arg(lax.lt), finish=_index_only))


def _pick(context: EquationContext, state: State, partial: State) -> State:
    """Values, and which of them a chunk has: of those that it has not, the state's."""
    (value, known), (new_value, new) = state, partial
    return [lax.select(new, new_value, value), lax.bitwise_or(known, new)]


COMBINERS.register("pick")(Combiner(merge=_pick, identity=full(0), finish=lambda context, state: state[:1]))


def _merge_top_k(context: EquationContext, state: State, partial: State) -> State:
    """Select k of the k so far and the chunk's k; the state comes first, so ties keep the lower index."""
    axis = _top_k_axis(context)
    values = lax.concatenate([state[0], partial[0]], axis)
    indices = lax.concatenate([state[1], partial[1]], axis)
    best, where = context.bind(values)
    return [best, jnp.take_along_axis(indices, where, axis=axis)]


def _top_k_axis(context: EquationContext) -> int:
    rank = len(context.operands[0].shape)
    return int(context.params.get("axis", rank - 1)) % rank


COMBINERS.register("top_k")(Combiner(merge=_merge_top_k, least_chunk=lambda context: int(context.params["k"])))
