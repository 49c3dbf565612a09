"""The chunk loop: what a split leaves in the program, and how it runs.

A split replaces the equations of a region by one `exla_split` equation per level. The equation carries a
`Loop`: a body program for one chunk, a tail program for the remainder, and how operands are sliced and outputs
put together. The body is a program like any other, so a second factor is cut by splitting the body.

`run` turns the equation into one `fori_loop`, never unrolled. Stacked outputs live in the carry and are written
in place with `dynamic_update_slice` on their own axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from exla import _compat
from exla.ir.factors import EquationContext, Placement
from exla.ir.program import Program
from exla.passes.split.combine import COMBINERS

Evaluate = Callable[[Program, Sequence[Any]], list[Any]]


@dataclass(frozen=True, kw_only=True)
class Stack:
    """An output written chunk by chunk along one axis."""

    aval: Any
    placement: Placement

    @property
    def parts(self) -> int:
        return 1

    @property
    def avals(self) -> tuple[Any, ...]:
        return (self.aval,)


@dataclass(frozen=True, kw_only=True)
class Combine:
    """The results of an equation whose factor was reduced, merged by a combiner over `parts` state arrays."""

    combiner: str
    context: EquationContext
    parts: int

    @property
    def avals(self) -> tuple[Any, ...]:
        return self.context.results


@dataclass(frozen=True, kw_only=True, eq=False)
class Loop:
    """One chunk loop.

    Attributes:
      body: program of one chunk: offset (int32 scalar) and operand slices in, parts of the outputs out.
      tail: the same for the remainder, or None.
      size: how many indices the factor has.
      chunk: how many of them one trip takes.
      operands: how each operand is sliced; None = passed whole.
      outputs: how the outputs are put together.
    """

    body: Program
    tail: Program | None
    size: int
    chunk: int
    operands: tuple[Placement | None, ...]
    outputs: tuple[Stack | Combine, ...]

    @property
    def trips(self) -> int:
        return self.size // self.chunk

    @property
    def remainder(self) -> int:
        return self.size % self.chunk


def _abstract(*operands: Any, loop: Loop, origins: Any) -> list[Any]:
    return [_compat.shaped_array(a.shape, a.dtype) for output in loop.outputs for a in output.avals]


split_p = _compat.new_primitive("exla_split", _abstract)
"""The equation that a split leaves; it exists in programs only and is expanded by `run` when they are emitted."""


def run(loop: Loop, operands: Sequence[Any], evaluate: Evaluate) -> list[Any]:
    """Run a chunk loop.

    Args:
      loop: the loop.
      operands: whole operands.
      evaluate: runs a body program.

    Returns:
      The outputs, whole.
    """

    def step(i: Any, carry: list[Any]) -> list[Any]:
        offset = lax.mul(lax.convert_element_type(i, jnp.int32), jnp.int32(loop.chunk))
        slices = [_slice(x, p, offset, loop.chunk) for x, p in zip(operands, loop.operands, strict=True)]
        return _put(loop, carry, evaluate(loop.body, [offset, *slices]), offset, first=lax.eq(offset, jnp.int32(0)))

    carry = lax.fori_loop(0, loop.trips, step, _start(loop))
    if loop.tail is not None:
        offset = jnp.int32(loop.trips * loop.chunk)
        slices = [_slice(x, p, offset, loop.remainder) for x, p in zip(operands, loop.operands, strict=True)]
        carry = _put(loop, carry, evaluate(loop.tail, [offset, *slices]), offset, first=None)
    results: list[Any] = []
    for output in loop.outputs:
        state, carry = carry[: output.parts], carry[output.parts :]
        if isinstance(output, Combine):
            results += COMBINERS.get(output.combiner).finish(output.context, state)
        else:
            results += state
    return results


def _slice(operand: Any, placement: Placement | None, offset: Any, size: int) -> Any:
    if placement is None:
        return operand
    start = lax.mul(offset, jnp.int32(placement.block))
    return lax.dynamic_slice_in_dim(operand, start, size * placement.block, placement.axis)


def _start(loop: Loop) -> list[Any]:
    """The loop's first carry: identities, and room for what is stacked or started by the first chunk."""
    carry = []
    partials = [v.aval for v in loop.body.outvars]
    for output in loop.outputs:
        avals, partials = partials[: output.parts], partials[output.parts :]
        if isinstance(output, Stack):
            carry.append(jnp.zeros(output.aval.shape, output.aval.dtype))
            continue
        combiner = COMBINERS.get(output.combiner)
        for aval in avals:
            kept = jax.eval_shape(combiner.prepare, jax.ShapeDtypeStruct(aval.shape, aval.dtype))
            make = combiner.identity or (lambda a: jnp.zeros(a.shape, a.dtype))
            carry.append(make(kept))
    return carry


def _put(loop: Loop, carry: Sequence[Any], partials: Sequence[Any], offset: Any, first: Any) -> list[Any]:
    """Write one chunk's partial results into the carry."""
    new: list[Any] = []
    for output in loop.outputs:
        state, carry = carry[: output.parts], carry[output.parts :]
        parts, partials = partials[: output.parts], partials[output.parts :]
        if isinstance(output, Stack):
            part = lax.convert_element_type(parts[0], state[0].dtype)
            start = lax.mul(offset, jnp.int32(output.placement.block))
            new.append(lax.dynamic_update_slice_in_dim(state[0], part, start, output.placement.axis))
            continue
        combiner = COMBINERS.get(output.combiner)
        parts = [combiner.prepare(p) for p in parts]
        merged = combiner.merge(output.context, state, parts)
        if combiner.identity is None and first is not None:
            merged = [lax.select(lax.broadcast(first, m.shape), p, m) for p, m in zip(parts, merged, strict=True)]
        new += [lax.convert_element_type(m, s.dtype) for m, s in zip(merged, state, strict=True)]
    return new
