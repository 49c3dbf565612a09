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
    """What every value of the type is at least."""
    return jnp.full(aval.shape, _ends(aval.dtype)[0], aval.dtype)


def highest(aval: Any) -> Any:
    """What every value of the type is at most."""
    return jnp.full(aval.shape, _ends(aval.dtype)[1], aval.dtype)


def _ends(dtype: Any) -> tuple[Any, Any]:
    if dtype == np.bool_:
        return False, True
    if not jnp.issubdtype(dtype, jnp.inexact):
        return jnp.iinfo(dtype).min, jnp.iinfo(dtype).max
    if np.isinf(np.asarray(np.inf, dtype)):
        return -np.inf, np.inf
    return jnp.finfo(dtype).min, jnp.finfo(dtype).max  # as float8_e4m3fn, which has no infinity


def all_ones(aval: Any) -> Any:
    return jnp.full(aval.shape, True if aval.dtype == np.bool_ else -1, aval.dtype)
