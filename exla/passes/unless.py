"""`exla_unless`: a cheap way to the results where it is safe, the original equations where it is not.

    exla_unless[otherwise](safe, *cheap, *leaves) = cheap                     where all of `safe` holds
                                                    otherwise(safe, *cheap, *leaves) where not

`otherwise` returns the cheap results where `safe` holds and evaluates the original equations elsewhere, so that it is
right for any mask; the equation merely avoids it. Cut into chunks, each chunk asks only about its own part of the mask.
Where the answer is no, the same is asked of pieces of a few rows: what is not safe is mostly one row of many, and the
original equations may need a hundred times the memory of the cheap way.

Where `safe` is a scalar that a chunk loop does not change, the question is asked once, before the loop, and the loop
exists twice (loop unswitching): inside, the cheap results fuse with what reads them as if there were no question, and
so do the original equations, beside which nothing is left of the cheap way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from exla import _compat
from exla._compat import Literal
from exla.ir.emit import Later, Waits, computed
from exla.ir.memory import piece_of
from exla.ir.program import Program, variables
from exla.ir.scopes import FALLS_BACK
from exla.passes.decisions import Growth
from exla.passes.seal import expand_sealed
from exla.passes.split.apply import split_program
from exla.passes.split.grow import grow
from exla.passes.split.loop import Loop
from exla.passes.split.loop import run as run_loop

Evaluate = Callable[[Program, Sequence[Any]], list[Any]]


def _abstract(*operands: Any, otherwise: Any) -> list[Any]:
    return [_compat.shaped_array(v.aval.shape, v.aval.dtype) for v in otherwise.jaxpr.outvars]


unless_p = _compat.new_primitive("exla_unless", _abstract)
"""It exists in programs only and is expanded by `expand_unless` when they are emitted."""

_known: ContextVar[tuple[tuple[Any, bool], ...]] = ContextVar("known predicates", default=())


@contextlib.contextmanager
def _assume(predicate: Any, value: bool) -> Iterator[None]:
    token = _known.set((*_known.get(), (predicate, value)))
    try:
        yield
    finally:
        _known.reset(token)


def _assumed(predicate: Any) -> bool | None:
    return next((value for known, value in _known.get() if known is predicate), None)


def expand_unless(eqn: Any, operands: Sequence[Any], evaluate: Evaluate, waits: Waits) -> list[Any]:
    """Run an `exla_unless` equation."""
    closed, results = eqn.params["otherwise"], len(eqn.outvars)
    safe, cheap, leaves = operands[0], operands[1 : 1 + results], operands[1 + results :]
    known = _assumed(safe)

    def otherwise() -> list[Any]:
        pieces = in_pieces(eqn)
        if pieces is not None:
            given = dict(zip(eqn.invars, operands, strict=True))
            return evaluate(pieces, [given[v] for v in pieces.invars])
        mask = safe if known is None and safe.shape else jnp.zeros_like(safe)
        instead = [jnp.zeros(v.aval.shape, v.aval.dtype) if isinstance(c, Later) else c for v, c in made]
        return evaluate(Program(jaxpr=closed.jaxpr), [*closed.consts, mask, *instead, *leaves])

    made = list(zip(eqn.outvars, cheap, strict=True))
    if known is not None:
        return computed(cheap) if known else otherwise()
    return lax.cond(jnp.all(safe), lambda: computed(cheap), jax.named_scope(FALLS_BACK)(otherwise))


def in_pieces(eqn: Any) -> Program | None:
    """An `exla_unless` as a program that runs it in pieces; None where its mask is short or must stay whole."""
    piece = piece_of(eqn)
    if piece is None or isinstance(eqn.invars[0], Literal):
        return None
    (axis, length), invars, results = piece, variables(eqn.invars), list(eqn.outvars)
    whole = Program(
        jaxpr=eqn.params["otherwise"].jaxpr.replace(invars=invars, constvars=[], outvars=results, eqns=[eqn])
    )
    region = grow(whole, eqn.invars[0], axis, Growth(small_bytes=1))
    return None if region is None else split_program(region, length)


def expand_split(eqn: Any, operands: Sequence[Any], evaluate: Evaluate, waits: Waits) -> list[Any]:
    """Run a chunk loop; what it would ask again and again with the same answer is asked before it."""
    loop: Loop = eqn.params["loop"]
    for k in sorted(predicates(loop)):
        if _assumed(operands[k]) is None:

            def run(value: bool, predicate: Any = operands[k]) -> list[Any]:
                with _assume(predicate, value):
                    return expand_split(eqn, operands, evaluate, waits)

            return lax.cond(operands[k], lambda: run(True), lambda: jax.named_scope(FALLS_BACK)(run)(False))
    return run_loop(loop, operands, evaluate, waits=waits)


def predicates(loop: Loop) -> set[int]:
    """Operands of a loop that are scalars on which alone an `exla_unless` inside depends."""
    whole = {v: k for v, k, placement in loop.inputs(loop.body) if placement is None and not v.aval.shape}
    return {whole[v] for v in _asked(loop.body) if v in whole}


def _asked(body: Program) -> set[Any]:
    found = set()
    for eqn in body.eqns:
        if eqn.primitive.name == "exla_unless":
            found.add(eqn.invars[0])
        elif eqn.primitive.name == "exla_split":
            found |= {eqn.invars[k] for k in predicates(eqn.params["loop"])}
    return {v for v in found if not isinstance(v, Literal)}


EXPANSIONS = {"exla_split": expand_split, "exla_unless": expand_unless, "exla_sealed": expand_sealed}
"""How the equations that only exla's programs have are run."""
