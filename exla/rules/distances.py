"""Squared Euclidean distances by a matrix product, and how far off that can be.

    |x - y|^2 = |x|^2 + |y|^2 - 2 x.y

With both sides centred on the mean of y, so that a common offset cancels before it is squared. The error is absolute, a
few units of precision of |x|^2 + |y|^2, where the error of the sum of squared differences is relative.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from exla.ir.rewrites import Admitted, Match
from exla.rules.guards import floating
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
    centre = jnp.mean(y, axis=0)
    x, y = x - centre, y - centre
    left, right = jnp.sum(x * x, axis=1), jnp.sum(y * y, axis=1)
    cross = jnp.einsum("nd,md->nm", x, jnp.pad(y, ((0, padding), (0, 0))), precision=lax.Precision.HIGHEST)
    norms = jnp.pad(right, (0, padding), constant_values=jnp.inf)
    return jnp.maximum(left[:, None] + norms - 2 * cross, 0), left, right


def is_damped(scale: Any, dtype: Any, extras: Sequence[tuple[str, Any]]) -> Any:
    """Whether distances with errors relative to `scale` are exact enough for what reads them; NaN is not."""
    gains: dict[str, Any] = {}
    for what, value in extras:
        path, kind = what.split()
        size = jnp.abs(jnp.asarray(value, dtype))
        gain = jnp.max(size) if kind == "mul" else 1 / jnp.min(size)
        gains[path] = gains.get(path, 1.0) * gain
    most = 1.0
    for gain in gains.values():
        most = jnp.maximum(most, gain)
    precision = float(jnp.finfo(dtype).eps) / 2
    return scale * precision * most <= MOST_ERROR[jnp.dtype(dtype).itemsize]
