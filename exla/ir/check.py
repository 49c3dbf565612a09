"""What a valid program is.

`check(program)` holds before and after every pass:

* every value is defined once, before it is used, and every output is defined;
* there are no constvars: constants are inputs, and there is one value for each;
* every primitive's own shape rule agrees with the types of its results;
* inside equations that run programs of their own (chunk loops), those programs are valid too.
"""

from __future__ import annotations

from typing import Any

from exla import _compat
from exla._compat import Literal
from exla.errors import ProgramError
from exla.ir.factors import Passed, Placement
from exla.ir.program import Program, body_program


def check(program: Program) -> Program:
    """Check a program.

    Args:
      program: any program.

    Returns:
      The same program.

    Raises:
      ProgramError: naming the equation, its source line and what is wrong.
    """
    if "checked" in program.known:  # a loop's body, which programs that are split further share
        return program
    if program.jaxpr.constvars:
        raise ProgramError(f"a program has no constvars, this one has {len(program.jaxpr.constvars)}")
    if len(program.consts) > len(program.invars):
        raise ProgramError(f"{len(program.consts)} constants for {len(program.invars)} inputs")
    for var, value in zip(program.invars, program.consts, strict=False):
        if tuple(getattr(value, "shape", ())) != tuple(var.aval.shape):
            raise ProgramError(f"a constant of shape {value.shape} is bound to an input {var.aval.str_short()}")
    defined: set[Any] = set(program.invars)
    for position, eqn in enumerate(program.eqns):
        for v in eqn.invars:
            if not isinstance(v, Literal) and v not in defined:
                raise _wrong(program, position, "reads a value that is not defined yet")
        for v in eqn.outvars:
            if v in defined:
                raise _wrong(program, position, "defines a value a second time")
            if not _compat.is_drop(v):
                defined.add(v)
        for inner in _inner(program, position):
            check(inner)
    for v in program.outvars:
        if not isinstance(v, Literal) and v not in defined:
            raise ProgramError("an output is never defined")
    program.known["checked"] = True
    return program


def _wrong(program: Program, position: int, what: str) -> ProgramError:
    name, source = program.eqns[position].primitive.name, program.source(position) or "unknown line"
    return ProgramError(f"equation {position} (`{name}`, {source}) {what}")


def _inner(program: Program, position: int) -> list[Program]:
    """Programs inside a chunk loop, after checking that they fit the loop."""
    eqn = program.eqns[position]
    loop = eqn.params.get("loop") if eqn.primitive.name == "exla_split" else None
    if loop is None:
        return [inner for inner in map(body_program, _compat.bodies(eqn)) if inner is not None]
    if not 1 <= loop.chunk < loop.size or (loop.tail is None) != (loop.remainder == 0):
        what = f"cuts {loop.size} indices into chunks of {loop.chunk} with the wrong remainder"
        raise _wrong(program, position, what)
    bodies = [(loop.body, loop.chunk)] + ([(loop.tail, loop.remainder)] if loop.tail is not None else [])
    for body, size in bodies:
        states = [aval for c in loop.carries for aval in c.states]
        taken = len(body.invars) - len(body.consts) - 1 - len(states)
        passed = sum(p is not Passed.START for p in loop.operands)
        if taken != passed or len(loop.operands) != len(eqn.invars):
            raise _wrong(program, position, f"passes {len(eqn.invars)} operands to a body of {taken} inputs")
        for inside, k, placement in loop.inputs(body):
            shape = list(eqn.invars[k].aval.shape)
            if placement is Passed.TRIP:
                shape = shape[1:]
            elif isinstance(placement, Placement):
                shape[placement.axis] = placement.length(size)
            if tuple(shape) != tuple(inside.aval.shape):
                what = f"slices {eqn.invars[k].aval.str_short()} into {inside.aval.str_short()}"
                raise _wrong(program, position, what)
        if len(body.outvars) != sum(o.parts for o in loop.outputs):
            what = f"has a body of {len(body.outvars)} results that do not fit its outputs"
            raise _wrong(program, position, what)
    return [body for body, _ in bodies]
