"""Emit: run a program by interpreting its equations under a trace.

`emit(program)` is an ordinary function of the program's inputs. Under `jax.jit` it becomes the program again,
every chunk loop one `while` in the compiled code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from exla import _compat
from exla.ir.program import Program, evaluate

Expansion = Callable[..., list[Any]]


def emit(program: Program, expand: dict[str, Expansion]) -> Callable[..., list[Any]]:
    """Make a function of a program.

    Args:
      program: the program.
      expand: primitive name -> how an equation of exla's own is run: (equation, operands, run_program).

    Returns:
      A function of the program's inputs, constants first, that returns its outputs.
    """

    def run_program(inner: Program, values: Sequence[Any]) -> list[Any]:
        return evaluate(inner.jaxpr, [*inner.consts, *values], step)

    def step(eqn: Any, operands: list[Any]) -> list[Any]:
        expansion = expand.get(eqn.primitive.name)
        if expansion is not None:
            return expansion(eqn, operands, run_program)
        return _compat.bind(eqn, *operands)

    return lambda *values: evaluate(program.jaxpr, values, step)
