"""What one equation of control flow hands on to another, and programs in which the two are put together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from exla._compat import Literal
from exla.ir.program import Program, as_it_is, trace_function, variables


def join_all(
    program: Program,
    firsts: Callable[[Program, int], list[int]],
    joined: Callable[[Program, int, int], tuple[Callable[[Any], list[Any]], Sequence[int]]],
) -> Program:
    """The program with every two equations joined that can be.

    Args:
      program: the program.
      firsts: the positions of those that hand something on to an equation in the same way, in program order.
      joined: what runs two of them as one, and which results of the first it leaves before those of the second.
    """
    while True:
        pairs = ((i, j) for j in range(len(program.eqns)) for i in reversed(firsts(program, j)))
        pair = next((p for p in pairs if not comes_between(program, *p)), None)
        if pair is None:
            return program
        first, second = pair
        run, kept = joined(program, first, second)
        later = after(program, first, second)  # after all that the second needs, before all that needs the first
        sooner = [k for k in range(second) if k != first and k not in later]
        results = [*(program.eqns[first].outvars[k] for k in kept), *program.eqns[second].outvars]
        program = run_steps(program, [*sooner, (run, results), *later, *range(second + 1, len(program.eqns))])


def after(program: Program, first: int, last: int) -> list[int]:
    """The equations between two that need what the first of them computes."""
    made, found = set(program.eqns[first].outvars), list[int]()
    for k in range(first + 1, last):
        if not made.isdisjoint(variables(program.eqns[k].invars)):
            made.update(program.eqns[k].outvars)
            found.append(k)
    return found


def comes_between(program: Program, first: int, second: int) -> bool:
    """Whether what the second needs is made of what the first makes, by equations between them."""
    between = {v for k in after(program, first, second) for v in program.eqns[k].outvars}
    return not between.isdisjoint(variables(program.eqns[second].invars))


def wanted(program: Program, first: int, second: int) -> list[int]:
    """Which results of the first are read by others than the second."""
    outside = [v for k, eqn in enumerate(program.eqns) if k != second for v in variables(eqn.invars)]
    read = {*outside, *variables(program.outvars)}
    return [k for k, v in enumerate(program.eqns[first].outvars) if v in read]


def handed_on(one: Any, other: Any) -> tuple[dict[Any, int], list[int]]:
    """(value that is handed on -> which result of the first it is, positions of the second's other operands)."""
    read = set(variables(other.invars))
    handed = {v: k for k, v in enumerate(one.outvars) if v in read}
    return handed, [k for k, v in enumerate(other.invars) if isinstance(v, Literal) or v not in handed]


def operands_of_second(other: Any, handed: dict[Any, int], made: Any, rest: Sequence[Any]) -> list[Any]:
    """The second's operands, from what the first has made and the other ones."""
    left = iter(rest)
    return [next(left) if isinstance(v, Literal) or v not in handed else made[handed[v]] for v in other.invars]


def run_steps(program: Program, steps: Sequence[Any]) -> Program:
    """The program whose equations are some of another's, by position, and others, each with the values it makes."""

    def run(*values: Any) -> list[Any]:
        known = dict(zip(program.invars, values, strict=True))

        def of(atoms: Sequence[Any]) -> list[Any]:
            return [v.val if isinstance(v, Literal) else known[v] for v in atoms]

        for step in steps:
            if isinstance(step, int):
                eqn = program.eqns[step]
                known.update(zip(eqn.outvars, as_it_is(eqn, of(eqn.invars)), strict=True))
            else:
                evaluate_step, results = step
                known.update(zip(results, evaluate_step(of), strict=True))
        return of(program.outvars)

    return trace_function(run, [v.aval for v in program.invars], program.consts)
