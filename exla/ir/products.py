"""Matrix products: which axes of a `dot_general` are which, and what is copied to multiply them.

XLA:CPU multiplies batches of matrices whose batch axes lead; an operand that lies otherwise is transposed first, every
time the product is computed. Rows of the left matrix meet columns of the right one: of two orders of the other axes it
reads one as it lies. The other one it can read too, where the operand is an input; what the program computes it has
written in the first order, and copies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jax.lax import Precision

from exla._compat import Literal
from exla.ir.primitives import REDUCERS, VIEWS
from exla.ir.program import Program, value_bytes

Order = tuple[int, ...]
"""The axes of a value, in the order in which they are wanted."""


def axes_of(eqn: Any, side: int) -> tuple[Sequence[int], Sequence[int], list[int]]:
    """The batch, contracted and free axes of one operand of a `dot_general`."""
    contracted, batched = (pair[side] for pair in eqn.params["dimension_numbers"])
    free = [k for k in range(len(eqn.invars[side].aval.shape)) if k not in contracted and k not in batched]
    return batched, contracted, free


def sizes_of(eqn: Any, side: int) -> tuple[int, int, int]:
    """How many indices the batch, contracted and free axes of one operand of a `dot_general` have."""
    shape = eqn.invars[side].aval.shape
    batched, contracted, free = (math.prod(shape[k] for k in axes) for axes in axes_of(eqn, side))
    return batched, contracted, free


def flat_operand(eqn: Any, side: int) -> list[int]:
    """The shape in which XLA multiplies one operand of a `dot_general`: one axis is contracted, and one is free.

    Source: `DotDecomposer` in XLA.
    """
    shape = eqn.invars[side].aval.shape
    batched, contracted, free = axes_of(eqn, side)
    rest = [math.prod(shape[k] for k in axes) for axes in (free, contracted)]
    is_contracted_last = not free or not contracted or free[0] < contracted[0]
    return [*(shape[k] for k in batched), *(rest if is_contracted_last else rest[::-1])]


def flat_result(eqn: Any) -> list[int]:
    """The shape of what it multiplies so."""
    shape = eqn.invars[0].aval.shape
    return [*(shape[k] for k in axes_of(eqn, 0)[0]), *(sizes_of(eqn, side)[2] for side in (0, 1))]


def is_ordered(eqn: Any, side: int, order: Order | None = None) -> bool:
    """Whether one operand of a `dot_general` can be multiplied as it lies, or would if its axes lay in an order."""
    batched, contracted, free = axes_of(eqn, side)
    lies = list(order or range(len(eqn.invars[side].aval.shape)))
    return [*batched, *contracted, *free] == lies or [*batched, *free, *contracted] == lies


def wanted_order(eqn: Any, side: int) -> Order:
    """The axes of one operand of a `dot_general` as it is multiplied: the contracted ones between the free ones."""
    batched, contracted, free = axes_of(eqn, side)
    return (*batched, *free, *contracted) if side == 0 else (*batched, *contracted, *free)


def copied_bytes(program: Program, eqn: Any) -> int:
    """Bytes of the operands that a `dot_general` of a program copies into another order."""
    return sum(value_bytes(v) for side, v in enumerate(eqn.invars) if _is_copied(program, eqn, side))


def _is_copied(program: Program, eqn: Any, side: int) -> bool:
    var, order = eqn.invars[side], wanted_order(eqn, side)
    if list(order) == sorted(order) or isinstance(var, Literal):
        return False
    position = program.producers.get(var)
    is_input = position is None or program.eqns[position].primitive.name in VIEWS
    return not is_input or not is_ordered(eqn, side)


def is_vectors(eqn: Any) -> bool:
    """Whether one side of a product is a vector, in each of its batches."""
    return any(sizes_of(eqn, side)[2] == 1 for side in (0, 1))


def is_outer(eqn: Any) -> bool:
    """Whether an equation is a product that sums nothing: compilers multiply element by element."""
    if eqn.primitive.name != "dot_general":
        return False
    shape, (contracted, _) = eqn.invars[0].aval.shape, eqn.params["dimension_numbers"][0]
    return all(shape[axis] == 1 for axis in contracted)


def adds_nothing(eqn: Any) -> bool:
    """Whether a product or reduction adds up nothing, so that XLA makes a multiplication or a reshape of it."""
    is_kept = eqn.primitive.name in REDUCERS and eqn.invars[0].aval.size == eqn.outvars[0].aval.size
    return is_kept or is_outer(eqn)


def is_exact(eqn: Any) -> bool:
    """Whether a product is asked for in more than the default precision."""
    precision = eqn.params.get("precision")
    asked = precision if isinstance(precision, tuple) else (precision,)
    return any(p not in (None, Precision.DEFAULT) for p in asked)
