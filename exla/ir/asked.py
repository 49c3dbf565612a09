"""Fallbacks that are asked for while a program runs: the conditionals that `exla_unless` becomes.

    cheap = f(x); result = exla_unless[otherwise](safe, cheap, x)

In a chunk loop a scalar `safe` is asked before the loop, of which there are two, and nothing is left of the equation.
Elsewhere it is a conditional, and its result is stored. What only makes `cheap` is computed in the branch that returns
it where `safe` is a scalar, for compilers copy what a branch is given and returns. Where it is none, both branches read
`cheap`, which is stored as well. XLA:CPU and XLA:GPU let no result of a conditional take the place of what it is
computed from, nor what is computed from it take its place, but for what becomes a result of the program there.
"""

from __future__ import annotations

from typing import Any

from exla import _compat
from exla._compat import Literal
from exla.ir.primitives import ELEMENTWISE
from exla.ir.program import Program, program_of


def is_asked(program: Program, eqn: Any) -> bool:
    """Whether an equation is an `exla_unless` that becomes a conditional where it stands."""
    if eqn.primitive.name != "exla_unless" or isinstance(eqn.invars[0], Literal):
        return False
    return eqn.invars[0] in program.producers or bool(eqn.invars[0].aval.shape)


def is_asked_once(program: Program, eqn: Any) -> bool:
    """Whether that conditional asks about all results together, so that one branch alone has to do with `cheap`."""
    return is_asked(program, eqn) and not eqn.invars[0].aval.shape


def is_returned(program: Program, var: Any) -> bool:
    """Whether a value is what a conditional that asks once returns, or what its cheap branch makes for it.

    And no result of the program is made of it element by element, whose memory all of them share.
    """
    position = program.producers.get(var)
    readers = (program.eqns[at] for at, k in program.consumers.get(var, ()) if _is_for_branch(program, at, k))
    asks = [*readers, *([] if position is None else [program.eqns[position]])]
    return any(is_asked_once(program, eqn) for eqn in asks) and not _becomes_output(program, var)


def _becomes_output(program: Program, var: Any) -> bool:
    seen, stack = set[Any](), [var]
    while stack:
        v = stack.pop()
        if v in program.outvars:
            return True
        for at, _ in program.consumers.get(v, ()):
            eqn = program.eqns[at]
            made = [w for w in eqn.outvars if w.aval.shape == var.aval.shape and w not in seen]
            if eqn.primitive.name in ELEMENTWISE or is_asked_once(program, eqn):
                seen.update(made)
                stack += made
    return False


def left_to_branches(program: Program) -> set[Any]:
    """Values that only make cheap results which are asked about once, in bodies of control flow too."""
    asking: dict[int, int] = {}  # position -> that of the equation which asks
    for position in range(len(program.eqns) - 1, -1, -1):
        eqn = program.eqns[position]
        if is_asked_once(program, eqn):
            asking[position] = position
            continue
        reads = [read for v in eqn.outvars for read in program.consumers.get(v, ())]
        home, *others = {asking.get(at) if _is_for_branch(program, at, k) else None for at, k in reads} or {None}
        is_read_outside = others or eqn.effects or any(v in program.outvars for v in eqn.outvars)
        if home is not None and not is_read_outside:
            asking[position] = home
    found = {v for at, home in asking.items() if at != home for v in program.eqns[at].outvars}
    for eqn in program.eqns:
        for body in () if eqn.primitive.name == "exla_unless" else _compat.bodies(eqn):
            found |= left_to_branches(program_of(body.jaxpr))
    return found


def _is_for_branch(program: Program, position: int, k: int) -> bool:
    """Whether an operand of an equation is read by one branch alone, where the equation asks; yes where it does not."""
    eqn = program.eqns[position]
    return not is_asked_once(program, eqn) or 1 <= k <= len(eqn.outvars)
