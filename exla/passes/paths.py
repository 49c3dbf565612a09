"""Paths: changing a program that is the body of a loop or of control flow, and rebuilding what is around it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jax

from exla import _compat
from exla.errors import ReplayMiss
from exla.ir.check import check
from exla.ir.memory import Path
from exla.ir.program import Program, as_it_is, as_struct, body_program, evaluate
from exla.passes.decisions import Change
from exla.passes.split.loop import Loop


def at_path(program: Program, path: Path, change: Callable[[Program, bool], Program], is_tail: bool = False) -> Program:
    """Change the program that a path leads to; a tail that cannot be changed stays as it is.

    Args:
      program: the outermost program.
      path: (position, which body) of each loop or control-flow equation on the way.
      change: (program, whether it is the tail of a loop) -> the changed program.
      is_tail: whether the way has led through a tail.

    Returns:
      The outermost program with what is around the change rebuilt.

    Raises:
      ReplayMiss: if there is no such path.
    """
    if not path:
        return check(change(program, is_tail))
    (position, which), *below = path
    rest = tuple(below)
    if not 0 <= position < len(program.eqns):
        raise ReplayMiss(f"there is no equation {position}")
    eqn = program.eqns[position]
    if eqn.primitive.name == "exla_split":
        loop: Loop = eqn.params["loop"]
        tail = loop.tail
        if tail is not None:
            with contextlib.suppress(ReplayMiss):
                tail = at_path(tail, rest, change, is_tail=True)
        params = {**eqn.params, "loop": replace(loop, body=at_path(loop.body, rest, change, is_tail), tail=tail)}
    else:
        bodies = _compat.bodies(eqn)
        inner = body_program(bodies[which]) if 0 <= which < len(bodies) else None
        if inner is None:
            raise ReplayMiss(f"equation {position} has no body {which} that can be split")
        with _compat.axes_inside(eqn):
            bodies[which] = _closed(at_path(inner, rest, change, is_tail))
        if bodies[which].consts and eqn.primitive.name == "shard_map":
            raise ReplayMiss(f"the body of equation {position} can hold no constants")
        params = _compat.with_bodies(eqn, bodies)
    eqns = list(program.eqns)
    eqns[position] = eqn.replace(params=params)
    return Program(jaxpr=program.jaxpr.replace(eqns=eqns), consts=program.consts)


def at_site(program: Program, decision: Change, change: Callable[[Program, int], Program]) -> Program:
    """Change the equation that a decision names, where it is still the one that the decision was made about.

    Args:
      program: the outermost program.
      decision: with a path and a site.
      change: (the program that holds the equation, its position) -> the changed program.

    Raises:
      ReplayMiss: if there is no such equation, or another one.
    """

    def checked(inner: Program, _: bool) -> Program:
        position = decision.site.position
        if not 0 <= position < len(inner.eqns) or inner.site(position) != decision.site:
            raise ReplayMiss(f"{decision}: equation {position} is another one than when the decision was made")
        return change(inner, position)

    return at_path(program, decision.path, checked)


def program_at(program: Program, path: Path) -> Program:
    """The program that a path leads to.

    Raises:
      ReplayMiss: if there is no such path.
    """
    for position, which in path:
        if not 0 <= position < len(program.eqns):
            raise ReplayMiss(f"there is no equation {position}")
        eqn = program.eqns[position]
        bodies = _compat.bodies(eqn)
        if eqn.primitive.name == "exla_split":
            program = eqn.params["loop"].body
        elif 0 <= which < len(bodies) and (inner := body_program(bodies[which])) is not None:
            program = inner
        else:
            raise ReplayMiss(f"equation {position} has no body {which} that can be split")
    return program


def bodies_to_rewrite(program: Program, path: Path) -> Iterator[tuple[Program, Path]]:
    """The bodies of a program's control flow with their paths; what an `exla_unless` falls back on stays as it is."""
    for position, eqn in enumerate(program.eqns):
        for k, closed in enumerate(() if eqn.primitive.name == "exla_unless" else _compat.bodies(eqn)):
            body = body_program(closed)
            if body is not None:
                yield body, (*path, (position, k))


def _closed(program: Program) -> Any:
    """A body as a closed jaxpr; the constants that splitting it made are closed over."""
    if not program.consts:
        return _compat.closed(program.jaxpr, ())
    avals = [as_struct(v.aval) for v in program.invars[len(program.consts) :]]
    run = functools.partial(evaluate, program.jaxpr, step=as_it_is)
    return jax.make_jaxpr(lambda *values: run([*program.consts, *values]))(*avals)
