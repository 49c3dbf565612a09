"""The chunk loop: what a split leaves in the program, and how it runs.

A split replaces the equations of a region by one `exla_split` equation per level. The equation carries a
`Loop`: a body program for one chunk, a tail program for the remainder, and how operands are sliced and outputs
put together. The body is a program like any other, so a second factor is cut by splitting the body.

`run` turns the equation into one `fori_loop`, never unrolled. Stacked outputs live in the carry and are written
in place with `dynamic_update_slice` on their own axis. A loop that runs in reverse takes the same chunks from last to
first, the remainder before all others.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from exla import _compat
from exla.ir.emit import Waits
from exla.ir.factors import Carried, EquationContext, Passed, Placement
from exla.ir.program import Program
from exla.passes.opaque import always, has_numbers, not_before, one_of
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

    @property
    def kept(self) -> int:
        """Arrays of the loop's carry."""
        return 1

    @property
    def besides(self) -> tuple[Any, ...]:
        """Abstract values of what the loop carries for it and its own arrays have no room for."""
        return ()


@dataclass(frozen=True, kw_only=True)
class Combine:
    """The results of an equation whose factor was reduced, merged by a combiner over `parts` state arrays."""

    combiner: str
    context: EquationContext
    parts: int

    @property
    def avals(self) -> tuple[Any, ...]:
        return self.context.results

    @property
    def kept(self) -> int:
        return COMBINERS.get(self.combiner).kept * self.parts

    @property
    def besides(self) -> tuple[Any, ...]:
        return self.context.results * (COMBINERS.get(self.combiner).kept - 1)


@dataclass(frozen=True, kw_only=True)
class Carry:
    """The state of an equation whose factor is carried.

    Attributes:
      carried: how.
      context: the equation.
      start: positions, among the loop's operands, of those that make the first state.
      states: abstract values of the state.
      unplaced: positions of the results that the last state gives.
      saved: how many trips have the state before them stacked into an output, for another loop; 0 or all.
    """

    carried: Carried
    context: EquationContext
    start: tuple[int, ...]
    states: tuple[Any, ...]
    unplaced: tuple[int, ...]
    saved: int = 0

    @property
    def parts(self) -> int:
        return len(self.states)

    @property
    def avals(self) -> tuple[Any, ...]:
        results = [self.context.results[k] for k in self.unplaced]
        return (*results, *(self._stack(s) for s in self.states if self.saved))

    @property
    def kept(self) -> int:
        return (2 if self.saved else 1) * self.parts

    @property
    def besides(self) -> tuple[Any, ...]:
        return self.states[len(self.unplaced) :]

    def _stack(self, aval: Any) -> Any:
        return _compat.shaped_array((self.saved, *aval.shape), aval.dtype)


@dataclass(frozen=True, kw_only=True, eq=False)
class Loop:
    """One chunk loop.

    Attributes:
      body: program of one chunk: offset (int32 scalar), states of what is carried and operand slices in, parts of the
        outputs out.
      tail: the same for the remainder, or None.
      size: how many indices the factor has.
      chunk: how many of them one trip takes.
      operands: how each operand is sliced; None = passed whole.
      outputs: how the outputs are put together.
      reverse: whether the chunks are taken from last to first.
      late: position of an operand that is computed just before the loop, if anything is; None where there is none.
    """

    body: Program
    tail: Program | None
    size: int
    chunk: int
    operands: tuple[Placement | Passed | None, ...]
    outputs: tuple[Stack | Combine | Carry, ...]
    reverse: bool = False
    late: int | None = None

    @property
    def trips(self) -> int:
        return self.size // self.chunk

    @property
    def remainder(self) -> int:
        return self.size % self.chunk

    @property
    def tail_first(self) -> bool:
        """Whether there is a remainder, and it comes before the loop, as it does where nothing is done but stacking:
        written last, XLA would write it once for every reader of the stack."""
        only_stacks = all(isinstance(output, Stack) for output in self.outputs)
        return self.tail is not None and (self.reverse or only_stacks)

    @property
    def carries(self) -> tuple[Carry, ...]:
        return tuple(o for o in self.outputs if isinstance(o, Carry))

    @property
    def copied(self) -> list[Any]:
        """Abstract values of what XLA:CPU copies as it merges, as two arrays are made of it: once in the loop, and once
        for the remainder."""
        found = [a for o in self.outputs if isinstance(o, Combine) and o.kept > o.parts for a in o.avals]
        return found * (2 if self.remainder else 1)

    def states(self, body: Program) -> list[Any]:
        """The inputs of a body that take the state of what is carried."""
        first = len(body.consts) + 1
        return list(body.invars[first : first + sum(c.parts for c in self.carries)])

    def inputs(self, body: Program) -> list[tuple[Any, int, Placement | Passed | None]]:
        """The operand slices of a body: (its input, position of the operand, how it is sliced)."""
        given = [k for k, p in enumerate(self.operands) if p is not Passed.START]
        slices = body.invars[len(body.consts) + 1 + len(self.states(body)) :]
        return [(v, k, self.operands[k]) for v, k in zip(slices, given, strict=True)]


def _abstract(*operands: Any, loop: Loop, origins: Any) -> list[Any]:
    return [_compat.shaped_array(a.shape, a.dtype) for output in loop.outputs for a in output.avals]


split_p = _compat.new_primitive("exla_split", _abstract)
"""The equation that a split leaves; it exists in programs only and is expanded by `run` when they are emitted."""


def run(loop: Loop, operands: Sequence[Any], evaluate: Evaluate, *, waits: Waits = "") -> list[Any]:
    """Run a chunk loop.

    Args:
      loop: the loop.
      operands: whole operands.
      evaluate: runs a body program.
      waits: for what the remainder waits: where it comes last for the loop, unless this is ""; where it comes first for
        these operands. XLA:CPU computes what it can at once: a remainder that does not wait lies beside the chunks, or
        what comes before the loop; and where its part of the operands is the same on all turns of a loop around it,
        it is computed before that, and kept throughout.

    Returns:
      The outputs, whole.
    """

    def one(body: Program, carry: list[Any], trip: Any, size: int, first: Any) -> list[Any]:
        offset = lax.mul(lax.convert_element_type(trip, jnp.int32), jnp.int32(loop.chunk))
        given = [offset, *_states(loop, carry), *slices(operands, loop.operands, offset, size, trip)]
        return _put(loop, carry, evaluate(body, given), offset, trip, first)

    def step(i: Any, carry: list[Any]) -> list[Any]:
        first = False if tail_first else lax.eq(i, 0)
        return one(loop.body, carry, loop.trips - 1 - i if loop.reverse else i, loop.chunk, first)

    def counted(i: Any, state: tuple[list[Any], Any]) -> tuple[list[Any], Any]:
        return step(i, state[0]), lax.add(lax.convert_element_type(i, jnp.int32), jnp.int32(1))

    tail_first = loop.tail_first
    carry = _start(loop, operands)
    if loop.tail is not None and tail_first:
        carry = one(loop.tail, carry, _counted_once_there(loop, operands, waits), loop.remainder, True)
    done: Any = jnp.int32(loop.trips)
    if waits and loop.tail is not None and not tail_first:
        carry, done = lax.fori_loop(0, loop.trips, counted, (carry, jnp.int32(0)))
    else:
        carry = lax.fori_loop(0, loop.trips, step, carry)
    if loop.tail is not None and not tail_first:
        carry = one(loop.tail, carry, done, loop.remainder, False)
    results: list[Any] = []
    for output, state in zip(loop.outputs, _by_output(loop, carry), strict=True):
        if isinstance(output, Combine):
            results += COMBINERS.get(output.combiner).finish(output.context, state)
        elif isinstance(output, Carry):
            results += output.carried.finish(output.context, state[: output.parts]) if output.unplaced else []
            results += state[output.parts :]
        else:
            results += state
    return results


def slices(
    operands: Sequence[Any], placements: Sequence[Placement | Passed | None], offset: Any, size: int, trip: Any = None
) -> list[Any]:
    """What a body takes of whole operands, for a chunk of a size from an offset."""
    pairs = zip(operands, placements, strict=True)
    return [_slice(x, p, offset, size, trip) for x, p in pairs if p is not Passed.START]


def _by_output(loop: Loop, carry: Sequence[Any]) -> list[list[Any]]:
    """The arrays of the loop's carry, by output: its state, then what is saved of it."""
    found, rest = [], list(carry)
    for output in loop.outputs:
        found.append(rest[: output.kept])
        rest = rest[output.kept :]
    return found


def _states(loop: Loop, carry: Sequence[Any]) -> list[Any]:
    """What is carried, as the body takes it."""
    by_output = zip(loop.outputs, _by_output(loop, carry), strict=True)
    return [s for output, state in by_output if isinstance(output, Carry) for s in state[: output.parts]]


def _slice(operand: Any, placement: Placement | Passed | None, offset: Any, size: int, trip: Any) -> Any:
    if placement is None:
        return operand
    if operand.dtype == jnp.bfloat16:
        # XLA:CPU slices float32 alone. What is made anew on every trip it does not convert whole, before the loop.
        operand, offset, trip = lax.optimization_barrier((operand, offset, trip))
    if isinstance(placement, Passed):
        return lax.dynamic_index_in_dim(operand, trip, 0, keepdims=False)
    start = lax.mul(offset, jnp.int32(placement.block))
    if placement.halo is None:
        return lax.dynamic_slice_in_dim(operand, start, size * placement.block, placement.axis)
    return _window(operand, start - placement.halo[0], placement.length(size), placement.axis)


def _window(operand: Any, start: Any, length: int, axis: int) -> Any:
    """`length` indices of an axis from `start`, which may reach beyond both ends; zeros are there."""
    extent = operand.shape[axis]
    taken = min(length, extent)
    first = jnp.clip(start, 0, extent - taken)
    piece = lax.dynamic_slice_in_dim(operand, first, taken, axis)
    if _compat.is_extended(piece.dtype):  # JAX cannot lower a `pad` of keys
        beyond = _compat.zeros(piece.aval.update(shape=(*piece.shape[:axis], length, *piece.shape[axis + 1 :])))
        wide = lax.concatenate([beyond, piece, beyond], axis)
    else:
        padding = [(length, length, 0) if k == axis else (0, 0, 0) for k in range(piece.ndim)]
        wide = lax.pad(piece, jnp.zeros((), piece.dtype), padding)
    return lax.dynamic_slice_in_dim(wide, length + jnp.clip(start - first, -length, taken), length, axis)


def _start(loop: Loop, operands: Sequence[Any]) -> list[Any]:
    """The loop's first carry: identities, and room for what is stacked, saved or started by the first chunk."""
    carry: list[Any] = []
    room = _room(loop, operands)
    partials = [v.aval for v in loop.body.outvars]
    for output in loop.outputs:
        avals, partials = partials[: output.parts], partials[output.parts :]
        if isinstance(output, Stack):
            carry.append(room(_compat.zeros(output.aval)))
        elif isinstance(output, Carry):
            carry += [_strong(x) for x in output.carried.start(output.context, *(operands[k] for k in output.start))]
            carry += [room(_compat.zeros(a)) for a in output.avals[len(output.unplaced) :]]
        else:
            structs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
            carry += map(room, COMBINERS.get(output.combiner).start(structs))
    return carry


def _room(loop: Loop, operands: Sequence[Any]) -> Callable[[Any], Any]:
    """What makes the first values of arrays that a loop writes, just before the loop.

    Constants of one shape are one array to XLA, which it makes first of all, keeps to the last loop that needs such
    room, and copies for each. What depends on an operand is not there before it.
    """
    late = None if loop.late is None else operands[loop.late]

    def room(constant: Any) -> Any:
        if late is None or not constant.shape or _compat.is_extended(constant.dtype):
            return constant
        return not_before(constant, late)

    return room


def _counted_once_there(loop: Loop, operands: Sequence[Any], waits: Waits) -> Any:
    """The number of trips, for a remainder that comes first, once some operands are there."""
    late = [operands[loop.late]] if loop.late is not None and waits else []
    awaited = [x for x in operands if has_numbers(_compat.typeof(x))] if waits == "all" else late
    trips, there = jnp.int32(loop.trips), [always(one_of(x)) for x in awaited]
    return lax.select(functools.reduce(lax.bitwise_and, there), trips, jnp.int32(0)) if there else trips


def _strong(array: Any) -> Any:
    """The same array, not weakly typed: the first state must have the type of all others."""
    return _as(array, array.dtype)


def _as(array: Any, dtype: Any) -> Any:
    """An array as one of a dtype; random keys as they are."""
    return array if _compat.is_extended(array.dtype) else lax.convert_element_type(array, dtype)


def _put(loop: Loop, carry: Sequence[Any], partials: Sequence[Any], offset: Any, trip: Any, first: Any) -> list[Any]:
    """Put one chunk's partial results into the carry; `first`: whether it is the loop's first, where that matters."""
    new: list[Any] = []
    for output, state in zip(loop.outputs, _by_output(loop, carry), strict=True):
        parts, partials = partials[: output.parts], partials[output.parts :]
        if isinstance(output, Stack):
            part = _as(parts[0], state[0].dtype)
            start = lax.mul(offset, jnp.int32(output.placement.block))
            new.append(lax.dynamic_update_slice_in_dim(state[0], part, start, output.placement.axis))
        elif isinstance(output, Carry):
            new += [_strong(x) for x in parts]
            before, stacks = state[: output.parts], state[output.parts :]
            new += [lax.dynamic_update_index_in_dim(a, s, trip, 0) for a, s in zip(stacks, before, strict=False)]
        else:
            new += _merged(loop, output, state, parts, first)
    return new


def _merged(loop: Loop, output: Combine, state: Sequence[Any], parts: Sequence[Any], first: Any) -> list[Any]:
    """The state of a combined output after one more chunk; the part with the lower indices comes first."""
    combiner = COMBINERS.get(output.combiner)
    parts = [combiner.prepare(p) for p in parts]
    both = (parts, state) if loop.reverse else (state, parts)
    merged = combiner.merge(output.context, *both)
    if combiner.identity is None and first is not False:
        merged = [lax.select(jnp.broadcast_to(first, m.shape), p, m) for p, m in zip(parts, merged, strict=True)]
    return [lax.convert_element_type(m, s.dtype) for m, s in zip(merged, state, strict=True)]
