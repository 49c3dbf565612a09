"""The seal pass: what is compared for equality is computed in a computation of its own.

    rewrite: d = f(x, y); d == min(d)  ->  d = exla_sealed[f](x, y); d == min(d)

The bits of a sum depend on what XLA computes beside it (`exla.passes.steady`), so that a split which computes `d` in
one loop for its minimum, and in another to compare it with that, is not offered. A sealed value is computed in a branch
of a conditional: XLA fuses nothing across its border, so that the same equations at the same shapes become the same
code wherever they stand, and two loops over the same chunks have the same bits. Whether they did is seen in what XLA
made (`exla.targets.hlo_text`). In return every chunk of the value is stored. It is chosen where nothing else obeys the
limit, and where XLA itself would compute the value in two kernels.

What a sealed value is made of and is much smaller is computed before it, and may be cut with it; sums among that are
sealed as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from exla import _compat
from exla.errors import ReplayMiss
from exla.ir.emit import Waits
from exla.ir.memory import Path
from exla.ir.program import Program, as_it_is, as_struct, evaluate, read_by, value_bytes
from exla.ir.scopes import equation_number
from exla.passes.decisions import Seal
from exla.passes.opaque import always, one_of
from exla.passes.paths import at_site, bodies_to_rewrite
from exla.passes.rewritten import rewritten
from exla.passes.rounding import depends_on_place, is_inexact, is_narrow, is_sealed
from exla.passes.steady import COMPARISONS, Steady, compared

SMALLER = 16
"""Values of so many times less than what is sealed are computed before, once."""


def _abstract(*operands: Any, body: Any) -> list[Any]:
    return [_compat.shaped_array(v.aval.shape, v.aval.dtype) for v in body.jaxpr.outvars]


sealed_p = _compat.new_primitive("exla_sealed", _abstract)
"""It exists in programs only and is expanded by `expand_sealed` when they are emitted."""


def enumerate_seals(steady: Steady) -> Iterator[Seal]:
    """Offer to seal what is compared with what is made of it, and the sums that this is made of.

    Args:
      steady: of the program.

    Yields:
      One decision for each such value that is not sealed, what is compared first.
    """
    yield from _seals(steady.program, (), steady)


def _seals(program: Program, path: Path, steady: Steady) -> Iterator[Seal]:
    here = [position for there, position in steady.comparisons if there == path]
    wanted = [at for position in here for at in compared(program, position)]
    numbers = [equation_number(eqn) for eqn in program.eqns]
    wanted += [at for at in reversed(range(len(numbers))) if numbers[at] in steady.numbers]
    for at in dict.fromkeys(wanted):
        if any(depends_on_place(program, program.eqns[p]) for p in _cone(program, at)):
            yield Seal(path=path, site=program.site(at))
    for body, inner in bodies_to_rewrite(program, path):
        yield from _seals(body, inner, steady)


def apply_seal(program: Program, decision: Seal) -> Program:
    """Replay a seal.

    Raises:
      ReplayMiss: if there is no such value, or it cannot be computed by itself.
    """

    def change(inner: Program, position: int) -> Program:
        cone = _cone(inner, position)
        if not cone:
            raise ReplayMiss(f"{decision}: it cannot be computed by itself")
        leaves = read_by(inner, cone)
        body = _body(inner, cone, leaves, inner.eqns[position].outvars)
        return rewritten(inner, position, leaves, lambda get: sealed_p.bind(*map(get, leaves), body=body))

    return at_site(program, decision, change)


def expand_sealed(eqn: Any, operands: Sequence[Any], evaluate: Callable[..., list[Any]], waits: Waits) -> list[Any]:
    """Run an `exla_sealed` equation: a conditional whose other branch is never taken, which XLA does not know."""
    closed = eqn.params["body"]
    number = next(x for x, v in zip(operands, eqn.invars, strict=True) if _has_numbers(v))

    def computed(*values: Any) -> list[Any]:
        return evaluate(Program(jaxpr=closed.jaxpr), [*closed.consts, *values])

    def nothing(*values: Any) -> list[Any]:
        return [jnp.zeros(v.aval.shape, v.aval.dtype) for v in closed.jaxpr.outvars]

    shape = "x".join(map(str, eqn.outvars[0].aval.shape))
    with jax.named_scope(f"exla_sealed.{equation_number(eqn)}.{shape}"):  # `exla.targets.hlo_text` looks for it
        return list(lax.cond(always(one_of(number)), computed, nothing, *operands))


def _cone(program: Program, position: int) -> list[int]:
    """Positions of the equations that compute a value from much smaller or sealed ones; empty where that cannot be.

    What is made of numbers in 16 bits is left alone: whether XLA rounds them is not the same for every chunk. A
    comparison stays outside, where it is seen what its sides are made of.
    """
    most = max(map(value_bytes, program.eqns[position].outvars)) // SMALLER
    found: set[int] = set()
    stack = [position]
    while stack:
        at = stack.pop()
        eqn = program.eqns[at]
        compares = eqn.primitive.name in COMPARISONS and is_inexact(eqn.invars[0])
        if eqn.effects or _compat.bodies(eqn) or compares or any(map(is_narrow, eqn.outvars)):
            return []
        found.add(at)
        made = (program.producers.get(v) for v in program.operands[at] if value_bytes(v) > most)
        stack += [p for p in made if p is not None and p not in found and not is_sealed(program.eqns[p])]
    cone = sorted(found)
    return cone if any(map(_has_numbers, read_by(program, cone))) else []


def _has_numbers(v: Any) -> bool:
    """Whether a value has an element that may be NaN, for all that XLA knows."""
    return is_inexact(v) and 0 not in v.aval.shape


def _body(program: Program, cone: Sequence[int], leaves: Sequence[Any], results: Sequence[Any]) -> Any:
    """A cone as a closed jaxpr."""
    eqns = [program.eqns[at] for at in cone]
    jaxpr = program.jaxpr.replace(invars=list(leaves), constvars=[], outvars=list(results), eqns=eqns)
    return jax.make_jaxpr(lambda *values: evaluate(jaxpr, values, as_it_is))(*(as_struct(v.aval) for v in leaves))
