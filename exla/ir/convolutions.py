"""Convolutions on CPUs: the axes in the order that the library takes, or in one that it does not.

XLA:CPU hands a convolution to a library only where the image is laid out as (batch, places…, features), the kernel as
(places…, inputs, outputs) and the result as the image. It puts others in that order itself, with transposes, but not
inside loops; there it compiles them to plain loops, which took 65 times as long for the gradient of a kernel. So they
are put in order before anything is split.

    rewrite: conv(x, k, any order) -> transpose(conv(transpose(x), transpose(k)))

What the library packs for a convolution of few features costs more than plain loops do, 3 to 150 times as much with one
input and one output. So where bits may change, those are written in another order at last (`exla.ir.blocks`); and those
in groups of the batch, which the library does not know, in groups of features.
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
FEWEST_FEATURES, FEWEST_IN_GROUPS = 16, 17
"""Inputs times outputs, of each group where there are several, from which on the library may be faster than loops."""

SEVERAL, MANY, LARGE = 3, 350, 200
"""Inputs times outputs from which on the library may be faster all the same, where with the numbers in a window they
make many products (1 x 8 of 9 x 9: 0.5 of the loops' time; 1 x 4: 1.3). In groups: outputs, with so large a window."""


def calls_library(eqn: Any, *, is_outside: bool, is_written: bool) -> bool:
    """Whether XLA:CPU hands a convolution to a library.

    Args:
      eqn: the convolution.
      is_outside: whether it is outside of all loops, where XLA puts the axes in order itself.
      is_written: whether it is written as `write` does where `is_otherwise` says so.
    """
    if _is_swapped(eqn):
        return False
    if is_written and is_otherwise(eqn):
        return is_outside or not _is_light(eqn)
    numbers = eqn.params["dimension_numbers"]
    return is_outside or eqn.params["batch_group_count"] > 1 or numbers == _ordered(numbers)


def _is_swapped(eqn: Any) -> bool:
    """Whether XLA takes the image for the kernel and the kernel for the image, as the image is smaller.

    It does so with the gradient of the kernel of a transposed convolution, whose window is as large as the image with
    space between its points (`SwapConvOperands` of XLA's algebraic simplifier).
    """
    if eqn.params["feature_group_count"] > 1 or eqn.params["batch_group_count"] > 1:
        return False
    numbers, (image, kernel) = eqn.params["dimension_numbers"], (v.aval.shape for v in eqn.invars)
    window = swapped = 1
    by_axis = ("window_strides", "padding", "lhs_dilation", "rhs_dilation")
    for i, k, stride, padding, spread, dilation in zip(
        numbers.lhs_spec[2:], numbers.rhs_spec[2:], *(eqn.params[name] for name in by_axis), strict=True
    ):
        places, size = image[i], kernel[k]
        is_all = (spread, stride) == (1, 1) and places == size
        if tuple(padding) == (0, 0) and dilation == 1 and (is_all or (spread, stride) == (size, size - 1)):
            continue
        window *= size
        swapped *= size if places == stride == dilation == 1 else places
    return window > swapped


def _ordered(numbers: Any) -> Any:
    """The dimension numbers of a convolution of so many axes in the library's order."""
    places = len(numbers.lhs_spec) - 2
    moved = tuple(range(1, places + 1))
    image, kernel = (0, places + 1, *moved), (places + 1, places, *range(places))
    return type(numbers)(lhs_spec=image, rhs_spec=kernel, out_spec=image)


def _plain(numbers: Any) -> Any:
    """The dimension numbers of a convolution of so many axes in an order for which there is no library."""
    same = tuple(range(len(numbers.lhs_spec)))
    return type(numbers)(lhs_spec=same, rhs_spec=same, out_spec=same)


def _is_light(eqn: Any) -> bool:
    """Whether plain loops are faster: few features, and not several outputs of each of many large windows."""
    numbers, kernel, result = eqn.params["dimension_numbers"], eqn.invars[1].aval.shape, eqn.outvars[0].aval.shape
    outputs, inputs, *axes = numbers.rhs_spec
    groups = eqn.params["feature_group_count"] * eqn.params["batch_group_count"]
    if kernel[inputs] * kernel[outputs] // groups >= (FEWEST_FEATURES if groups == 1 else FEWEST_IN_GROUPS):
        return False
    window = math.prod(kernel[axis] for axis in axes)
    windows = math.prod(result[axis] for axis in numbers.out_spec[2:])
    both = kernel[inputs] * kernel[outputs]
    many = both >= SEVERAL and both * window >= MANY
    if groups > 1:
        many = kernel[outputs] // groups >= SEVERAL and window >= LARGE
    return not many or windows <= window


def in_order(eqn: Any, operands: Sequence[Any], source: Any = None) -> list[Any] | None:
    """Evaluate a convolution with its axes in the order of the library; None where they are, or it is for no library.

    Args:
      eqn: an equation.
      operands: its operands.
      source: replaces its source line, where it is not None.
    """
    if not _is_for_library(eqn) or eqn.params["batch_group_count"] != 1:
        return None
    wanted = _ordered(eqn.params["dimension_numbers"])
    return None if eqn.params["dimension_numbers"] == wanted else _reordered(eqn, operands, wanted, source)


def is_otherwise(eqn: Any) -> bool:
    """Whether an equation is a convolution that `write` writes in another way: of few features, or in groups of the
    batch."""
    return _is_for_library(eqn) and (eqn.params["batch_group_count"] > 1 or _is_light(eqn))


def write(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    """Evaluate such a convolution: in groups of features, with its axes in an order for which there is no library, or
    in that of the library where it has many features."""
    groups, numbers = eqn.params["batch_group_count"], eqn.params["dimension_numbers"]
    wanted = _plain(numbers) if _is_light(eqn) else _ordered(numbers)
    if groups == 1:
        return _reordered(eqn, operands, wanted, None)
    with _compat.equation_context(eqn):
        image = lax.transpose(operands[0], numbers.lhs_spec)
        batch, features, *places = image.shape
        image = lax.reshape(image, (groups, batch // groups, features, *places))
        image = lax.reshape(jnp.swapaxes(image, 0, 1), (batch // groups, groups * features, *places))
    has = numbers._replace(lhs_spec=tuple(range(image.ndim)))
    return _reordered(eqn, [image, operands[1]], wanted, None, has, feature_group_count=groups, batch_group_count=1)


def _is_for_library(eqn: Any) -> bool:
    """Whether an equation is a convolution of so many axes and such numbers that there is a library for it."""
    return (
        eqn.primitive.name == "conv_general_dilated"
        and all(v.aval.dtype in TYPES for v in eqn.invars)
        and 1 <= len(eqn.params["dimension_numbers"].lhs_spec) - 2 <= MOST_PLACES
    )


def _reordered(
    eqn: Any, operands: Sequence[Any], wanted: Any, source: Any, has: Any = None, **params: Any
) -> list[Any]:
    """Evaluate a convolution with its axes in another order than they have, and put those of the result back."""
    has = has or eqn.params["dimension_numbers"]
    with _compat.equation_context(eqn, source):
        moved = [lax.transpose(x, _moved(*specs)) for x, *specs in zip(operands, has[:2], wanted[:2], strict=True)]
    (result,) = _compat.bind(eqn, *moved, source=source, dimension_numbers=wanted, **params)
    with _compat.equation_context(eqn, source):
        return [lax.transpose(result, _moved(wanted.out_spec, has.out_spec))]


def _moved(has: Sequence[int], wants: Sequence[int]) -> tuple[int, ...]:
    """How an array is transposed whose axes, by what they are, lie in one order, to have them in another."""
    there = dict(zip(wants, has, strict=True))
    return tuple(there[k] for k in range(len(has)))
