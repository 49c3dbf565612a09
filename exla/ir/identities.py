"""Identity elements of the monoids that reductions and cumulative operations work with, as arrays.

Each takes an abstract value and returns an array of its shape and dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np


def full(value: Any) -> Callable[[Any], Any]:
    return lambda aval: jnp.full(aval.shape, value, aval.dtype)


def lowest(aval: Any) -> Any:
    if aval.dtype == np.bool_:
        return jnp.zeros(aval.shape, aval.dtype)
    low = -jnp.inf if jnp.issubdtype(aval.dtype, jnp.inexact) else jnp.iinfo(aval.dtype).min
    return jnp.full(aval.shape, low, aval.dtype)


def highest(aval: Any) -> Any:
    if aval.dtype == np.bool_:
        return jnp.ones(aval.shape, aval.dtype)
    high = jnp.inf if jnp.issubdtype(aval.dtype, jnp.inexact) else jnp.iinfo(aval.dtype).max
    return jnp.full(aval.shape, high, aval.dtype)


def all_ones(aval: Any) -> Any:
    return jnp.full(aval.shape, True if aval.dtype == np.bool_ else -1, aval.dtype)
