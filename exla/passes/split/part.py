"""A part of a computed value, computed alone.

    rewrite: k = exp(x @ y.T); dynamic_slice(k, (j, 0), (1, n))  ->  exp(dynamic_slice(x, (j, 0), (1, d)) @ y.T)

Which rows a loop reads is known only when it runs: a greedy choice, the next column of a factorization. One chunk of
the region that cutting the value makes, from wherever the program reads, is all that is wanted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from exla._compat import Literal
from exla.ir.factors import inside
from exla.ir.program import Program, as_it_is, evaluate, read_by, value_bytes, variables
from exla.passes.decisions import Growth
from exla.passes.rewritten import Get
from exla.passes.split.body import LoopMaker
from exla.passes.split.grow import grow
from exla.passes.split.loop import slices
from exla.passes.split.regions import Region

MOST_WHOLE = 8
"""Times as large as all that is computed whole, for any part of it, a value must be."""


class Part:
    """How an equation can compute the part that it reads of a value."""

    def __init__(self, program: Program, position: int, chain: Sequence[int], small_bytes: int) -> None:
        """See what can be computed.

        Args:
          program: the program.
          position: a `dynamic_slice`, of the value itself, or one number of a view of it in another shape.
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
        self.is_flat = eqn.invars[0] is not self.var
        self.taken = (1,) * self.var.aval.ndim if self.is_flat else tuple(eqn.params["slice_sizes"])
        found: tuple[int, Region | None] = next(self._regions(small_bytes), (0, None))
        self.axis, self.region = found

    def _regions(self, small_bytes: int) -> Iterator[tuple[int, Region]]:
        """The axes along which a part can be computed, what is read least of first."""
        shape = self.var.aval.shape
        if self.is_flat and (set(self.eqn.params["slice_sizes"]) != {1} or self.var.aval.size > np.iinfo(np.int32).max):
            return
        for axis in sorted(range(len(shape)), key=lambda k: self.taken[k] / max(shape[k], 1)):
            if self.taken[axis] == shape[axis]:
                continue
            small = max(small_bytes, value_bytes(self.var) // MOST_WHOLE)
            region = grow(self.made, self.var, axis, Growth(small_bytes=small))
            if region is not None and self._is_one_chunk(region, axis):
                yield axis, region

    def _is_one_chunk(self, region: Region, axis: int) -> bool:
        """Whether one chunk of a region is all that is needed, beside little that is computed whole."""
        whole = sum(value_bytes(v) for i in region.whole for v in region.outside(i).outvars)
        is_alone = [o.stacked for o in region.outputs] == [(self.var, (axis, ()))] and not region.saves_states
        fits = region.size == self.var.aval.shape[axis] and region.least_chunk <= self.taken[axis]
        return is_alone and fits and whole <= value_bytes(self.var) // MOST_WHOLE

    @property
    def reads(self) -> list[Any]:
        """What is read to compute the part, and where it begins."""
        return [*self.leaves, *variables(self.eqn.invars[1:])]

    def compute(self, get: Get) -> list[Any]:
        """The part."""
        assert self.region is not None
        shape, axis = self.var.aval.shape, self.axis
        read = zip(self.eqn.invars[1:], self.eqn.invars[0].aval.shape, self.eqn.params["slice_sizes"], strict=True)
        starts = [inside(get(v), n - size) for v, n, size in read]
        if self.is_flat:
            seen = self.eqn.invars[0].aval.shape
            strides = [math.prod(seen[k + 1 :]) for k in range(len(seen))]
            place = sum(lax.mul(s, np.int32(stride)) for s, stride in zip(starts, strides, strict=True))
            starts = [s.astype(np.int32) for s in jnp.unravel_index(place, shape)]
        values = {v: get(v) for v in self.leaves}
        for i in sorted(self.region.whole):
            eqn = self.region.outside(i)
            given = [v.val if isinstance(v, Literal) else values[v] for v in eqn.invars]
            values.update(zip(eqn.outvars, as_it_is(eqn, given), strict=True))
        maker = LoopMaker(region=self.region, level=self.region.outputs[0].level, chunks=2)
        body, _ = maker.trace(self.taken[axis])
        leaves = [values[v] for v, _ in maker.leaves]
        given = slices(leaves, maker.placements, starts[axis], self.taken[axis])
        (made,) = evaluate(body.jaxpr, [*body.consts, starts[axis], *given], as_it_is)
        rest = [np.int32(0) if k == axis else s for k, s in enumerate(starts)]
        made = lax.dynamic_slice(made, rest, self.taken)
        return [lax.reshape(made, self.eqn.outvars[0].aval.shape)]
