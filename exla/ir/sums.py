"""Sums of many terms that keep what their roundings lose.

A sum of n terms, one after the other, may be wrong by n roundings of what it has come to; where the terms have one
sign, the roundings have too. Two numbers keep the sum: it as it is rounded, and what that has lost so far.

Source: D. E. Knuth, *The Art of Computer Programming*, volume 2, section 4.2.2 (the exact error of one addition);
A. Neumaier, "Rundungsfehleranalyse einiger Verfahren zur Summation endlicher Summen", 1974 (adding the errors up).
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax


def add(total: Any, lost: Any, more: Any) -> tuple[Any, Any]:
    """Add to a sum; `total + lost` is the sum.

    Args:
      total: the sum as it is rounded, of a float or complex dtype.
      lost: what its roundings have lost, of the same shape and dtype.
      more: what is added, likewise.

    Returns:
      Both, after the addition. Nothing is lost of a sum that is infinite or no number.
    """
    more = lax.optimization_barrier(more)  # else the product that made it may be rounded with one of its uses alone
    new = total + more
    taken = new - total
    error = (total - (new - taken)) + (more - taken)
    return new, jnp.where(jnp.isfinite(new), lost + error, jnp.zeros_like(lost))


def widened(array: Any) -> Any:
    """An array that is to be added to: floats below 32 bits in float32, in which many additions lose less."""
    is_narrow = jnp.issubdtype(array.dtype, jnp.floating) and jnp.finfo(array.dtype).bits < 32
    return lax.convert_element_type(array, np.float32) if is_narrow else array
