"""What counts along an axis: values that are k, k + 1, k + 2, … along one axis and the same along all others.

`jnp.arange` is traced as an iota, and indexing with it adds the size where an index is negative, which none is here,
broadcasts, clamps and converts. `Counting` looks through all that, so that it is known what the indices are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from exla import _compat
from exla._compat import Literal
from exla.ir.primitives import RESHAPED

SAME = frozenset({"copy", "copy_p", "stop_gradient"})
"""Primitives whose result is their operand."""
KNOWN = frozenset({"iota", "select_n", "clamp", "max", "min", "add"}) | frozenset(
    {"convert_element_type", "broadcast_in_dim", "transpose", *RESHAPED, *SAME}
)
"""Primitives whose results may count, where their operands do."""
DEEPEST = 64
"""Equations that are looked through, one behind another, at most: indices are made of a dozen."""


class Count(NamedTuple):
    """The axis that is counted along, and the first number, 0 or more."""

    axis: int
    first: int

    def last(self, shape: Sequence[int]) -> int:
        """The last number, where the values have this shape."""
        return self.first + shape[self.axis] - 1


class Counting:
    """What the variables of a jaxpr count along.

    Args:
      producers: the equation that makes each variable.
      constants: values of variables that are known; others that nothing makes count along nothing.
    """

    def __init__(self, producers: Mapping[Any, Any], constants: Mapping[Any, Any]) -> None:
        self.producers = producers
        self.constants = constants

    def along(self, atom: Any, depth: int = 0) -> Count | None:
        """The axis along which a value's i-th element is i, or i more than the first; None where there is none.

        Args:
          atom: a variable or literal.
          depth: equations that were looked through on the way to it.
        """
        if isinstance(atom, Literal) or not _is_whole(atom.aval) or depth > DEEPEST:
            return None
        eqn = self.producers.get(atom)
        if eqn is None:
            known = self.constants.get(atom)
            return None if known is None else _counted(np.asarray(known))
        name, params = eqn.primitive.name, eqn.params
        if name not in KNOWN:
            return None
        if name == "iota":
            counted = Count(int(params["dimension"]), 0)
            return counted if _holds(params["dtype"], counted.last(params["shape"])) else None
        if name == "select_n":
            which = self._decided(eqn.invars[0])
            return None if which is None else self.along(eqn.invars[1 + which], depth + 1)
        if name == "clamp":
            low, operand, high = eqn.invars
            found = self._kept(self.along(operand, depth + 1), operand, low, least=True)
            return self._kept(found, operand, high, least=False)
        if name in ("max", "min"):
            operand, bound = self._with_number(eqn)
            return self._kept(self.along(operand, depth + 1), operand, bound, least=name == "max")
        if name == "add":
            return self._shifted(*self._with_number(eqn), depth + 1)
        below = self.along(eqn.invars[0], depth + 1)
        if below is None:
            return None
        before, after = eqn.invars[0].aval, eqn.outvars[0].aval
        axis: int | None = below.axis
        if name == "convert_element_type":
            axis = below.axis if _holds(after.dtype, below.last(before.shape)) else None
        elif name == "broadcast_in_dim":
            axis = params["broadcast_dimensions"][below.axis]
            axis = axis if after.shape[axis] == before.shape[below.axis] else None
        elif name == "transpose":
            axis = list(params["permutation"]).index(below.axis)
        elif name in RESHAPED:
            axis = _same_axis(before.shape, after.shape, below.axis)
        return None if axis is None else Count(axis, below.first)

    def parts(self, indices: Any) -> list[Any]:
        """What is concatenated to indices along their last axis; nothing where they are made in another way."""
        eqn = None if isinstance(indices, Literal) else self.producers.get(indices)
        last = len(indices.aval.shape) - 1
        if eqn is None or eqn.primitive.name != "concatenate" or eqn.params["dimension"] != last:
            return []
        return list(eqn.invars)

    def _with_number(self, eqn: Any) -> tuple[Any, Any]:
        """The operands of an operation on two, the one that is a number last."""
        left, right = eqn.invars
        return (left, right) if self._number(right) is not None else (right, left)

    def _shifted(self, operand: Any, by: Any, depth: int) -> Count | None:
        """What counts, from a later first number on."""
        found, number = self.along(operand, depth), self._number(by)
        if found is None or number is None or number < 0:
            return None
        last = found.last(operand.aval.shape) + number
        return Count(found.axis, found.first + number) if _holds(operand.aval.dtype, last) else None

    def _kept(self, found: Count | None, operand: Any, bound: Any, *, least: bool) -> Count | None:
        """What counts, where a bound leaves all of it as it is."""
        number = self._number(bound)
        if found is None or number is None:
            return None
        return found if (number <= found.first if least else number >= found.last(operand.aval.shape)) else None

    def _decided(self, atom: Any) -> int | None:
        """Which way a comparison of what counts with a number goes everywhere; None where it is not known."""
        if isinstance(atom, Literal):
            return None
        if (known := self.constants.get(atom)) is not None:
            ways = np.unique(np.asarray(known))
            return int(ways[0]) if len(ways) == 1 else None
        eqn = self.producers.get(atom)
        if eqn is None or eqn.primitive.name not in ("lt", "ge"):
            return None
        found, number = self.along(eqn.invars[0]), self._number(eqn.invars[1])
        if found is None or number is None:
            return None
        is_less = True if found.last(eqn.invars[0].aval.shape) < number else False if number <= found.first else None
        return None if is_less is None else int(is_less == (eqn.primitive.name == "lt"))

    def _number(self, atom: Any) -> int | None:
        """The one whole number that a value holds, where it is known."""
        if not _is_whole(atom.aval):
            return None
        if isinstance(atom, Literal):
            return int(atom.val) if np.ndim(atom.val) == 0 else None
        eqn = self.producers.get(atom)
        if eqn is None or eqn.primitive.name not in ("broadcast_in_dim", "convert_element_type"):
            return None
        number = self._number(eqn.invars[0])
        return number if number is not None and number >= 0 and _holds(atom.aval.dtype, number) else None


def _is_whole(aval: Any) -> bool:
    """Whether a type is of integers."""
    return not _compat.is_extended(aval.dtype) and np.dtype(aval.dtype).kind in "iu"


def _holds(dtype: Any, number: int) -> bool:
    """Whether a type is of integers that go up to a number."""
    return np.dtype(dtype).kind in "iu" and number <= np.iinfo(dtype).max


def _counted(values: np.ndarray) -> Count | None:
    """The axis along which an array counts."""
    if values.dtype.kind not in "iu" or not values.size:
        return None
    first = int(values.flat[0])
    if first > np.iinfo(np.int64).max - max(values.shape, default=0):
        return None
    for axis, count in enumerate(values.shape):
        counts: np.ndarray = first + np.arange(count).reshape([-1 if k == axis else 1 for k in range(values.ndim)])
        if count > 1 and first >= 0 and np.array_equal(values, np.broadcast_to(counts, values.shape)):
            return Count(axis, first)
    return None


def _same_axis(before: Sequence[int], after: Sequence[int], axis: int) -> int | None:
    """Where an axis is after a change of shape that only adds or drops axes of size 1."""
    long, kept = ([k for k, n in enumerate(shape) if n != 1] for shape in (before, after))
    if axis not in long or [before[k] for k in long] != [after[k] for k in kept]:
        return None
    return kept[long.index(axis)]
