"""Squared Euclidean distances by a matrix product, and how far off that can be.

    |x - y|^2 = |x|^2 + |y|^2 - 2 x.y

With both sides centred on the mean of y, so that a common offset cancels before it is squared. The error is absolute, a
few units of precision of |x|^2 + |y|^2, where the error of the sum of squared differences is relative.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from exla.ir.rewrites import Admitted, Match
from exla.rules.guards import floating
from exla.rules.primitives import number, padded
from exla.rules.sensitivity import damping

MOST_ERROR = {4: 3e-5, 8: 1e-11}
"""Bytes of a dtype -> the relative error that a damped distance may have."""


def guard(match: Match) -> str | Admitted:
    """Decline types that lose too much, and readers that magnify a small absolute error."""
    declined = floating(match)
    if isinstance(declined, str):
        return declined
    paths = damping(match.program, match.position)
    if isinstance(paths, str):
        return paths
    return Admitted(extras=tuple((f"{n} {kind}", atom) for n, path in enumerate(paths) for kind, atom in path))


def distances(x: Any, y: Any, padding: int = 0) -> tuple[Any, Any, Any]:
    """Squared distances of the rows of x and y.

    Args:
      x: points, (n, d).
      y: points, (m, d).
      padding: how many points at infinity are added to y.

    Returns:
      (n, m + padding) squared distances, and the squared norms of both sides, (n,) and (m,), centred: the distance of
      i and j is off by less than (d + 5) eps (norm_i + norm_j).
    """
    centre = lax.expand_dims(lax.div(lax.reduce_sum(y, [0]), number(y, y.shape[0])), (0,))
    x, y = lax.sub(x, centre), lax.sub(y, centre)
    left, right = lax.reduce_sum(lax.mul(x, x), [1]), lax.reduce_sum(lax.mul(y, y), [1])
    cross = lax.dot_general(
        x,
        padded(y, (padding, 0), 0),
        (((1,), (1,)), ((), ())),
        precision=lax.Precision.HIGHEST,
        preferred_element_type=x.dtype,
    )
    norms = lax.add(lax.expand_dims(left, (1,)), lax.expand_dims(padded(right, (padding,), np.inf), (0,)))
    return lax.max(lax.sub(norms, lax.mul(number(cross, 2), cross)), number(cross, 0)), left, right


def is_damped(scale: Any, dtype: Any, extras: Sequence[tuple[str, Any]]) -> Any:
    """Whether distances with errors relative to `scale` are exact enough for what reads them; NaN is not."""
    gains: dict[str, Any] = {}
    for what, value in extras:
        path, kind = what.split()
        size = lax.abs(lax.convert_element_type(value, dtype))
        axes = range(size.ndim)
        gain = lax.reduce_max(size, axes) if kind == "mul" else lax.div(number(size, 1), lax.reduce_min(size, axes))
        gains[path] = lax.mul(gains[path], gain) if path in gains else gain
    error = lax.mul(scale, number(scale, float(jnp.finfo(dtype).eps) / 2))
    if gains:
        error = lax.mul(error, functools.reduce(lax.max, gains.values(), number(scale, 1)))
    return lax.le(error, number(scale, MOST_ERROR[np.dtype(dtype).itemsize]))
