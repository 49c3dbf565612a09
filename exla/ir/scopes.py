"""Numbered scopes: which equation of a program an operation comes from, wherever passes and the compiler take it.

    numbered(program)                                   every equation in a named scope "exla.<number>"
    number_of("jit(run)/while/body/exla.12/add")        12

JAX keeps an equation's scopes when it is traced again, in the body of a chunk loop too, and hands them to XLA, which
keeps them as the `op_name` of every instruction. So both a candidate's equations and the HLO of the program before it
was split say which equation of that program they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from exla import _compat
from exla.ir.program import Program

FALLS_BACK = "exla_falls_back"
"""The scope of what is run only where the cheap way is not safe (`exla.passes.unless`)."""

ALONE = "exla_alone"
"""The scope of a part of a value that is computed by itself (`exla.passes.split.part`)."""

SUNK = "exla_sunk"
"""The scope of what a loop computes on its turns that was computed before it (`exla.passes.sink`)."""

_SCOPE = re.compile(r"exla\.(\d+)(?![\w.])")


def numbered(program: Program) -> Program:
    """The same program, each equation in a scope that has its number; those of control-flow bodies are counted too.

    A program that has been numbered before is numbered anew: the innermost scope counts.
    """
    counter = iter(range(1 << 62))
    return Program(jaxpr=_numbered(program.jaxpr, lambda: next(counter)), consts=program.consts)


def _numbered(jaxpr: Any, number: Callable[[], int]) -> Any:
    eqns = []
    for eqn in jaxpr.eqns:
        mine = number()
        params = eqn.params
        bodies = _compat.bodies(eqn)
        if bodies:
            params = _compat.with_bodies(eqn, [b.replace(jaxpr=_numbered(b.jaxpr, number)) for b in bodies])
        eqns.append(_compat.in_scope(eqn, f"exla.{mine}").replace(params=params))
    return jaxpr.replace(eqns=eqns)


def number_of(scopes: str) -> int | None:
    """The number in a name of nested scopes, the innermost; None where there is none."""
    found = _SCOPE.findall(scopes)
    return int(found[-1]) if found else None


def is_alone(eqn: Any) -> bool:
    """Whether an equation computes a part of a value by itself."""
    return ALONE in _compat.scopes(eqn)


def is_sunk(eqn: Any) -> bool:
    """Whether an equation was moved into the loop that it is in."""
    return SUNK in _compat.scopes(eqn)


def equation_number(eqn: Any) -> int | None:
    """The number of the equation that this one is, or comes from."""
    return number_of(_compat.scopes(eqn))
