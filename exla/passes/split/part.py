"""A part of a computed value, computed alone.

    rewrite: k = exp(x @ y.T); dynamic_slice(k, (j, 0), (1, n))  ->  exp(dynamic_slice(x, (j, 0), (1, d)) @ y.T)
    rewrite: k = exp(x @ y.T); gather(k, (i, j))                 ->  exp(batched_dot(gather(x, i), gather(y, j)))

Which rows a program reads may be known only when it runs: a greedy choice, the next column of a factorization,
landmarks, the legs of a tour. One chunk of the region that cutting the value makes, from wherever the program reads, is
all that is wanted; of that chunk one of another axis, where the program reads a part of that too; and where it reads in
many places at once, as many such chunks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from exla import _compat
from exla._compat import Literal
from exla.ir.factors import inside
from exla.ir.program import (
    Program,
    as_it_is,
    as_struct,
    aval_bytes,
    equations,
    evaluate,
    read_by,
    value_bytes,
    variables,
)
from exla.ir.scopes import ALONE
from exla.passes.decisions import Growth
from exla.passes.rewritten import Get
from exla.passes.split.body import LoopMaker
from exla.passes.split.grow import grow
from exla.passes.split.loop import slices
from exla.passes.split.regions import Region

READS = ("slice", "dynamic_slice", "gather")
"""What reads a part of a value."""
MOST_WHOLE = 8
"""Times as large as all that is computed whole, for any part of it, a value must be."""
LEAST_SAVED = 2
"""Times as much as what is read in many places would be computed of the whole value, at least."""
_UNBATCHED = ("exla_", "random_", "threefry", "rng_")
"""What the primitives begin with that are not mapped over places: JAX cannot, or not in every shape."""
_MODES = (lax.GatherScatterMode.FILL_OR_DROP, lax.GatherScatterMode.CLIP, lax.GatherScatterMode.PROMISE_IN_BOUNDS)


@dataclass(frozen=True)
class Cut:
    """One axis of a value cut down to what is read of it.

    Attributes:
      region: what makes a part of the value from parts of what it is made of.
      axis: the axis.
      taken: how many indices are read along each axis of the value.
    """

    region: Region
    axis: int
    taken: tuple[int, ...]

    @cached_property
    def maker(self) -> LoopMaker:
        """What traces the part."""
        return LoopMaker(region=self.region, level=self.region.outputs[0].level, chunks=2)

    @cached_property
    def body(self) -> Program:
        """The part, of where it begins and of what is read for it."""
        return self.maker.body(self.taken[self.axis])[0]

    @cached_property
    def inner(self) -> Cut | None:
        """The part cut down further, along another axis."""
        return cut_of(Program(jaxpr=self.body.jaxpr), self.body.outvars[0], self.taken)

    def compute(self, values: Mapping[Any, Any], starts: Sequence[Any]) -> Any:
        """What is read of the value.

        Args:
          values: what it is made of.
          starts: where it is read, an int32 scalar for each axis.
        """
        env = dict(values)
        for i in sorted(self.region.whole):
            eqn = self.region.outside(i)
            operands = [v.val if isinstance(v, Literal) else env[v] for v in eqn.invars]
            env.update(zip(eqn.outvars, as_it_is(eqn, operands), strict=True))
        leaves = [env[v] for v, _ in self.maker.leaves]
        start = starts[self.axis]
        given = [*self.body.consts, start, *slices(leaves, self.maker.placements, start, self.taken[self.axis])]
        rest = [np.int32(0) if k == self.axis else s for k, s in enumerate(starts)]
        if self.inner is not None:
            return self.inner.compute(dict(zip(self.body.jaxpr.invars, given, strict=True)), rest)
        (made,) = evaluate(self.body.jaxpr, given, as_it_is)
        return lax.dynamic_slice(made, rest, self.taken)


def cut_of(program: Program, var: Any, taken: tuple[int, ...], small_bytes: int = 0) -> Cut | None:
    """How a part of a value can be computed alone, along the axis of which least is read; None where it cannot.

    Args:
      program: what computes the value.
      var: the value.
      taken: how many indices are read along each axis.
      small_bytes: values up to this size may be computed whole.
    """
    if var not in program.producers:
        return None
    shape, small = var.aval.shape, max(small_bytes, value_bytes(var) // MOST_WHOLE)
    for axis in sorted(range(len(shape)), key=lambda k: taken[k] / max(shape[k], 1)):
        region = None if taken[axis] == shape[axis] else grow(program, var, axis, Growth(small_bytes=small))
        if region is not None and _is_one_chunk(region, var, axis, taken[axis]):
            return Cut(region=region, axis=axis, taken=taken)
    return None


def _is_one_chunk(region: Region, var: Any, axis: int, taken: int) -> bool:
    """Whether one chunk of a region is all that is needed, beside little that is computed whole."""
    whole = sum(value_bytes(v) for i in region.whole for v in region.outside(i).outvars)
    is_alone = [o.stacked for o in region.outputs] == [(var, (axis, ()))] and not region.saves_states
    fits = region.size == var.aval.shape[axis] and region.least_chunk <= taken
    return is_alone and fits and whole <= value_bytes(var) // MOST_WHOLE


class Part:
    """How an equation can compute the part that it reads of a value."""

    def __init__(self, program: Program, position: int, chain: Sequence[int], small_bytes: int) -> None:
        """See what can be computed.

        Args:
          program: the program.
          position: one of `READS`, of the value itself, or of single numbers of a view of it in another shape.
          chain: the equations that compute the value, in order.
          small_bytes: values up to this size may be computed whole.
        """
        self.eqn = eqn = program.eqns[position]
        self.var = program.eqns[chain[-1]].outvars[0]
        self.leaves = read_by(program, chain)
        jaxpr = program.jaxpr.replace(
            invars=self.leaves, constvars=[], outvars=[self.var], eqns=[program.eqns[i] for i in chain]
        )
        self.made = Program(jaxpr=jaxpr)
        self.is_many = eqn.primitive.name == "gather"
        self.is_flat = eqn.invars[0] is not self.var
        self.sizes = _sizes(eqn)
        self.taken = (1,) * self.var.aval.ndim if self.is_flat else self.sizes
        self.cut = cut_of(self.made, self.var, self.taken, small_bytes) if self._is_known() else None
        if self.cut is not None and self.is_many and not self._is_less(small_bytes):
            self.cut = None

    def _is_known(self) -> bool:
        """Whether it is known what places the equation reads."""
        if self.is_flat and ({*self.sizes} != {1} or self.var.aval.size > np.iinfo(np.int32).max):
            return False
        if self.eqn.params.get("strides") is not None:
            return False
        if not self.is_many:
            return True
        is_fixed = any(e.primitive.name.startswith(_UNBATCHED) for e in self.made.eqns)
        return not is_fixed and self.eqn.params["mode"] in _MODES and not _compat.is_extended(self.var.aval.dtype)

    def _is_less(self, small_bytes: int) -> bool:
        """Whether computing what is read in many places takes less than the whole value does, in work and in bytes."""
        reads = self.reads
        made = jax.make_jaxpr(lambda *values: self.compute(dict(zip(reads, values, strict=True)).__getitem__))(
            *(as_struct(v.aval) for v in reads)
        )
        is_small = _largest(made.jaxpr) <= max(small_bytes, _largest(self.made.jaxpr) // MOST_WHOLE)
        return is_small and _work(made.jaxpr) * LEAST_SAVED <= _work(self.made.jaxpr)

    @property
    def reads(self) -> list[Any]:
        """What is read to compute the part, and where it begins."""
        return list(dict.fromkeys([*self.leaves, *variables(self.eqn.invars[1:])]))

    def compute(self, get: Get) -> list[Any]:
        """The part."""
        with jax.named_scope(ALONE):
            return self._compute(get)

    def _compute(self, get: Get) -> list[Any]:
        assert self.cut is not None
        cut, values = self.cut, {v: get(v) for v in self.leaves}
        if not self.is_many:
            wanted = self.eqn.params.get("start_indices") or list(map(get, self.eqn.invars[1:]))
            starts = [inside(w, most) for w, most in zip(wanted, self._most, strict=True)]
            return [lax.reshape(cut.compute(values, self._in_value(starts)), self.eqn.outvars[0].aval.shape)]
        wanted = self._wanted(get(self.eqn.invars[1]))
        starts = [inside(w, most).reshape(-1) for w, most in zip(wanted, self._most, strict=True)]
        parts = jax.vmap(lambda *each: cut.compute(values, each))(*self._in_value(starts))
        return [self._laid_out(parts, wanted)]

    @property
    def _most(self) -> list[int]:
        """The last place along each axis at which what the equation reads may begin."""
        shape = self.eqn.invars[0].aval.shape
        return [n - size for n, size in zip(shape, self.sizes, strict=True)]

    def _in_value(self, starts: Sequence[Any]) -> Sequence[Any]:
        """Places in the value itself of places in a view of it."""
        if not self.is_flat:
            return starts
        seen = self.eqn.invars[0].aval.shape
        strides = [np.int32(math.prod(seen[k + 1 :])) for k in range(len(seen))]
        place = sum(s * stride for s, stride in zip(starts, strides, strict=True))
        return [s.astype(np.int32) for s in jnp.unravel_index(place, self.var.aval.shape)]

    def _wanted(self, indices: Any) -> list[Any]:
        """Where a gather's windows begin along each axis of its operand, as it is asked."""
        numbers, batch = self.eqn.params["dimension_numbers"], indices.shape[:-1]
        wanted = [lax.full(batch, 0, np.int32)] * len(self._most)
        for k, axis in enumerate(numbers.start_index_map):
            wanted[axis] = indices[..., k]
        for axis, k in zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True):
            wanted[axis] = lax.broadcasted_iota(np.int32, batch, k)
        return wanted

    def _laid_out(self, parts: Any, wanted: Sequence[Any]) -> Any:
        """A gather's result, of its windows one after the other."""
        params, shape = self.eqn.params, self.eqn.outvars[0].aval.shape
        windows = params["dimension_numbers"].offset_dims
        batch = [k for k in range(len(shape)) if k not in windows]
        order = [*batch, *windows]
        made = lax.transpose(lax.reshape(parts, [shape[k] for k in order]), np.argsort(order))
        if params["mode"] is not lax.GatherScatterMode.FILL_OR_DROP:
            return made
        fill = jnp.zeros(1, made.dtype).at[1].get(mode="fill", fill_value=params["fill_value"])
        found = jnp.stack([_is_inside(w, most) for w, most in zip(wanted, self._most, strict=True)]).all(axis=0)
        return lax.select(lax.broadcast_in_dim(found, shape, batch), made, lax.broadcast(fill, shape))


def _sizes(eqn: Any) -> tuple[int, ...]:
    """How many indices an equation reads along each axis, each time."""
    if eqn.primitive.name != "slice":
        return tuple(eqn.params["slice_sizes"])
    return tuple(n - start for start, n in zip(eqn.params["start_indices"], eqn.params["limit_indices"], strict=True))


def _is_inside(start: Any, most: int) -> Any:
    return (start >= 0) & (start <= min(most, jnp.iinfo(start.dtype).max))


def _largest(jaxpr: Any) -> int:
    """Bytes of the largest value that a program computes."""
    return max(aval_bytes(v.aval) for eqn in equations(jaxpr) for v in eqn.outvars)


def _work(jaxpr: Any) -> int:
    """Elements that a program computes, those of products as often as they add one up."""
    return sum(_terms(eqn) * math.prod(v.aval.shape) for eqn in equations(jaxpr) for v in eqn.outvars)


def _terms(eqn: Any) -> int:
    if eqn.primitive.name != "dot_general":
        return 1
    (contracted, _), _ = eqn.params["dimension_numbers"]
    return math.prod(eqn.invars[0].aval.shape[k] for k in contracted)
