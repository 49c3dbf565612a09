"""Fallbacks that are asked for while a program runs: the conditionals that `exla_unless` becomes.

    cheap = f(x); result = exla_unless[otherwise](safe, cheap, x)

In a chunk loop a scalar `safe` is asked before the loop, of which there are two, and nothing is left of the equation.
Elsewhere it is a conditional, for which TPUs' compiler stores `cheap`, and the result in memory of its own.
"""

from __future__ import annotations

from typing import Any

from exla._compat import Literal
from exla.ir.program import Program


def is_asked(program: Program, eqn: Any) -> bool:
    """Whether an equation is an `exla_unless` that becomes a conditional where it stands."""
    if eqn.primitive.name != "exla_unless" or isinstance(eqn.invars[0], Literal):
        return False
    return eqn.invars[0] in program.producers or bool(eqn.invars[0].aval.shape)
