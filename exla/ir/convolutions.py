"""Convolutions on CPUs: the axes in the order that the library takes.

XLA:CPU hands a convolution to a library only where the image is laid out as (batch, places…, features), the kernel as
(places…, inputs, outputs) and the result as the image. It puts others in that order itself, with transposes, but not
inside loops; there it compiles them to plain loops, which took 65 times as long for the gradient of a kernel. So they
are put in order before anything is split. But not those with few features: what the library packs for one of them costs
more than plain loops do, 3 to 150 times as much with one input and one output.

    rewrite: conv(x, k, any order) -> transpose(conv(transpose(x), transpose(k)))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from exla import _compat

TYPES = tuple(map(jnp.dtype, ("float32", "float16", "bfloat16")))
"""Types of numbers that the library computes with; the last one in the first."""
MOST_PLACES = 3
"""Axes over which a window moves, at most, where the library is called."""
FEWEST_FEATURES = 16
"""Inputs times outputs, of a group, from which on the library may be faster than plain loops."""


def calls_library(eqn: Any, *, is_outside: bool) -> bool:
    """Whether XLA:CPU hands a convolution to a library.

    Args:
      eqn: the convolution.
      is_outside: whether it is outside of all loops, where XLA puts the axes in order itself.
    """
    numbers = eqn.params["dimension_numbers"]
    return is_outside or numbers == _ordered(numbers)


def _ordered(numbers: Any) -> Any:
    """The dimension numbers of a convolution of so many axes in the library's order."""
    places = len(numbers.lhs_spec) - 2
    moved = tuple(range(1, places + 1))
    image, kernel = (0, places + 1, *moved), (places + 1, places, *range(places))
    return type(numbers)(lhs_spec=image, rhs_spec=kernel, out_spec=image)


def _is_light(eqn: Any) -> bool:
    """Whether plain loops are faster: few features, and no more numbers in a window than there are windows."""
    numbers, kernel, result = eqn.params["dimension_numbers"], eqn.invars[1].aval.shape, eqn.outvars[0].aval.shape
    outputs, inputs, *axes = numbers.rhs_spec
    windows = math.prod(result[axis] for axis in numbers.out_spec[2:])
    features = kernel[inputs] * kernel[outputs] // eqn.params["feature_group_count"]
    return features < FEWEST_FEATURES and math.prod(kernel[axis] for axis in axes) <= windows


def in_order(eqn: Any, operands: Sequence[Any], source: Any = None) -> list[Any] | None:
    """Evaluate a convolution with its axes in the order of the library; None where they are, or it is none for it.

    Args:
      eqn: an equation.
      operands: its operands.
      source: replaces its source line, where it is not None.
    """
    if eqn.primitive.name != "conv_general_dilated" or eqn.params["batch_group_count"] != 1:
        return None
    if any(v.aval.dtype not in TYPES for v in eqn.invars):
        return None
    numbers = eqn.params["dimension_numbers"]
    places, ordered = len(numbers.lhs_spec) - 2, _ordered(numbers)
    if not 1 <= places <= MOST_PLACES or numbers == ordered or _is_light(eqn):
        return None
    with _compat.equation_context(eqn, source):
        batch, features, *axes = numbers.lhs_spec
        left = lax.transpose(operands[0], (batch, *axes, features))
        outputs, inputs, *axes = numbers.rhs_spec
        right = lax.transpose(operands[1], (*axes, inputs, outputs))
    (result,) = _compat.bind(eqn, left, right, source=source, dimension_numbers=ordered)
    batch, features, *axes = numbers.out_spec
    made = (batch, *axes, features)
    with _compat.equation_context(eqn, source):
        return [lax.transpose(result, tuple(made.index(axis) for axis in range(places + 2)))]
