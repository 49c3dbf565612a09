"""The store pass: a big value that waits for a later reader waits in a narrower type, or in the host's memory.

    rewrite: v = f(x); ...; g(v)                 -> s = barrier(bfloat16(f(x))); ...; g(float32(s))
    rewrite: v = f(x); h(v); ...; g(v)           -> v = f(x); s = to_host(v); h(v); ...; g(to_device(s))
    rewrite: _, vs = scan(v); ...; scan(g, vs)   -> the same inside the two scans, one row at a time

What a backward pass reads of a forward pass is kept until then. It can be computed again (`exla.passes.sink`, splits
that grow "again"), which is exact; where that does not bring a program under its limit, or its rows hang together so
that nothing can be cut, it can be kept elsewhere:

* `"host"`: on accelerators, in the host's memory. The bits stay the same; the way there and back takes time. The
  compiler has the last word: where it does not carry out the transfer, its count of bytes says so.
* `"bfloat16"`: under `numerics="mixed"` only, a float32 is rounded to the nearest bfloat16, which is off by at most
  2**-8 of it (8 bits of significand, IEEE 754 rounding; the same range of exponents but for the largest 2**-8 of it).
  All readers see the rounded value, so that what is compared for equality stays equal to itself. A barrier keeps XLA
  from taking the two conversions for none, which it may by its own flag for excess precision. What a late reader reads
  is made to depend on something else that it reads (`not_before`): XLA would otherwise widen it early, and keep that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax

from exla import _compat
from exla.errors import ReplayMiss
from exla.ir.memory import Held
from exla.ir.primitives import FUSIBLE, VIEWS
from exla.ir.program import Program, retrace, trace_function, variables
from exla.passes.decisions import Store
from exla.passes.opaque import has_numbers, not_before
from exla.passes.paths import at_site
from exla.passes.rewritten import applied

BFLOAT16_ERROR = 2.0**-8
"""What rounding a float32 to bfloat16 changes it by at most, relative to it: half a unit in the last of its 8 bits."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to keep a value.

    Attributes:
      put: the value -> what is kept.
      get: what is kept, something late -> the value, for those who read it late; None where nothing late is known.
      near: the same for those who read it early; None = they read the value as it was computed.
      keeps: aval -> whether such values can be kept so.
    """

    put: Callable[[Any], Any]
    get: Callable[[Any, Any], Any]
    near: Callable[[Any], Any] | None
    keeps: Callable[[Any], bool]


WAYS = {
    "host": Way(
        put=_compat.to_host,
        get=lambda x, late: _compat.to_device(lax.optimization_barrier((x, late) if late is not None else (x,))[0]),
        near=None,
        keeps=lambda aval: not _compat.is_extended(aval.dtype) and not _compat.is_on_host(aval),
    ),
    "bfloat16": Way(
        put=lambda x: lax.optimization_barrier(x.astype(jnp.bfloat16)),
        get=lambda x, late: (x if late is None else not_before(x, late)).astype(jnp.float32),
        near=lambda x: x.astype(jnp.float32),
        keeps=lambda aval: aval.dtype == jnp.float32,
    ),
}


def enumerate_stores(held: Sequence[Held], ways: Sequence[str]) -> Iterator[Store]:
    """Offer to keep what is live at the peak, computed before it and read after it, in other ways.

    Args:
      held: what is live at the peak, largest first.
      ways: names of the ways that may be used, the preferred one first.

    Yields:
      Decisions, the largest value first.
    """
    for item in held:
        program, var = item.program, item.var
        position = program.producers.get(var)
        if position is None or item.bytes == 0 or not variables(program.eqns[position].invars):
            continue  # zeros wait for nothing
        result = list(program.eqns[position].outvars).index(var)
        is_stacked = _is_stacked(program.eqns[position], result)
        early = 0 if is_stacked else sum(when <= item.at for when, _ in _readers(program, var))
        for how in ways:
            decision = Store(path=item.path, site=program.site(position), result=result, how=how, early=early)
            if not _why_not(program, position, decision):
                yield decision


def apply_store(program: Program, decision: Store) -> Program:
    """Replay a store.

    Raises:
      ReplayMiss: if there is no such value, or it cannot be kept that way.
    """
    return at_site(program, decision, lambda inner, position: _stored(inner, position, decision))


def _why_not(program: Program, position: int, decision: Store) -> str:
    """Why a value cannot be kept so; "" where it can."""
    eqn, way = program.eqns[position], WAYS.get(decision.how)
    if way is None:
        return f"there is no way {decision.how!r}; there are {', '.join(WAYS)}"
    if not 0 <= decision.result < len(eqn.outvars) or eqn.primitive.name == "exla_split":
        return "there is no such value that can be kept otherwise"
    var = eqn.outvars[decision.result]
    if var in variables(program.outvars) or not way.keeps(var.aval):
        return "it is a result, or no value of a type that can be kept so"
    if not 0 <= decision.early < len(_readers(program, var)):
        return "nothing reads it later"
    return ""


def _readers(program: Program, var: Any) -> list[tuple[int, int]]:
    """When each equation that reads a value runs, and its position, the first ones first.

    What the compiler computes inside of what reads it in turn runs with that: `1 - y**2` of a derivative runs where the
    backward pass multiplies by it.
    """
    whens = _whens(program)
    return sorted({(whens[position], position) for position, _ in program.consumers.get(var, ())})


def _whens(program: Program) -> list[int]:
    """The position where each equation runs: its own, or that of the first that wants what is computed inside of it."""
    if "whens" not in program.known:
        outputs, whens = set(variables(program.outvars)), list(range(len(program.eqns)))
        for position in reversed(whens):
            eqn = program.eqns[position]
            users = [whens[user] for v in eqn.outvars for user, _ in program.consumers.get(v, ())]
            is_inside = eqn.primitive.name in FUSIBLE - VIEWS and not eqn.effects and outputs.isdisjoint(eqn.outvars)
            whens[position] = min(users) if users and is_inside else position
        program.known["whens"] = whens
    return program.known["whens"]


def _stored(program: Program, position: int, decision: Store) -> Program:
    reason = _why_not(program, position, decision)
    if reason:
        raise ReplayMiss(f"{decision}: {reason}")
    way, groups = WAYS[decision.how], [[eqn] for eqn in program.eqns]
    eqn, var = program.eqns[position], program.eqns[position].outvars[decision.result]
    if _is_stacked(eqn, decision.result):
        made = _compat.Var(_type(way.put, var.aval))
        outvars = [made if k == decision.result else v for k, v in enumerate(eqn.outvars)]
        groups[position] = [_with_row(eqn, decision.result, way.put).replace(outvars=outvars)]
    else:
        added, made = applied(way.put, var)
        groups[position] += added
    moved: set[int] = set()
    for k, (when, reader) in enumerate(_readers(program, var)):
        if k >= decision.early:
            groups[reader] = _reading(program, reader, when, var, made, way.get)
            moved |= _until(program, reader, when)
        elif way.near is not None:
            added, again = applied(way.near, made, aval=var.aval)
            groups[reader] = [*added, _with_operand(program.eqns[reader], var, again)]
    return Program(jaxpr=program.jaxpr.replace(eqns=_moved_down(program, groups, moved)), consts=program.consts)


def _until(program: Program, position: int, when: int) -> set[int]:
    """An equation that runs inside of another one, and what is between them and reads it: that runs there, or later."""
    found = {position} if position < when else set[int]()
    for at in sorted(found):
        for v in program.eqns[at].outvars:
            for user, _ in program.consumers.get(v, ()):
                found |= _until(program, user, _whens(program)[user]) if user < when else set()
    return found


def _moved_down(program: Program, groups: Sequence[Sequence[Any]], moved: set[int]) -> list[Any]:
    """The equations in order, those that are moved where they run."""
    whens, below = _whens(program), dict[int, list[int]]()
    for position in sorted(moved):
        below.setdefault(whens[position], []).append(position)
    order = [p for at in range(len(groups)) if at not in moved for p in (*below.get(at, ()), at)]
    return [eqn for position in order for eqn in groups[position]]


def _reading(
    program: Program, position: int, when: int, var: Any, made: Any, get: Callable[[Any, Any], Any]
) -> list[Any]:
    """An equation that reads late what was kept: a scan that reads it row by row takes it back row by row."""
    eqn = program.eqns[position]
    at = [k for k, v in enumerate(eqn.invars) if v is var]
    if all(k in _compat.rows_of_scan(eqn) for k in at):
        for k in at:
            eqn = _with_input(eqn, k, made, lambda row: get(row, None))
        return [eqn]
    late = _late(program, when, _until(program, position, when) | {program.producers[var]})
    if late is None:
        added, again = applied(lambda x: get(x, None), made, aval=var.aval)
    else:
        added, again = applied(get, made, late, aval=var.aval)
    return [*added, _with_operand(eqn, var, again)]


def _late(program: Program, position: int, but: set[int]) -> Any:
    """What an equation reads that is computed last, but for what some equations make; None where nothing is known."""
    first = min(but)
    made_at = {v: program.producers.get(v, -1) for v in variables(program.eqns[position].invars)}
    found = {v: at for v, at in made_at.items() if at > first and at not in but and has_numbers(v.aval)}
    return max(found, key=found.__getitem__, default=None)


def _with_operand(eqn: Any, var: Any, other: Any) -> Any:
    """An equation that reads another value in place of one."""
    return eqn.replace(invars=[other if v is var else v for v in eqn.invars])


def _type(fn: Callable[[Any], Any], aval: Any) -> Any:
    """The type of what a function makes of a value."""
    return trace_function(lambda x: [fn(x)], [aval]).outvars[0].aval


def _is_stacked(eqn: Any, result: int) -> bool:
    """Whether a result is what a scan puts together of its turns."""
    return result in _compat.stacked_by_scan(eqn)


def _with_row(eqn: Any, result: int, put: Callable[[Any], Any]) -> Any:
    """A scan of which each turn hands out a row as it is kept."""

    def keep(results: list[Any]) -> list[Any]:
        return [put(x) if k == result else x for k, x in enumerate(results)]

    body = _compat.bodies(eqn)[0]
    return eqn.replace(params=_compat.with_bodies(eqn, [retrace(body, after=keep)]))


def _with_input(eqn: Any, operand: int, made: Any, get: Callable[[Any], Any]) -> Any:
    """A scan that reads rows as they were kept."""
    body = _compat.bodies(eqn)[0]
    avals = [v.aval for v in body.jaxpr.invars]
    old = avals[operand]
    avals[operand] = made.aval.update(shape=made.aval.shape[1:])

    def take(values: list[Any]) -> list[Any]:
        return [_compat.as_weak_as(get(x), old) if k == operand else x for k, x in enumerate(values)]

    invars = [made if k == operand else v for k, v in enumerate(eqn.invars)]
    changed = retrace(body, avals=avals, before=take)
    return eqn.replace(invars=invars, params=_compat.with_bodies(eqn, [changed]))
