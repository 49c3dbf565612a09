"""Convolutions on CPUs: the axes in the order that the library takes.

XLA:CPU hands a convolution to a library only where the image is laid out as (batch, places…, features), the kernel as
(places…, inputs, outputs) and the result as the image. It puts others in that order itself, with transposes, but not
inside loops; there it compiles them to plain loops, which took 65 times as long for the gradient of a kernel. So they
are put in order before anything is split. Those of few features are put in another order: what the library packs for
one of them costs more than plain loops do, 3 to 150 times as much with one input and one output.

    rewrite: conv(x, k, any order) -> transpose(conv(transpose(x), transpose(k)))
"""

from __future__ import annotations

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


def calls_library(eqn: Any, *, is_outside: bool) -> bool:
    """Whether XLA:CPU hands a convolution to a library.

    Args:
      eqn: the convolution.
      is_outside: whether it is outside of all loops, where XLA puts the axes in order itself.
    """
    if _is_swapped(eqn) or (has_batch_groups(eqn) and _is_light(eqn)):  # it gets another order
        return False
    numbers = eqn.params["dimension_numbers"]
    return is_outside or numbers == _ordered(numbers)


def _is_swapped(eqn: Any) -> bool:
    """Whether XLA takes the image for the kernel and the kernel for the image, as the image is smaller.

    It does so with the gradient of the kernel of a transposed convolution, whose window is as large as the image with
    space between its points (`SwapConvOperands` of XLA's algebraic simplifier).
    """
    if eqn.params["feature_group_count"] > 1 or has_batch_groups(eqn):
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
    """Whether plain loops are faster."""
    outputs, inputs, *_ = eqn.params["dimension_numbers"].rhs_spec
    kernel, groups = eqn.invars[1].aval.shape, eqn.params["feature_group_count"] * eqn.params["batch_group_count"]
    return kernel[inputs] * kernel[outputs] // groups < (FEWEST_FEATURES if groups == 1 else FEWEST_IN_GROUPS)


def in_order(eqn: Any, operands: Sequence[Any], source: Any = None) -> list[Any] | None:
    """Evaluate a convolution with its axes in the order of the library, or in another where plain loops are faster.

    None where they are so already, or it is for no library.

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
    if not 1 <= places <= MOST_PLACES or (numbers == ordered) != _is_light(eqn):
        return None
    return _reordered(eqn, operands, _plain(numbers) if _is_light(eqn) else ordered, source)


def has_batch_groups(eqn: Any) -> bool:
    """Whether an equation is a convolution in groups of the batch, as the gradient of a kernel in groups is."""
    return eqn.primitive.name == "conv_general_dilated" and eqn.params["batch_group_count"] > 1


def grouped_by_features(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    """Evaluate a convolution in groups of the batch as one in groups of features, which it is.

    The library has no groups of the batch, and what XLA makes of them inside loops takes 40 times as long.
    """
    numbers, groups = eqn.params["dimension_numbers"], eqn.params["batch_group_count"]
    wanted = _plain(numbers) if _is_light(eqn) else _ordered(numbers)
    with _compat.equation_context(eqn):
        image = lax.transpose(operands[0], numbers.lhs_spec)
        batch, features, *places = image.shape
        image = lax.reshape(image, (groups, batch // groups, features, *places))
        image = lax.reshape(jnp.swapaxes(image, 0, 1), (batch // groups, groups * features, *places))
        image = lax.transpose(image, _moved(range(image.ndim), wanted.lhs_spec))
        kernel = lax.transpose(operands[1], _moved(numbers.rhs_spec, wanted.rhs_spec))
    (result,) = _compat.bind(
        eqn, image, kernel, dimension_numbers=wanted, feature_group_count=groups, batch_group_count=1
    )
    with _compat.equation_context(eqn):
        return [lax.transpose(result, _moved(wanted.out_spec, numbers.out_spec))]


def _reordered(eqn: Any, operands: Sequence[Any], wanted: Any, source: Any) -> list[Any]:
    """Evaluate a convolution with its axes in another order, and put those of the result back."""
    numbers = eqn.params["dimension_numbers"]
    with _compat.equation_context(eqn, source):
        left, right = (
            lax.transpose(x, _moved(has, wants))
            for x, has, wants in zip(operands, numbers[:2], wanted[:2], strict=True)
        )
    (result,) = _compat.bind(eqn, left, right, source=source, dimension_numbers=wanted)
    with _compat.equation_context(eqn, source):
        return [lax.transpose(result, _moved(wanted.out_spec, numbers.out_spec))]


def _moved(has: Sequence[int], wants: Sequence[int]) -> tuple[int, ...]:
    """How an array is transposed whose axes, by what they are, lie in one order, to have them in another."""
    there = dict(zip(wants, has, strict=True))
    return tuple(there[k] for k in range(len(has)))
