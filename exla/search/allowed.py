"""By how much the values of a candidate may differ from the plain program's."""

from __future__ import annotations

import numpy as np

from exla import _compat
from exla.ir.program import Program, equations
from exla.search.values import KINDS, Allowed

TOLERANCES = {2: 3e-2, 4: 1e-3, 8: 1e-8}
"""By bytes of the least precise floating point results: what their values may differ by, as a part of the largest."""
MOST_DIFFERENT = 1e-3
"""Share of integers that may differ where they come from floating point numbers: ties that rounding decides."""
EXACT = 1e-2
"""Share of the tolerance that is left where nothing is summed in another order: code that is vectorised otherwise."""


def allowed_for(program: Program, *, exact: bool = False) -> Allowed:
    """What values may differ by: by the least precise floating point type among results.

    Where nothing is a floating point number, nothing may differ. Only positive numbers are tried where a loop goes on
    until something is reached, which it may never be from others.

    Args:
      program: the plain program.
      exact: whether sums may not be in another order.
    """
    dtypes = [v.aval.dtype for v in program.outvars if _compat.is_differentiable(v.aval.dtype)]
    parts = [_compat.item_bytes(d) // (1 + np.issubdtype(d, np.complexfloating)) for d in dtypes]
    tolerance = TOLERANCES.get(min(parts, default=4), max(TOLERANCES.values()))
    eqns = list(equations(program.jaxpr))
    values = [*program.invars, *(v for eqn in eqns for v in eqn.outvars)]
    has_floats = any(_compat.is_differentiable(v.aval.dtype) for v in values)
    return Allowed(
        tolerance=tolerance * EXACT if exact else tolerance,
        most_different=MOST_DIFFERENT if has_floats and not exact else 0.0,
        kinds=("positive",) if any(eqn.primitive.name == "while" for eqn in eqns) else KINDS,
    )
