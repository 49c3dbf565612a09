"""Emit: run a program by interpreting its equations under a trace.

`emit(program)` is an ordinary function of the program's inputs. Under `jax.jit` it becomes the program again,
every chunk loop one `while` in the compiled code. What only one branch of a conditional needs is computed in it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from exla import _compat
from exla.ir.asked import left_to_branches
from exla.ir.blocks import Written, blocks_in, write
from exla.ir.memory import programs_of
from exla.ir.program import Program, evaluate, interpret, value_bytes
from exla.ir.scopes import is_sunk
from exla.ir.states import LOOPS
from exla.ir.turns import after, turns_in

Expansion = Callable[..., list[Any]]
Waits = Literal["", "late", "all"]
"""For which of its operands what comes before a chunk loop waits: none, the one that is computed last, all."""
SMALL_BYTES = 1 << 16
"""What takes no more may lie beside a loop that computes it: it is the same on all turns."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Later:
    """A value that the branch computes which needs it.

    Attributes:
      eqn: what makes it.
      result: which of its results it is.
      operands: of that, some of them perhaps to be computed later as well.
      step: evaluates the equation.
    """

    eqn: Any
    result: int
    operands: Sequence[Any]
    step: Callable[[Any, list[Any]], list[Any]]


def computed(values: Sequence[Any]) -> list[Any]:
    """Some values, those that were left for later computed now."""
    known: dict[Any, list[Any]] = {}

    def compute(value: Any) -> Any:
        if not isinstance(value, Later):
            return value
        made = value.eqn.outvars[0]
        if made not in known:
            known[made] = value.step(value.eqn, [compute(v) for v in value.operands])
        return known[made][value.result]

    return [compute(v) for v in values]


def emit(
    program: Program, expand: dict[str, Expansion], *, in_blocks: bool = False, types: Sequence[Any] | None = None
) -> Callable[..., list[Any]]:
    """Make a function of a program.

    Args:
      program: the program.
      expand: primitive name -> how an equation of exla's own is run: (equation, operands, run_program, waits).
      in_blocks: whether it is for XLA:CPU: long reductions and products with vectors are written in blocks
        (`exla.ir.blocks`), and library calls that share the threads take turns (`exla.ir.turns`).
      types: abstract values that say which results are weakly typed; None = those of the program's results.

    Returns:
      A function of the program's inputs, constants first, that returns its outputs.
    """

    results_of = types or [v.aval for v in program.outvars]
    blocks: dict[Any, Written] = {}
    later: set[Any] = set()
    turns: dict[Any, Any] = {}
    awaited: set[Any] = set()
    there: dict[Any, Any] = {}
    around: list[bool] = []  # whether what is run is a loop of the user's, for all that is around

    def read(inner: Program) -> None:
        later.update(left_to_branches(inner))
        if in_blocks:
            blocks.update(blocks_in(inner))
            turns.update(turns_in(inner, later))
            awaited.update(turns.values())

    def run_program(inner: Program, values: Sequence[Any]) -> list[Any]:
        read(inner)
        return evaluate(inner.jaxpr, [*inner.consts, *values], step)

    def step(eqn: Any, operands: list[Any]) -> list[Any]:
        if later and eqn.outvars and eqn.outvars[0] in later:
            return [Later(eqn=eqn, result=k, operands=operands, step=at_once) for k in range(len(eqn.outvars))]
        first = eqn.outvars[0] if turns and eqn.outvars else None
        if first in turns:
            operands = after(eqn, operands, there.pop(turns[first]))
        results = at_once(eqn, operands)
        if first in awaited:
            there[first] = results[0]
        return results

    def at_once(eqn: Any, operands: list[Any]) -> list[Any]:
        expansion = expand.get(eqn.primitive.name)
        if expansion is not None:
            waits: Waits = "" if not in_blocks else "all" if any(around) else "late"
            return expansion(eqn, operands, run_program, waits)
        if blocks and eqn.outvars and (block := blocks.get(eqn.outvars[0])) is not None:
            return write(eqn, operands, block)
        hoists = not (in_blocks and _keeps(eqn))
        if any(_needs_expansion(body.jaxpr, expand, (blocks, turns)) for body in _compat.bodies(eqn)):
            around.append(eqn.primitive.name in LOOPS)
            try:
                return interpret(eqn, operands, step, hoists=hoists)
            finally:
                around.pop()
        return _compat.bind(eqn, *operands, hoists=hoists)

    def run(*values: Any) -> list[Any]:
        read(program)
        results = evaluate(program.jaxpr, values, step)
        return [_compat.as_weak_as(x, aval) for x, aval in zip(results, results_of, strict=True)]

    return run


def _needs_expansion(jaxpr: Any, expand: Collection[str], written: Sequence[Collection[Any]]) -> bool:
    """Whether a body holds an equation of exla's own or one that is written otherwise, at any depth."""
    return any(
        eqn.primitive.name in expand
        or any(v in known for v in eqn.outvars for known in written)
        or any(_needs_expansion(b.jaxpr, expand, written) for b in _compat.bodies(eqn))
        for eqn in jaxpr.eqns
    )


def _keeps(eqn: Any) -> bool:
    """Whether a loop is to compute on its turns what was moved into it, though that is the same on all of them.

    XLA:CPU would compute it before the loop, and keep it. What the user has in a loop it may move.
    """
    return eqn.primitive.name in LOOPS and any(
        is_sunk(inner) and max(map(value_bytes, inner.outvars), default=0) > SMALL_BYTES
        for body in programs_of(eqn)
        for inner in body.eqns
    )
