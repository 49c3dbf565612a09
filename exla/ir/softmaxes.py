"""Softmaxes of values with three axes and more, of which TPUs' compiler stores what the exponentials are of.

    shifted = x - max(x, axis)      one fusion: the maximum of each row is taken for every place of it
    exp(shifted) / sum(exp(shifted), axis)

Of matrices the maximum is a result of its own, and `x - max(x)` is computed again by whatever reads it.
"""

from __future__ import annotations

from typing import Any

from exla.ir.primitives import FUSIBLE, VIEWS, named
from exla.ir.program import Program, variables

SPREADING = VIEWS | named("broadcast_in_dim max")
"""What a maximum goes through before it is subtracted; softmaxes take the larger one of it and minus infinity."""
LEAST_AXES = 3


def is_shifted(program: Program, eqn: Any) -> bool:
    """Whether a difference is that of an element-wise value and its maximum along an axis, for a softmax."""
    if len(eqn.outvars[0].aval.shape) < LEAST_AXES or len(variables(eqn.invars)) != len(eqn.invars):
        return False
    whole, largest = eqn.invars
    at = program.producers.get(largest)
    while at is not None and program.eqns[at].primitive.name in SPREADING:
        behind = variables(program.eqns[at].invars)
        at = program.producers.get(behind[0]) if behind else None
    if at is None or program.eqns[at].primitive.name != "reduce_max" or program.eqns[at].invars[0] is not whole:
        return False
    exponentials = [program.eqns[i] for i, _ in program.consumers.get(eqn.outvars[0], ())]
    is_softmax = any(e.primitive.name == "exp" and _is_summed(program, e.outvars[0]) for e in exponentials)
    return is_softmax and not _is_of_product(program, whole)


def _is_summed(program: Program, var: Any) -> bool:
    return any(program.eqns[i].primitive.name == "reduce_sum" for i, _ in program.consumers.get(var, ()))


def _is_of_product(program: Program, var: Any) -> bool:
    """Whether a value is computed element by element from a product, in whose fusion its maximum is taken too."""
    at = program.producers.get(var)
    if at is None or program.eqns[at].primitive.name not in FUSIBLE:
        return at is not None and program.eqns[at].primitive.name == "dot_general"
    return any(_is_of_product(program, v) for v in variables(program.eqns[at].invars))
