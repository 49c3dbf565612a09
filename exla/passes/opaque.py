"""What is true of every number, and no compiler knows: that it is NaN or is not."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from exla import _compat


def has_numbers(aval: Any) -> bool:
    """Whether a value has an element that may be NaN: something that `not_before` can wait for."""
    return jnp.issubdtype(aval.dtype, jnp.inexact) and 0 not in aval.shape and not _compat.is_on_host(aval)


def one_of(array: Any) -> Any:
    """The first number of an array, as a scalar."""
    return lax.squeeze(lax.slice(array, (0,) * array.ndim, (1,) * array.ndim), range(array.ndim))


def always(number: Any) -> Any:
    """True, of a real number."""
    return (number == number) | (number != number)


def not_before(x: Any, late: Any) -> Any:
    """An array that is there only once another one is, whatever XLA orders by; its values are the same.

    It must not be all ones, which it would have to be chosen from.
    """
    return jnp.where(always(one_of(late)), x, jnp.ones_like(x))
