"""The exla call: what `exla.jit` is under somebody else's transformation.

Called on plain arrays, `exla.jit(f)` plans and runs by itself. Under `jax.grad`, `jax.vmap`, an outer `jax.jit` or in
the body of a `lax.scan` it binds one primitive, `exla_call`, which carries the *original* program:

* differentiation, batching and transposition make another original program and bind it again, so that a forward and
  a backward pass are planned together, and no residual of the forward pass outlives it: what a backward pass needs
  is computed again from the arguments. Where everything fits, residuals and all, differentiation is left to jax.jit;
* evaluated on arrays, each such program is planned and obeys the limit by itself;
* lowered into somebody else's program, what was planned for it is put in its place.

An outer `exla.jit` flattens the call and plans everything at once under its own limit.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from exla import _compat
from exla.errors import ExlaWarning
from exla.ir.branches import join_branches
from exla.ir.emit import emit
from exla.ir.memory import Storing, project
from exla.ir.program import Program, as_struct, canonical
from exla.ir.shards import join_shards
from exla.observe import Made, announce
from exla.options import Options
from exla.passes.unless import EXPANSIONS
from exla.search.choice import Call, Choice
from exla.search.driver import decide
from exla.strict import tolerate
from exla.targets.base import find_target, place_all


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What the user asked of a call; hashable, the same for every program that is derived from it.

    Attributes:
      options: exla's options.
      name: name of the user's function.
      compiler_options: the user's own XLA options, as sorted pairs.
    """

    options: Options
    name: str
    compiler_options: tuple[tuple[str, Any], ...] = ()


class _Derived:
    """What was derived from a jaxpr, for as long as the jaxpr lives."""

    def __init__(self) -> None:
        self._of: weakref.WeakKeyDictionary[Any, dict[Hashable, Any]] = weakref.WeakKeyDictionary()
        self._lock = threading.RLock()

    def get(self, jaxpr: Any, key: Hashable, make: Callable[[], Any]) -> Any:
        with self._lock:
            known = self._of.setdefault(jaxpr, {})
            if key not in known:
                known[key] = make()
            return known[key]

    def clear(self) -> None:
        with self._lock:
            self._of.clear()


derived = _Derived()


def trace(fn: Callable[..., Sequence[Any]], avals: Sequence[Any]) -> Any:
    """A closed jaxpr of a function of flat arrays."""
    return jax.make_jaxpr(fn)(*(as_struct(a) for a in avals))


def read(closed: Any, platform: str | None = None) -> Program:
    """The canonical program of a closed jaxpr; as it was traced where it cannot be made canonical."""
    with tolerate("reading the program"):
        return join_branches(join_shards(canonical(closed, platform)))
    return as_traced(closed)


def as_traced(closed: Any) -> Program:
    """The program of a closed jaxpr as it was traced."""
    return Program(jaxpr=_compat.constants_as_inputs(closed.jaxpr), consts=tuple(closed.consts))


def plan(jaxpr: Any, wishes: Wishes, *, inline: bool, donated: tuple[int, ...] = ()) -> Choice:
    """Choose how a closed jaxpr is run, once.

    Args:
      jaxpr: the original program.
      wishes: what the user asked for.
      inline: whether it becomes part of somebody else's program, which has compiler options of its own.
      donated: positions of donated arguments.

    Returns:
      The choice.

    Raises:
      MemoryLimitError: if no candidate obeys the limit.
    """

    def make() -> Choice:
        target = find_target(wishes.options.target)
        structs = [as_struct(a) for a in jaxpr.in_avals]
        run = _compat.as_function(jaxpr)
        options = dict(wishes.compiler_options)
        call = Call(
            program=read(jaxpr, target.platform),
            compile_plain=lambda: target.finish(jax.jit(run).lower(*place_all(target, structs)), options),
            donated=donated,
            compiler_options=options,
            inline=inline,
        )
        choice = decide(call, target, wishes.options)
        announce(
            Made(function=wishes.name, call=call, choice=choice, target=target, options=wishes.options, derived=True)
        )
        return choice

    return derived.get(jaxpr, ("plan", wishes, inline, donated), make)


def bind(jaxpr: Any, wishes: Wishes, operands: Sequence[Any]) -> list[Any]:
    """Bind a call of a closed jaxpr; its constants, which may be tracers, become operands."""
    if any(isinstance(c, jax.core.Tracer) for c in jaxpr.consts):
        consts = list(jaxpr.consts)
        jaxpr = _compat.close(_compat.constants_as_inputs(jaxpr.jaxpr))
        operands = [*consts, *operands]
    return call_p.bind(*operands, jaxpr=jaxpr, wishes=wishes)


def _abstract(*operands: Any, jaxpr: Any, wishes: Wishes) -> tuple[list[Any], Any]:
    return _compat.varying_like(jaxpr.out_avals, operands), jaxpr.effects


call_p = _compat.new_effectful_primitive("exla_call", _abstract)


def _evaluate(*operands: Any, jaxpr: Any, wishes: Wishes) -> list[Any]:
    choice = plan(jaxpr, wishes, inline=False)
    consts = () if choice.untouched else choice.program.consts
    with _compat.checked_results(wishes.name):
        return choice.compiled(*consts, *operands)


def _lower(*, jaxpr: Any, wishes: Wishes) -> tuple[str, Any]:
    """What takes the call's place in somebody else's program."""
    if _compat.names_axes(jaxpr):
        warnings.warn(
            f"exla.jit({wishes.name}) uses a mapped axis by name (a collective), so it cannot be planned alone: its "
            "memory_limit is not applied. Put the collective outside of exla.jit",
            ExlaWarning,
            stacklevel=2,
        )
        return wishes.name, jaxpr
    choice = plan(jaxpr, wishes, inline=True)
    if choice.untouched:
        return wishes.name, jaxpr

    def run(*operands: Any) -> list[Any]:
        return emit(choice.program, EXPANSIONS, in_blocks=choice.machine.blocks)(*choice.program.consts, *operands)

    return wishes.name, derived.get(jaxpr, ("lowered", wishes), lambda: trace(run, jaxpr.in_avals))


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, jaxpr: Any, wishes: Wishes) -> tuple[Any, Any]:
    moving = tuple(_compat.is_nonzero_tangent(t) for t in tangents)
    given = [t for t, moves in zip(tangents, moving, strict=True) if moves]
    smooth = [_compat.is_differentiable(a.dtype) for a in jaxpr.out_avals]
    split = any(isinstance(t, jax.core.Tracer) for t in given)  # somebody may want one without the other
    if split and _fits_with_residuals(jaxpr, wishes, moving):
        return _plain_jvp(jaxpr, primals, given, moving)

    def along(*values: Any) -> list[Any]:
        at, steps = values[: len(moving)], values[len(moving) :]
        moved, start = _moving(_compat.as_function(jaxpr), at, moving)
        outs, out_tangents = jax.jvp(moved, start, list(steps))
        kept = [t for t, is_smooth in zip(out_tangents, smooth, strict=True) if is_smooth]
        return kept if split else [*outs, *kept]

    def make() -> Any:
        steps = [a for a, moves in zip(jaxpr.in_avals, moving, strict=True) if moves]
        return trace(along, [*jaxpr.in_avals, *steps])

    moving_jaxpr = derived.get(jaxpr, ("jvp", moving, split), make)
    results = bind(moving_jaxpr, wishes, [*primals, *given])
    outs = bind(jaxpr, wishes, primals) if split else [results.pop(0) for _ in smooth]
    rest = iter(results)
    zeros = [_compat.zero_tangent(a) for a in jaxpr.out_avals]
    return outs, [next(rest) if is_smooth else z for is_smooth, z in zip(smooth, zeros, strict=True)]


def _moving(fn: Callable[..., Any], at: Sequence[Any], moving: Sequence[bool]) -> tuple[Callable[..., Any], list[Any]]:
    """A function of those arguments alone that move, and where they start."""

    def moved(*some: Any) -> Any:
        rest = iter(some)
        return fn(*(next(rest) if moves else x for x, moves in zip(at, moving, strict=True)))

    return moved, [x for x, moves in zip(at, moving, strict=True) if moves]


def _fits_with_residuals(jaxpr: Any, wishes: Wishes, moving: tuple[bool, ...]) -> bool:
    """Whether forward and backward pass obey the limit even if every value of both is stored, twice over."""

    def make() -> int:
        def both(*values: Any) -> Any:
            at, cotangents = values[: len(moving)], values[len(moving) :]
            moved, start = _moving(_compat.as_function(jaxpr), at, moving)
            smooth = [_compat.is_differentiable(a.dtype) for a in jaxpr.out_avals]
            outs, pull = jax.vjp(lambda *some: [o for o, s in zip(moved(*some), smooth, strict=True) if s], *start)
            return [*outs, *pull(list(cotangents))]

        results = [a for a in jaxpr.out_avals if _compat.is_differentiable(a.dtype)]
        peak = project(read(trace(both, [*jaxpr.in_avals, *results])), Storing(fused=False))
        return peak.bytes + peak.temporary_bytes

    limit = wishes.options.memory_limit
    return limit is not None and derived.get(jaxpr, ("with residuals", moving), make) <= limit


def _plain_jvp(jaxpr: Any, primals: Sequence[Any], given: Sequence[Any], moving: Sequence[bool]) -> tuple[Any, Any]:
    """Leave differentiation to jax.jit, which keeps what the backward pass needs."""
    jitted = derived.get(jaxpr, "jit", lambda: jax.jit(_compat.as_function(_compat.copy_of(jaxpr))))
    moved, start = _moving(jitted, primals, moving)
    outs, tangents = jax.jvp(moved, start, list(given))
    return outs, [
        t if _compat.is_differentiable(a.dtype) else _compat.zero_tangent(a)
        for t, a in zip(tangents, jaxpr.out_avals, strict=True)
    ]


def _transpose(cotangents: Sequence[Any], *operands: Any, jaxpr: Any, wishes: Wishes) -> list[Any]:
    linear = tuple(_compat.is_linear_operand(x) for x in operands)
    given = tuple(not _compat.is_zero(c) for c in cotangents)
    if not any(given):
        return [None] * len(operands)

    def backwards(*values: Any) -> list[Any]:
        known, cts = values[: linear.count(False)], values[linear.count(False) :]

        def forwards(*directions: Any) -> list[Any]:
            fixed, free = iter(known), iter(directions)
            outs = _compat.as_function(jaxpr)(*(next(free) if is_linear else next(fixed) for is_linear in linear))
            return [out for out, wanted in zip(outs, given, strict=True) if wanted]

        directions = [as_struct(a) for a, is_linear in zip(jaxpr.in_avals, linear, strict=True) if is_linear]
        return list(jax.linear_transpose(forwards, *directions)(list(cts)))

    def make() -> Any:
        known = [a for a, is_linear in zip(jaxpr.in_avals, linear, strict=True) if not is_linear]
        cts = [a for a, is_given in zip(jaxpr.out_avals, given, strict=True) if is_given]
        return trace(backwards, [*known, *cts])

    known = [x for x, is_linear in zip(operands, linear, strict=True) if not is_linear]
    cts = [c for c, is_given in zip(cotangents, given, strict=True) if is_given]
    results = iter(bind(derived.get(jaxpr, ("transpose", linear, given), make), wishes, [*known, *cts]))
    return [next(results) if is_linear else None for is_linear in linear]


def _batch(axis: Any, operands: Sequence[Any], dims: Sequence[Any], *, jaxpr: Any, wishes: Wishes) -> tuple[Any, Any]:
    dims = tuple(d if isinstance(d, int) else None for d in dims)
    out_axes = [0 if moves else None for moves in _depend_on(jaxpr, [d is not None for d in dims])]
    name = {} if _compat.is_unnamed(axis.name) else {"axis_name": axis.name}

    def make() -> Any:
        batched = jax.vmap(
            _compat.as_function(jaxpr),
            in_axes=dims,
            out_axes=out_axes,
            axis_size=axis.size,
            spmd_axis_name=axis.spmd_name,
            **name,
        )
        return trace(batched, [_compat.typeof(x) for x in operands])

    key = ("vmap", dims, axis.size, axis.spmd_name, *name.values())
    return bind(derived.get(jaxpr, key, make), wishes, operands), out_axes


def _depend_on(jaxpr: Any, changed: Sequence[bool]) -> list[bool]:
    """Which outputs of a jaxpr depend on the inputs that are marked."""
    body = jaxpr.jaxpr
    tainted = {v for v, is_changed in zip(body.invars, changed, strict=True) if is_changed}
    for eqn in body.eqns:
        if eqn.effects or any(not isinstance(v, _compat.Literal) and v in tainted for v in eqn.invars):
            tainted.update(eqn.outvars)
    return [not isinstance(v, _compat.Literal) and v in tainted for v in body.outvars]


_compat.set_rules(call_p, evaluate=_evaluate, lower=_lower, jvp=_jvp, transpose=_transpose, batch=_batch, bind=bind)
