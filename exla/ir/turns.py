"""Library calls in turn: how exla keeps XLA:CPU from waiting for ever.

XLA:CPU runs at the same time what does not depend on each other, on a pool of threads. jaxlib's calls of LAPACK for
many matrices hand parts of their work to the same pool and wait for them, on a thread of that pool. Where as many of
them wait as there are threads, nobody is left to do the parts: two Cholesky factorisations of 2,000 matrices of 32 x 32
that do not depend on each other hang under `jax.jit` on two cores (jaxlib 0.10.2; that of jax 0.12 does not). One such
call in a program may become several in what exla makes of it, so these take turns: the next depends on the one before.

The dependence must be one that XLA and what comes after it keep, and must not change a value: an operand is selected by
whether a count of ones in a number of the result before is at most 64.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import numpy as np
from jax import lax

from exla import _compat
from exla._compat import Literal, is_extended
from exla.ir.memory import programs_of
from exla.ir.primitives import named
from exla.ir.program import Program, program_of, value_bytes

SHARING = named("triangular_solve cholesky")
"""Primitives whose calls for many matrices share their work among the pool's threads and wait for it. Those of lu,
geqrf, eigh, svd and fft did not hang in the same test."""
LEAST_BYTES = 1 << 16
"""Of operands, below which a call does all by itself; 400 KB of them were done so, 860 KB were not."""


def turns_in(program: Program, left_out: Collection[Any] = ()) -> dict[Any, Any]:
    """Which results have to wait for which.

    Args:
      program: the program, its control flow and its chunk loops included.
      left_out: results of equations that are not evaluated in their place.

    Returns:
      The first result of an equation that shares its work, or runs what does -> that of the one before it, where there
      is one, in the same body.
    """
    found: dict[Any, Any] = {}
    before = None
    for eqn in program.eqns:
        if not eqn.outvars or eqn.outvars[0] in left_out or not _shares(eqn):
            continue
        if before is not None:
            found[eqn.outvars[0]] = before
        before = eqn.outvars[0]
        for body in _compat.bodies(eqn):
            found.update(turns_in(program_of(body.jaxpr), left_out))
    return found


def _shares(eqn: Any) -> bool:
    """Whether an equation shares its work among the threads, or runs something that does."""
    if eqn.primitive.name in SHARING:
        is_batched = math.prod(eqn.invars[0].aval.shape[:-2]) > 1
        return is_batched and sum(map(value_bytes, eqn.invars)) >= LEAST_BYTES
    return any(_shares(inner) for body in programs_of(eqn) for inner in body.eqns)


def after(eqn: Any, operands: list[Any], before: Any) -> list[Any]:
    """The operands of an equation, of which one depends on a result.

    Args:
      eqn: the equation.
      operands: its operands.
      before: the result; any shape.

    Returns:
      The same values. The one that takes least memory is copied.
    """
    there = (k for k, v in enumerate(operands) if hasattr(v, "dtype"))  # not left for a branch to compute
    arrays = [k for k in there if not isinstance(eqn.invars[k], Literal) and not is_extended(operands[k].dtype)]
    if not arrays or before.size == 0 or is_extended(before.dtype):
        return operands
    k = min(arrays, key=lambda k: value_bytes(eqn.invars[k]))
    kept = lax.select(_is_done(before), operands[k], lax.full_like(operands[k], 0))
    return [kept if i == k else operand for i, operand in enumerate(operands)]


def _is_done(value: Any) -> Any:
    """True, once a value is there."""
    one = lax.squeeze(lax.slice(value, [0] * value.ndim, [1] * value.ndim), range(value.ndim))
    if np.issubdtype(one.dtype, np.complexfloating):
        one = lax.real(one)
    if one.dtype == bool:
        one = lax.convert_element_type(one, np.uint8)
    bits = lax.bitcast_convert_type(one, np.dtype(f"uint{8 * one.dtype.itemsize}"))
    return lax.le(lax.population_count(bits), bits.dtype.type(64))
