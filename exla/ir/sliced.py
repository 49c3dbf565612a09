"""What TPUs' compiler stores because it is sliced.

    jax.nn.log_softmax(x)[:, 0]     all differences: the sum of the exponentials reads them, too
    x[::2] * x[1::2]                x, its rows outermost, so that every other one is whole

A fusion reads a slice without the rest only where nothing else reads the rest.
"""

from __future__ import annotations

from typing import Any

from exla.ir.primitives import ELEMENTWISE
from exla.ir.program import Program, variables


def is_sliced_of_stored(program: Program, eqn: Any) -> bool:
    """Whether an equation is a slice of what is stored for it."""
    return eqn.primitive.name == "slice" and (skips(eqn) or _is_read_whole(program, eqn.invars[0]))


def skips(eqn: Any) -> bool:
    """Whether an equation takes every other row, or one of several."""
    return eqn.primitive.name == "slice" and (eqn.params["strides"] or (1,))[0] > 1


def is_sliced(program: Program, var: Any) -> bool:
    """Whether a slice is taken of a value."""
    return any(program.eqns[i].primitive.name == "slice" for i, _ in program.consumers.get(var, ()))


def _is_read_whole(program: Program, var: Any) -> bool:
    """Whether what is sliced, or what it is computed of element by element, is read by others than slices too."""
    position = program.producers.get(var)
    if position is None:
        return False
    if any(program.eqns[i].primitive.name != "slice" for i, _ in program.consumers.get(var, ())):
        return True
    eqn = program.eqns[position]
    operands = variables(eqn.invars) if eqn.primitive.name in ELEMENTWISE else ()
    return any(len(program.consumers[v]) > 1 and _is_read_whole(program, v) for v in operands)
