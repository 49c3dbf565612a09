"""What counts along an axis: values that are 0, 1, 2, … along one axis and the same along all others.

`jnp.arange` is traced as an iota, and indexing with it adds the size where an index is negative, which none is here,
broadcasts, clamps and converts. `Counting` looks through all that, so that it is known what the indices are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from exla._compat import Literal

SAME = frozenset({"copy", "copy_p", "stop_gradient"})
"""Primitives whose result is their operand."""


class Counting:
    """What the variables of a jaxpr count along.

    Args:
      producers: the equation that makes each variable.
      constants: values of variables that are known; others that nothing makes count along nothing.
    """

    def __init__(self, producers: Mapping[Any, Any], constants: Mapping[Any, Any]) -> None:
        self.producers = producers
        self.constants = constants

    def axis(self, atom: Any) -> int | None:
        """The axis along which a value's i-th element is i, whatever the other indices are; None where there is none.

        Args:
          atom: a variable or literal.
        """
        eqn = None if isinstance(atom, Literal) else self.producers.get(atom)
        if eqn is None:
            known = None if isinstance(atom, Literal) else self.constants.get(atom)
            return None if known is None else _counted(np.asarray(known))
        name, params = eqn.primitive.name, eqn.params
        if name == "iota":
            return int(params["dimension"]) if np.dtype(params["dtype"]).kind in "iu" else None
        if name == "select_n":
            which = self._decided(eqn.invars[0])
            return None if which is None else self.axis(eqn.invars[1 + which])
        if name == "clamp":
            low, operand, high = eqn.invars
            return self._kept(self._kept(self.axis(operand), operand, low, least=True), operand, high, least=False)
        if name in ("max", "min"):
            operand, bound = eqn.invars if self._number(eqn.invars[1]) is not None else eqn.invars[::-1]
            return self._kept(self.axis(operand), operand, bound, least=name == "max")
        if not eqn.invars or (below := self.axis(eqn.invars[0])) is None:
            return None
        before, after = eqn.invars[0].aval, eqn.outvars[0].aval
        if name in SAME:
            return below
        if name == "convert_element_type":
            holds = np.dtype(after.dtype).kind in "iu" and before.shape[below] - 1 <= np.iinfo(after.dtype).max
            return below if holds else None
        if name == "broadcast_in_dim":
            axis = params["broadcast_dimensions"][below]
            return axis if after.shape[axis] == before.shape[below] else None
        if name == "transpose":
            return list(params["permutation"]).index(below)
        if name in ("reshape", "squeeze", "expand_dims"):
            return _same_axis(before.shape, after.shape, below)
        return None

    def parts(self, indices: Any) -> list[Any]:
        """What is concatenated to indices along their last axis; nothing where they are made in another way."""
        eqn = None if isinstance(indices, Literal) else self.producers.get(indices)
        last = len(indices.aval.shape) - 1
        if eqn is None or eqn.primitive.name != "concatenate" or eqn.params["dimension"] != last:
            return []
        return list(eqn.invars)

    def _kept(self, axis: int | None, operand: Any, bound: Any, *, least: bool) -> int | None:
        """The axis, where a bound leaves everything along it as it is."""
        number = self._number(bound)
        if axis is None or number is None:
            return None
        return axis if (number <= 0 if least else number >= operand.aval.shape[axis] - 1) else None

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
        axis, number = self.axis(eqn.invars[0]), self._number(eqn.invars[1])
        if axis is None or number is None:
            return None
        is_less = True if eqn.invars[0].aval.shape[axis] - 1 < number else False if number <= 0 else None
        return None if is_less is None else int(is_less == (eqn.primitive.name == "lt"))

    def _number(self, atom: Any) -> float | None:
        """The one number that a value holds, where it is known."""
        if isinstance(atom, Literal):
            return float(atom.val) if np.ndim(atom.val) == 0 else None
        eqn = self.producers.get(atom)
        if eqn is None or eqn.primitive.name not in ("broadcast_in_dim", "convert_element_type"):
            return None
        return self._number(eqn.invars[0])


def _counted(values: np.ndarray) -> int | None:
    """The axis along which an array counts."""
    if values.dtype.kind not in "iu":
        return None
    for axis, count in enumerate(values.shape):
        counts = np.arange(count).reshape([-1 if k == axis else 1 for k in range(values.ndim)])
        if count > 1 and np.array_equal(values, np.broadcast_to(counts, values.shape)):
            return axis
    return None


def _same_axis(before: Sequence[int], after: Sequence[int], axis: int) -> int | None:
    """Where an axis is after a change of shape that only adds or drops axes of size 1."""
    long, kept = ([k for k, n in enumerate(shape) if n != 1] for shape in (before, after))
    if axis not in long or [before[k] for k in long] != [after[k] for k in kept]:
        return None
    return kept[long.index(axis)]
