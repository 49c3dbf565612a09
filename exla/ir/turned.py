"""Values that one fusion reads as they lie and turned, of which TPUs' compiler stores a copy in the other order.

    d + d.T       d, its copy with the axes exchanged, and the sum

XLA:GPU reads both from one; a product multiplies what is turned as it lies, on TPUs too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from exla.ir.primitives import FUSIBLE
from exla.ir.program import Program


def is_met_turned(program: Program, position: int, places: Mapping[Any, Collection[int]]) -> bool:
    """Whether a fusion that reads what a `transpose` makes reads its operand as well.

    Args:
      program: the program.
      position: of the `transpose`.
      places: where values are read, as of `exla.ir.fusing`, by the equations that come later.
    """
    eqn, count = program.eqns[position], len(program.eqns)
    if eqn.params["permutation"][-1] == len(eqn.params["permutation"]) - 1:
        return False
    homes = {place // count for place in places.get(eqn.outvars[0], ())}
    homes = {home for home in homes if program.eqns[home].primitive.name != "dot_general"}
    for i, _ in program.consumers.get(eqn.invars[0], ()):
        made = program.eqns[i].outvars if i != position and program.eqns[i].primitive.name in FUSIBLE else ()
        if i in homes or any(place // count in homes for var in made for place in places.get(var, ())):
            return True
    return False
