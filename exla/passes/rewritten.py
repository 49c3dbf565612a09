"""One equation's results computed in another way: what every rewrite comes down to.

    rewritten(program, position, reads, lambda get: [jnp.exp(get(x))])

What is new is traced by itself and put in the equation's place; the equations around it stay what they are. That is
the program that tracing all of it anew would make, equation for equation, and takes a tenth of the time in a program of
hundreds of equations, but for this: where all results are there already, computed in the same way before, nothing is
put in. Where a result is of a weaker type than the old one, so that types change downstream, all of it is traced anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax

from exla import _compat
from exla._compat import Literal
from exla.ir.check import check
from exla.ir.numbering import is_same, numbered, operation, other_name, paired, renamed
from exla.ir.program import Program, as_struct, batched, canonical, live, trace_function, variables

Get = Callable[[Any], Any]
"""From a variable or literal of a program to its value."""


def rewritten(program: Program, position: int, reads: Iterable[Any], compute: Callable[[Get], list[Any]]) -> Program:
    """A program in which one equation's results are computed in another way.

    Args:
      program: the program.
      position: the equation.
      reads: what `compute` asks for; variables and literals.
      compute: takes a function from a variable of the program to its value, and returns the equation's results.

    Returns:
      The program, canonical, without what nothing needs any more.
    """
    made = _spliced(program, position, list(dict.fromkeys(variables(reads))), compute)
    return rewritten_at(program, {position: compute}) if made is None else check(made)


def rewritten_at(program: Program, computes: Mapping[int, Callable[[Get], list[Any]]]) -> Program:
    """A program in which the results of some equations are computed in another way.

    Args:
      program: the program.
      computes: position -> `compute` as of `rewritten`; they are called in this order.

    Returns:
      The program, canonical, without what nothing needs any more.
    """
    return check(_traced_anew(program, computes))


def applied(fn: Callable[..., Any], *read: Any, aval: Any = None) -> tuple[list[Any], Any]:
    """Equations that apply a function to variables, and what they make, of a type where one is named.

    What they make is one of those variables where the function gives back what it is given, and there are none then.
    """
    traced = trace_function(
        lambda *x: [fn(*x) if aval is None else _compat.as_weak_as(fn(*x), aval)], [v.aval for v in read]
    )
    names = dict(zip(traced.invars, read, strict=True))
    return [renamed(e, names) for e in traced.eqns], other_name(traced.outvars[0], names)


def _spliced(
    program: Program, position: int, reads: Sequence[Any], compute: Callable[[Get], list[Any]]
) -> Program | None:
    """The program with the new equations in the place of the old one; None where more than that one changes.

    What is read and computed later, from other things, is computed there then.
    """
    eqn = program.eqns[position]
    needed = _computed_later(program, position, reads)
    if needed is None:
        return None
    given, later = needed
    earlier: list[Any] = []

    def flat(*values: Any) -> list[Any]:
        env = dict(zip(given, values, strict=True))
        run, _ = _evaluator(program, env, {position: compute})
        run(position)
        earlier[:] = [program.eqns[i] for i in later if all(v in env for v in program.eqns[i].outvars)]
        return [env[v] for e in (eqn, *earlier) for v in e.outvars]

    new = canonical(jax.make_jaxpr(flat)(*(as_struct(v.aval) for v in given)))
    results = dict(zip((v for e in (eqn, *earlier) for v in e.outvars), new.outvars, strict=True))
    if new.jaxpr.effects or any(old.aval != result.aval for old, result in results.items()):
        return None
    names = dict(zip(new.invars[len(new.consts) :], given, strict=True))
    known = _computed_already(program, position, new, names)
    if all(isinstance(v, Literal) or v in known for v in new.outvars):
        new, names = Program(jaxpr=new.jaxpr.replace(eqns=[])), known
    inserted = [renamed(e, names) for e in new.eqns]
    results = {old: other_name(result, names) for old, result in results.items()}
    moved = {id(e) for e in earlier}
    after = (renamed(e, results) for e in program.eqns[position + 1 :] if id(e) not in moved)
    jaxpr = _compat.with_equations(
        program.jaxpr,
        invars=[*new.invars[: len(new.consts)], *program.invars],
        eqns=[*program.eqns[:position], *inserted, *after],
        outvars=[other_name(v, results) for v in program.outvars],
    )
    return live(batched(Program(jaxpr=jaxpr, consts=(*new.consts, *program.consts))))


def _computed_later(program: Program, position: int, reads: Sequence[Any]) -> tuple[list[Any], list[int]] | None:
    """What is there before an equation of what it will read, and of what that is made of; and the equations after it
    that make the others. None where one of those reads the equation's own results, or has effects.
    """
    given, later, stack = dict[Any, None](), set[int](), list(reads)
    while stack:
        v = stack.pop()
        i = program.producers.get(v, -1)
        if i < position:
            given[v] = None
        elif i == position or program.eqns[i].effects:
            return None
        elif i not in later:
            later.add(i)
            stack += variables(program.eqns[i].invars)
    return list(given), sorted(later)


def _computed_already(program: Program, position: int, new: Program, names: Mapping[Any, Any]) -> dict[Any, Any]:
    """From what new equations compute to what is computed in the same way in a program, before a position."""
    if "numbered" not in program.known:
        program.known["numbered"] = numbered(program)
    first, seen = program.known["numbered"]
    known = {v: other_name(read, first) for v, read in names.items()}
    for eqn in new.eqns:
        alike = () if eqn.effects else seen.get(operation(eqn, known), ())
        other = next((o for i in alike if i < position and is_same(o := program.eqns[i], eqn)), None)
        if other is not None:
            known.update(paired(eqn, other))
    return known


def _traced_anew(program: Program, computes: Mapping[int, Callable[[Get], list[Any]]]) -> Program:
    """The program, every equation of it evaluated again."""

    def flat(*values: Any) -> list[Any]:
        env = dict(zip(program.invars, values, strict=True))
        run, get = _evaluator(program, env, computes)
        for i, eqn in enumerate(program.eqns):
            if not all(v in env for v in eqn.outvars):
                run(i)
        return [get(v) for v in program.outvars]

    closed = jax.make_jaxpr(flat)(*(as_struct(v.aval) for v in program.invars))
    made = canonical(closed)
    return Program(jaxpr=made.jaxpr, consts=(*made.consts, *program.consts))


def _evaluator(
    program: Program, env: dict[Any, Any], computes: Mapping[int, Callable[[Get], list[Any]]]
) -> tuple[Callable[[int], None], Get]:
    """Functions that evaluate an equation, and that give a value: what is not in `env` yet is evaluated first."""

    def get(atom: Any) -> Any:
        if isinstance(atom, Literal):
            return atom.val
        if atom not in env:
            run(program.producers[atom])
        return env[atom]

    def run(i: int) -> None:
        eqn = program.eqns[i]
        if i in computes:
            with _compat.equation_context(eqn):
                results = computes[i](get)
        else:
            results = _compat.bind(eqn, *[get(v) for v in eqn.invars])
        env.update(zip(eqn.outvars, results, strict=True))

    return run, get
