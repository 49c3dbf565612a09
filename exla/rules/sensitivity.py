"""What becomes of a small absolute error of a value: damped by what reads it, or magnified.

`damping` follows a value forward. An exponential turns an absolute error into the same relative one: harmless. A square
root, a logarithm, a division, a comparison or a minimum of values near zero turns it into a large one, and a value
that is returned may be put to any such use. Factors on the way scale the error; they are collected, so that a check at
run time can multiply them.

    exp(-d / (2 * l**2))  ->  [("div", 2 * l**2)]
"""

from __future__ import annotations

from typing import Any

from exla._compat import Literal
from exla.ir.primitives import EXTREMES, named
from exla.ir.program import Program

HARMLESS = frozenset({"exp", "exp2", "logistic"})
PASSES = named("""
    neg copy broadcast_in_dim transpose reshape squeeze expand_dims slice concatenate max min clamp select_n rev
    optimization_barrier dynamic_slice
""")
POWERS = frozenset({"integer_pow", "pow", "sqrt", "rsqrt", "div"})
LEAST_SHIFT = 1e-3
MOST_STEPS = 64

Factor = tuple[str, Any]
"""("mul" or "div", what by): how an error is scaled on one path to where it is damped."""


def damping(program: Program, position: int) -> list[list[Factor]] | str:
    """Follow the results of an equation to where their absolute error is damped.

    Args:
      program: the program.
      position: the equation.

    Returns:
      For each path, the factors by which the error is scaled before it is damped; or why it is not damped.
    """
    outputs = {v for v in program.outvars if not isinstance(v, Literal)}
    stack: list[tuple[Any, tuple[Factor, ...], Any]] = [(v, (), None) for v in program.eqns[position].outvars]
    paths: list[list[Factor]] = []
    for _ in range(MOST_STEPS):
        if not stack:
            return paths
        var, factors, shift = stack.pop()
        if var in outputs:
            return "its error is not damped before it is returned"
        for i, k in program.consumers.get(var, ()):
            eqn = program.eqns[i]
            name = eqn.primitive.name
            others = [v for j, v in enumerate(eqn.invars) if j != k]
            after = shift
            if name in HARMLESS or (name in POWERS and shift is not None and (name != "div" or k == 1)):
                paths.append([*factors, *([] if shift is None else [("div", shift)])])
                continue
            if name in ("mul", "div") and not any(_depends(program, v, position) for v in others):
                if name == "div" and k == 1:
                    return "something is divided by it"
                factors, after = (*factors, (name, others[0])), None
            elif name in ("add", "sub") and not any(_depends(program, v, position) for v in others):
                after = others[0] if name == "add" and _is_shift(others[0]) else None
            elif name in EXTREMES and _is_subtracted(program, var, eqn.outvars[0]):
                continue  # a log-sum-exp subtracts its maximum and adds it again
            elif name == "convert_element_type" and eqn.outvars[0].aval.dtype.kind != "f":
                return "it is converted to another kind of number"
            elif name == "sub" and k == 0 and is_extreme_of(program, others[0], var):
                after = None
            elif name not in PASSES and name not in ("convert_element_type", "exla_unless"):
                return f"`{name}` reads it, which may magnify a small absolute error"
            elif name == "select_n" and k == 0:
                return "it decides what is selected"
            stack += [(out, factors, after) for out in eqn.outvars]
    return "too much reads it"


def _is_shift(atom: Any) -> bool:
    """Whether adding a value keeps a sum away from zero."""
    return isinstance(atom, Literal) and float(atom.val) >= LEAST_SHIFT


def _depends(program: Program, atom: Any, position: int) -> bool:
    """Whether a value is computed from the results of an equation."""
    stack = [atom]
    seen = set()
    while stack:
        v = stack.pop()
        i = None if isinstance(v, Literal) else program.producers.get(v)
        if i == position:
            return True
        if i is None or i < position or i in seen:
            continue
        seen.add(i)
        stack += program.eqns[i].invars
    return False


def _is_subtracted(program: Program, var: Any, extreme: Any) -> bool:
    """Whether the extreme of a value is subtracted from that value again, looking through shape changes."""
    subtractions = (program.eqns[i] for i, k in program.consumers.get(var, ()) if k == 0)
    return any(
        eqn.primitive.name == "sub" and is_extreme_of(program, eqn.invars[1], var, extreme) for eqn in subtractions
    )


def is_extreme_of(program: Program, atom: Any, var: Any, extreme: Any = None) -> bool:
    """Whether a value is the largest or smallest of another, or what a log-sum-exp puts in its place."""
    stack = [atom]
    for _ in range(MOST_STEPS):
        if not stack:
            return False
        v = stack.pop()
        i = None if isinstance(v, Literal) else program.producers.get(v)
        if i is None:
            continue
        eqn = program.eqns[i]
        if eqn.primitive.name in EXTREMES and eqn.invars[0] is var:
            return extreme is None or v is extreme
        if eqn.primitive.name in PASSES:
            stack += eqn.invars
    return False
