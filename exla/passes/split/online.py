"""Online reductions: several dependent reductions over one factor in one loop.

A softmax needs its maximum before it can sum, so its sum comes one level after its maximum, and everything before it is
computed twice. But `sum_j exp(s_j - m) v_j` for one `m` is that for another `m'` times `exp(m - m')`: the loop can run
both on the maximum *so far*, and repair what it has summed up whenever that changes (Milakov and Gimelshein 2018;
FlashAttention). What a sum is divided by can wait until after the loop. And `sum_j (x_j - mean)**2` about the mean so
far becomes that about the next one by adding `n (mean - mean')**2` (Welford; Chan, Golub and LeVeque) and, as a mean so
far is rounded, `2 (mean - mean') sum_j (x_j - mean)`: that sum is kept beside the squares.

Here the values in a loop are followed from a *late* value, one that the loop itself is still computing, to the sums
that depend on it. Each value has a `Form`: it is late, shifted by a late value, that squared, or scaled by such.
Whatever has no form waits for the next loop, as without this file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from exla._compat import Literal
from exla.ir.program import Program, is_zero
from exla.passes.opaque import always
from exla.passes.split.regions import Instance, factors_of


@dataclass(frozen=True, kw_only=True)
class Late:
    """A whole value that the loop is still computing, seen from another value.

    Attributes:
      var: the late value.
      axes: for each of its axes, the axis of the other value that it runs along; None for one of size 1.
    """

    var: Any
    axes: tuple[int | None, ...]


@dataclass(frozen=True, kw_only=True)
class Form:
    """How a value in the loop depends on late values.

    Attributes:
      kind: "late": it is `by`; "shifted": something minus `by`; "squared": the square of that; "scaled": something
        times `exp(-by)` for each `by`, times or divided by each of `deferred`; "none": it cannot be told.
      by: late values.
      deferred: ("mul" or "div", late value).
    """

    kind: str
    by: tuple[Late, ...] = ()
    deferred: tuple[tuple[str, Late], ...] = ()


NONE = Form(kind="none")


@dataclass(frozen=True, kw_only=True)
class Running:
    """A late value as the loop can compute it so far: its equations outside, from the instances that combine it."""

    late: Late
    bases: tuple[Instance, ...]
    chain: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Repair:
    """How a sum that was begun with one late value goes on with the next, and what is left to do in the end.

    Attributes:
      kind: "scaled" or "squared", the form of what is summed.
      by: the late values that change from chunk to chunk.
      deferred: what is multiplied or divided by after the loop.
      count: how many elements are summed up in all.
      shifted: what is squared; None where nothing is.
    """

    kind: str
    by: tuple[Running, ...]
    deferred: tuple[tuple[str, Late], ...]
    count: int
    shifted: Any = None


def form_of(program: Program, instance: Instance, operands: Sequence[Form | None]) -> Form | None:
    """The form of an instance's result.

    Args:
      program: the program.
      instance: the equation and its factor.
      operands: form of each operand, seen from that operand; None for what does not depend on late values.

    Returns:
      The form, seen from the result; None where it does not depend on late values.
    """
    if all(f is None for f in operands):
        return None
    moved = [None if f is None else _seen_from_result(program, instance, k, f) for k, f in enumerate(operands)]
    if any(f is not None and f.kind == "none" for f in moved):
        return NONE
    return _combined(program, program.eqns[instance[0]], moved)


def late_form(var: Any) -> Form:
    """A late value, seen from itself."""
    return Form(
        kind="late", by=(Late(var=var, axes=tuple(k if n > 1 else None for k, n in enumerate(var.aval.shape))),)
    )


def _seen_from_result(program: Program, instance: Instance, k: int, form: Form) -> Form:
    factors = factors_of(program, instance[0])

    def move(late: Late) -> Late | None:
        axes: list[int | None] = []
        for axis in late.axes:
            name = None if axis is None else factors.at_operand(k, axis)
            if axis is None:
                axes.append(None)
                continue
            if name is None or name == instance[1]:
                return None
            at, then = factors.operands[name][k], factors.results[name][0]
            if at is None or then is None or at.block != 1 or then.block != 1:
                return None
            axes.append(then.axis)
        return replace(late, axes=tuple(axes))

    moved = [move(late) for late in (*form.by, *(late for _, late in form.deferred))]
    there = [late for late in moved if late is not None]
    if len(there) < len(moved):
        return NONE
    by, deferred = there[: len(form.by)], there[len(form.by) :]
    hows = [how for how, _ in form.deferred]
    return replace(form, by=tuple(by), deferred=tuple(zip(hows, deferred, strict=True)))


SHAPES = frozenset({"broadcast_in_dim", "reshape", "transpose", "squeeze"})
"""Primitives that only arrange what is there."""

LINEAR = SHAPES | {"neg", "convert_element_type", "reduce_sum", "dot_general"}
"""Primitives of which a multiple of one operand makes the same multiple of the result."""

SELECTING = SHAPES | {"max", "select_n", "is_finite", "eq", "ne", "lt", "gt"}
"""Primitives through which a maximum stays that maximum or becomes a constant."""


def _combined(program: Program, eqn: Any, forms: Sequence[Form | None]) -> Form:
    """The form of an equation's result from those of its operands, all seen from the result."""
    name = eqn.primitive.name
    kinds = [None if f is None else f.kind for f in forms]
    if name == "sub" and kinds == [None, "late"]:
        return replace(_the(forms[1]), kind="shifted")
    if name == "exp" and kinds == ["shifted"]:
        return replace(_the(forms[0]), kind="scaled")
    if _squares(eqn) and set(kinds) == {"shifted"} and jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.floating):
        return replace(_the(forms[0]), kind="squared")
    if name == "reduce_sum" and kinds == ["squared"]:
        return _the(forms[0])
    if name in SHAPES and kinds == ["late"]:
        return _the(forms[0])
    if name in LINEAR and set(kinds) <= {None, "scaled"} and kinds.count("scaled") == 1:
        wide = jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.floating) and eqn.outvars[0].aval.dtype.itemsize >= 4
        return next(f for f in forms if f is not None) if wide else NONE
    if name in ("mul", "div") and set(kinds) <= {None, "scaled", "late"}:
        return _product(name, forms)
    if name == "select_n" and kinds[0] is None:
        cases = {f for f, v in zip(forms[1:], eqn.invars[1:], strict=True) if not is_zero(program, v)}
        only = cases.pop() if len(cases) == 1 else None
        return only if only is not None and only.kind == "scaled" else NONE
    return NONE


def _product(name: str, forms: Sequence[Form | None]) -> Form:
    left, right = forms
    by: list[Late] = []
    deferred: list[tuple[str, Late]] = []
    for form, how in ((left, "mul"), (right, name)):
        if form is None:
            continue
        if form.kind == "late":
            if how == "mul" and form is left and name == "div":
                return NONE
            deferred += [(how, late) for late in form.by]
        elif how == "div":
            return NONE
        else:
            by += form.by
            deferred += form.deferred
    return Form(kind="scaled", by=tuple(by), deferred=tuple(deferred))


def _the(form: Form | None) -> Form:
    assert form is not None
    return form


def running(program: Program, late: Late, bases: Mapping[Any, Instance], early: Set[Any]) -> Running | None:
    """How a late value is computed from what the loop has combined so far.

    Args:
      program: the program.
      late: the value.
      bases: variable -> the reduced instance that combines it.
      early: variables that are there before the loop starts.

    Returns:
      The equations, or None where it needs more than those instances.
    """
    found: set[int] = set()
    used: set[Instance] = set()
    stack = [late.var]
    while stack:
        var = stack.pop()
        if isinstance(var, Literal) or var in early:
            continue
        if var in bases:
            used.add(bases[var])
            continue
        position = program.producers.get(var)
        if position is None or program.factors(position) is None:
            return None
        if position not in found:
            found.add(position)
            stack += program.eqns[position].invars
    return Running(late=late, bases=tuple(sorted(used)), chain=tuple(sorted(found)))


def squared(program: Program, sum_: Instance) -> Any:
    """What is squared, of a sum of squares; None where the sum is not of squares at once."""
    (operand,) = program.eqns[sum_[0]].invars
    position = None if isinstance(operand, Literal) else program.producers.get(operand)
    if position is None or not _squares(program.eqns[position]):
        return None
    return program.eqns[position].invars[0]


def _squares(eqn: Any) -> bool:
    return eqn.primitive.name == "square" or (eqn.primitive.name == "mul" and eqn.invars[0] is eqn.invars[1])


def is_mean(program: Program, value: Running, count: int) -> bool:
    """Whether a running value is a sum divided by how many elements were summed, whatever shape it has."""
    divisors = 0
    for position in value.chain:
        eqn = program.eqns[position]
        if eqn.primitive.name == "div" and isinstance(eqn.invars[1], Literal):
            divisors += math.isclose(float(eqn.invars[1].val), count, rel_tol=1e-6)
        elif eqn.primitive.name == "mul" and isinstance(eqn.invars[1], Literal):
            divisors += math.isclose(float(eqn.invars[1].val), 1 / count, rel_tol=1e-6)
        elif eqn.primitive.name not in SHAPES:
            return False
    return divisors == 1 and len(value.bases) == 1


def aligned(value: Any, axes: Sequence[int | None], rank: int) -> Any:
    """A late value in the shape that broadcasts along its axes in an array of a rank."""
    kept = sorted((axis, k) for k, axis in enumerate(axes) if axis is not None)
    shape = [1] * rank
    for axis, k in kept:
        shape[axis] = value.shape[k]
    order = [k for _, k in kept] + [k for k, axis in enumerate(axes) if axis is None]
    return lax.reshape(lax.transpose(value, order), shape)


def scaled(repair: Repair, total: Any, before: Sequence[Any], after: Sequence[Any]) -> Any:
    """A sum so far, as if it had been scaled by the late values as they are now.

    Args:
      repair: which sum.
      total: the sum so far.
      before: the late values that it was made with.
      after: the late values now.
    """
    for value, old, new in zip(repair.by, before, after, strict=True):
        old, new = (aligned(w, value.late.axes, total.ndim) for w in (old, new))
        is_nothing = lax.eq(total, np.zeros((), total.dtype))
        factor = lax.convert_element_type(lax.exp(lax.sub(old, new)), total.dtype)
        total = lax.select(is_nothing, total, lax.mul(total, factor))
    return total


def moved(repair: Repair, shifts: Any, before: Sequence[Any], after: Sequence[Any], done: Any) -> tuple[Any, Any]:
    """What a sum of squares so far, and that of what is squared, grow by when they are taken about other late values.

    Args:
      repair: which sum.
      shifts: the sum so far of what is squared.
      before: the late values that it was made with.
      after: the late values now.
      done: how many elements it has.
    """
    count = jnp.asarray(done, shifts.dtype)
    squares, more = jnp.zeros_like(shifts), jnp.zeros_like(shifts)
    for value, old, new in zip(repair.by, before, after, strict=True):
        old, new = (aligned(w, value.late.axes, shifts.ndim) for w in (old, new))
        squares = squares + (2 * (shifts + more) + count * (old - new)) * (old - new)
        more = more + count * (old - new)
    return squares, more


def usable(repair: Repair, value: Any) -> Any:
    """A late value so far, as the loop can use it.

    Where nothing but -inf has come yet, any number does for what is scaled. Squares must be about the very number that
    is kept: XLA would compute it again for each reader, and LLVM subtract what it has not rounded. So it is what a
    conditional returns, and has a bit less than its type, where that is computed as a selection.
    """
    if repair.kind != "squared":
        return jnp.where(lax.eq(value, np.array(-np.inf, value.dtype)), 0, value)
    kind = jnp.finfo(value.dtype)
    short = lax.reduce_precision(value, exponent_bits=kind.nexp, mantissa_bits=kind.nmant - 1)
    one = jnp.sum(short[:1] if short.ndim else short)  # of any number; XLA cannot tell that it may not be NaN
    return lax.cond(always(one), lambda v: v, jnp.zeros_like, short)


def finished(repair: Repair, total: Any, final: Mapping[Any, Any]) -> Any:
    """A sum after the loop: NaN where the late value is no number, and what was put off done.

    Args:
      repair: which sum.
      total: the sum as the loop left it.
      final: late variable -> its final value.
    """
    if repair.kind == "scaled":
        for value in repair.by:
            w = final[value.late.var]
            nothing = lax.convert_element_type(lax.sub(w, w), total.dtype)
            total = lax.add(total, aligned(nothing, value.late.axes, total.ndim))
    for how, late in repair.deferred:
        w = aligned(lax.convert_element_type(final[late.var], total.dtype), late.axes, total.ndim)
        total = lax.mul(total, w) if how == "mul" else lax.div(total, w)
    return total
