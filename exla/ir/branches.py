"""Conditionals that hand values on are joined, so that what their branches compute is planned together.

    residuals = cond(p, forward, other)(x)                gradient = cond(p, both, others)(x)
    gradient = cond(p, backward, others)(residuals)  ->

Differentiating a `lax.cond` makes two of it, on the same number, and all that the second needs of the first, such
as a matrix of kernels, becomes a result of one and an argument of the other, whole. Two are joined where nothing has to
come between them (`join_branches`). Where something has to, as the derivative of a function of the first one's results,
the second may compute again what it reads (`branch_again`). What a branch computes for itself can be cut like any other
value of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from exla import _compat
from exla._compat import Literal
from exla.ir.handed import handed_on, join_all, operands_of_second, run_steps, wanted
from exla.ir.primitives import named
from exla.ir.program import Program, as_it_is, as_struct, evaluate, live

CONVERTING = named("convert_element_type clamp")
"""What `lax.cond` and `lax.switch` make of the number that is asked about."""


def join_branches(program: Program) -> Program:
    """The program with every two conditionals joined that can be."""
    return join_all(program, branches_before, _joined)


def branches_before(program: Program, second: int) -> list[int]:
    """The conditionals on the same number, before one, of which it reads results."""
    other = program.eqns[second]
    if not _is_known(other):
        return []
    makers = {program.producers[v] for v in program.operands[second] if v in program.producers}
    firsts = (k for k in makers if _is_known(program.eqns[k]))
    return sorted(k for k in firsts if _is_one(program, program.eqns[k].invars[0], other.invars[0]))


def _is_one(program: Program, one: Any, other: Any) -> bool:
    """Whether two numbers are one, be it converted twice."""
    if isinstance(one, Literal) or isinstance(other, Literal):
        return isinstance(one, Literal) and isinstance(other, Literal) and bool(one.val == other.val)
    if one is other:
        return True
    makers = [program.eqns[program.producers[v]] for v in (one, other) if v in program.producers]
    if len(makers) < 2 or any(eqn.primitive.name not in CONVERTING for eqn in makers):
        return False
    first, second = makers
    is_same = first.primitive is second.primitive and first.params == second.params
    return is_same and all(_is_one(program, *pair) for pair in zip(first.invars, second.invars, strict=True))


def _is_known(eqn: Any) -> bool:
    if eqn.primitive.name != "cond" or eqn.effects or isinstance(eqn.invars[0], Literal):
        return False
    return not any(body.consts for body in _compat.bodies(eqn))


def branch_again(program: Program, first: int, second: int) -> Program:
    """A conditional that computes for itself what another one hands on to it.

    Args:
      program: the program.
      first: the position of the other one, among `branches_before(program, second)`.
      second: its own position.
    """
    steps = list[Any](range(len(program.eqns)))
    steps[second] = (_both(program, first, second, ()), list(program.eqns[second].outvars))
    made = run_steps(program, steps)
    return live(Program(jaxpr=_compat.without_dead_results(made.jaxpr), consts=made.consts))


def _joined(program: Program, first: int, second: int) -> tuple[Callable[[Any], list[Any]], list[int]]:
    """Two conditionals as one, and which results of the first it leaves."""
    kept = wanted(program, first, second)
    return _both(program, first, second, kept), kept


def _both(program: Program, first: int, second: int, kept: Sequence[int]) -> Callable[[Any], list[Any]]:
    """Runs two conditionals as one, for some results of the first and those of the second."""
    one, other = program.eqns[first], program.eqns[second]
    handed, own = handed_on(one, other)
    index, *given = one.invars
    operands = [*given, *(other.invars[k] for k in own if k > 0)]

    def both(branch: Any, following: Any) -> Any:
        def run(*values: Any) -> list[Any]:
            made = evaluate(branch.jaxpr, values[: len(given)], as_it_is)
            needed = operands_of_second(other, handed, made, [None, *values[len(given) :]])
            return [*(made[k] for k in kept), *evaluate(following.jaxpr, needed[1:], as_it_is)]

        return jax.make_jaxpr(run)(*(as_struct(v.aval) for v in operands))

    branches = [both(*pair) for pair in zip(_compat.bodies(one), _compat.bodies(other), strict=True)]
    return lambda of: _compat.bind(other, *of([index, *operands]), **_compat.with_bodies(other, branches))
