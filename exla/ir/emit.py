"""Emit: run a program by interpreting its equations under a trace.

`emit(program)` is an ordinary function of the program's inputs. Under `jax.jit` it becomes the program again,
every chunk loop one `while` in the compiled code.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from exla import _compat
from exla.ir.blocks import Block, blocks_in, write
from exla.ir.program import Program, evaluate, interpret

Expansion = Callable[..., list[Any]]


def emit(program: Program, expand: dict[str, Expansion], *, in_blocks: bool = False) -> Callable[..., list[Any]]:
    """Make a function of a program.

    Args:
      program: the program.
      expand: primitive name -> how an equation of exla's own is run: (equation, operands, run_program).
      in_blocks: whether long reductions are written in blocks (`exla.ir.blocks`).

    Returns:
      A function of the program's inputs, constants first, that returns its outputs.
    """

    blocks: dict[Any, Block] = {}

    def run_program(inner: Program, values: Sequence[Any]) -> list[Any]:
        blocks.update(blocks_in(inner) if in_blocks else {})
        return evaluate(inner.jaxpr, [*inner.consts, *values], step)

    def step(eqn: Any, operands: list[Any]) -> list[Any]:
        expansion = expand.get(eqn.primitive.name)
        if expansion is not None:
            return expansion(eqn, operands, run_program)
        if blocks and eqn.outvars and (block := blocks.get(eqn.outvars[0])) is not None:
            return write(eqn, operands[0], block)
        if any(_needs_expansion(body.jaxpr, expand, blocks) for body in _compat.bodies(eqn)):
            return interpret(eqn, operands, step)
        return _compat.bind(eqn, *operands)

    def run(*values: Any) -> list[Any]:
        blocks.update(blocks_in(program) if in_blocks else {})
        results = evaluate(program.jaxpr, values, step)
        return [_compat.as_weak_as(x, v.aval) for x, v in zip(results, program.outvars, strict=True)]

    return run


def _needs_expansion(jaxpr: Any, expand: Collection[str], blocks: Collection[Any]) -> bool:
    """Whether a body holds an equation of exla's own or one that is written in blocks, at any depth."""
    return any(
        eqn.primitive.name in expand
        or any(v in blocks for v in eqn.outvars)
        or any(_needs_expansion(b.jaxpr, expand, blocks) for b in _compat.bodies(eqn))
        for eqn in jaxpr.eqns
    )
