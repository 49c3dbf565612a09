"""The state of a user's loop: what XLA:GPU and TPUs' compiler write in place from turn to turn, and what they copy.

lax.fori_loop(0, n, lambda i, x: jnp.where(x * x < a, x + d, x), start)     x takes the place of x, and of `start`
lax.fori_loop(0, n, lambda i, x: x + jnp.roll(x, 1), start)                 the old x is read elsewhere: a copy
"""

from __future__ import annotations

from typing import Any

from exla import _compat
from exla._compat import Literal
from exla.ir.primitives import ELEMENTWISE, named
from exla.ir.program import Program, value_bytes
from exla.ir.storing import Storing

LOOPS = named("scan while")


def first_of_state(eqn: Any) -> int:
    """How many operands of a loop come before what its state begins with."""
    return len(_compat.constants_of_bodies(eqn))


def renewed(eqn: Any, body: Program) -> tuple[Any, ...]:
    """What a turn makes of its state, element by element, so that it takes the place of that."""
    if eqn.primitive.name not in LOOPS:
        return ()
    constants = eqn.params["body_nconsts"] if eqn.primitive.name == "while" else first_of_state(eqn)
    found = []
    for var, old in zip(body.outvars, body.invars[constants:], strict=False):
        position = None if isinstance(var, Literal) else body.producers.get(var)
        if position is None or var.aval != old.aval or body.eqns[position].primitive.name not in ELEMENTWISE:
            continue
        if all(body.eqns[i].primitive.name in ELEMENTWISE for i, _ in body.consumers.get(old, ())):
            found.append(var)
    return tuple(found)


def uncopied(eqn: Any, body: Program, storing: Storing) -> set[int]:
    """Positions of a loop's results of which no turn makes a copy: it renews them in place, or on a TPU's chip.

    Args:
      eqn: a loop.
      body: what each turn runs.
      storing: what the compiler stores.
    """
    found = renewed(eqn, body)
    state = len(eqn.outvars) - len(_compat.stacked_by_scan(eqn))
    fits = {k for k, v in enumerate(eqn.outvars[:state]) if 2 * value_bytes(v) <= storing.chip_bytes}
    return fits | {k for k, v in enumerate(body.outvars[:state]) if any(v is made for made in found)}
