"""Reductions that XLA:GPU and TPUs' compiler compute in one fusion with several results.

    jnp.sum(jnp.cos(phases), axis=1), jnp.sum(jnp.sin(phases), axis=1)

Both go over the same indices, neither waits for the other, and so both are sums of one loop, in which the phases are
computed once and never stored. A softmax's maximum and sum are none: the sum waits for the maximum.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from exla.ir.primitives import REDUCERS
from exla.ir.products import axes_of, is_vectors
from exla.ir.program import Program


def are_siblings(program: Program, positions: Iterable[int], *, any_axes: bool = False) -> bool:
    """Whether the equations at some positions reduce the same indices, and none of them waits for another.

    Args:
      program: the program.
      positions: of the equations.
      any_axes: whether they may sum over different axes of these indices, as on TPUs.
    """
    found = list(positions)
    loops = {_loop(program.eqns[position], any_axes) for position in found}
    if len(loops) > 1 or None in loops:
        return False
    before = _ancestors(program)
    mask = sum(1 << position for position in found)
    return not any(before[position] & mask for position in found)


def _loop(eqn: Any, any_axes: bool) -> tuple[Any, ...] | None:
    """The shape that an equation reduces, and the axes; None where it is no reduction."""
    if eqn.primitive.name in REDUCERS:
        return eqn.invars[0].aval.shape, () if any_axes else tuple(eqn.params.get("axes", ()))
    if eqn.primitive.name == "dot_general" and is_vectors(eqn):
        larger = max((0, 1), key=lambda side: len(eqn.invars[side].aval.shape))
        return eqn.invars[larger].aval.shape, () if any_axes else tuple(axes_of(eqn, larger)[1])
    return None


def _ancestors(program: Program) -> list[int]:
    """For every equation the ones that it waits for, as bits."""
    if "ancestors" not in program.known:
        found: list[int] = []
        for operands in program.operands:
            bits = 0
            for var in operands:
                position = program.producers.get(var)
                if position is not None:
                    bits |= 1 << position | found[position]
            found.append(bits)
        program.known["ancestors"] = found
    return program.known["ancestors"]
