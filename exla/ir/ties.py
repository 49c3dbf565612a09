"""Comparisons that are counted, as where a largest value is, which its derivative is shared out among.

    is_largest = x == max(x); total = sum(is_largest); jnp.where(is_largest, gradient / total, 0)

The compilers of GPUs and TPUs store them, of a byte each, as a second result of what counts them.
"""

from __future__ import annotations

from typing import Any

from exla.ir.program import Program


def is_counted(program: Program, eqn: Any) -> bool:
    """Whether an equation compares, and how often it holds is counted."""
    if eqn.primitive.name != "eq":
        return False
    for i, _ in program.consumers.get(eqn.outvars[0], ()):
        user = program.eqns[i]
        if user.primitive.name != "convert_element_type":
            continue
        if any(program.eqns[k].primitive.name == "reduce_sum" for k, _ in program.consumers.get(user.outvars[0], ())):
            return True
    return False
