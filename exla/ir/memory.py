"""Projected memory: what the compiler will probably need, from liveness over the program.

Two models of one program:

* *fused*: element-wise values whose every consumer can be computed in the same loop are never materialised, as
  XLA's fusion does; reshapes are views; an element-wise result may take the place of an operand that dies.
* *unfused*: every value is materialised. This is an upper bound on what a fusion can hold inside itself.

Both know the habits of a compiler where they are told (`Storing`): those of XLA:CPU, of XLA:GPU or of TPUs'. Which
values these leave to be stored is for `exla.ir.fusing`, as how many bytes for `exla.ir.storing`.

`projected_bytes` is arguments plus the fused peak. It ranks candidates; what is believed is the compiler's
figure. Values inside a chunk loop are those of its body, once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from exla import _compat
from exla._compat import Literal
from exla.ir.fusing import roots
from exla.ir.primitives import ELEMENTWISE, FUSIBLE, IN_PLACE, REDUCERS, SCATTERS, VIEWS
from exla.ir.products import copied_bytes, is_exact
from exla.ir.program import Program, body_program, value_bytes, variables
from exla.ir.split_products import padded_depth
from exla.ir.storing import Storing, stored_bytes

Path = tuple[tuple[int, int], ...]
"""(position, which of its bodies) of each equation around a program."""

PIECE, PIECE_BYTES = 8, 1 << 20
"""Rows of an `exla_unless` that fall back together at most, and the size that the largest value may then have."""

PARTS = 3
"""Results that TPUs store of a product in more than default precision, which is a sum of products of bfloat16."""
ANYWHERE = Storing()
"""What is assumed where nothing is said of the compiler."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """One value that is live at the peak.

    Attributes:
      program: the program that computes or is given it.
      path: the way of (position, body) to that program.
      var: the value.
      bytes: its size.
      at: the equation of that program at which the peak is.
    """

    program: Program
    path: Path
    var: Any
    bytes: int
    at: int = 0


@dataclass(frozen=True, kw_only=True)
class Peak:
    """The projected peak of a program.

    Attributes:
      arguments_bytes: constants and arguments, live throughout.
      outputs_bytes: the outputs.
      bytes: arguments plus the largest sum of live values.
      temporary_bytes: the same without the arguments.
      held: the values that are live at the peak, largest first.
      at: the equation at which it is.
    """

    arguments_bytes: int
    outputs_bytes: int
    bytes: int
    held: tuple[Held, ...]
    at: int = 0

    @property
    def temporary_bytes(self) -> int:
        return self.bytes - self.arguments_bytes


def project(program: Program, storing: Storing = ANYWHERE) -> Peak:
    """Project the peak memory of a program.

    Args:
      program: the program.
      storing: what the compiler stores of it.

    Returns:
      The peak and what holds it.
    """
    inside = _inside(program, storing)
    arguments = [Held(program=program, path=(), var=v, bytes=value_bytes(v), at=inside.at) for v in program.invars]
    return replace(inside, held=tuple(sorted([*inside.held, *arguments], key=lambda h: -h.bytes)))


def _inside(program: Program, storing: Storing, spare: Sequence[Any] = ()) -> Peak:
    """The peak of a program, held by what it computes; kept, as candidates share the loops that no split has changed.

    Args:
      program: the program.
      storing: as of `project`.
      spare: inputs that may be overwritten, counted by the caller: the state that a chunk loop carries.
    """
    key = ("peak", storing, *spare)
    if key not in program.known:
        program.known[key] = _walked(program, storing, spare)
    return program.known[key]


def _walked(program: Program, storing: Storing, spare: Sequence[Any]) -> Peak:
    read_from = roots(program, storing)
    arguments = set(program.invars)
    outputs = {v for v in program.outvars if not isinstance(v, Literal)}
    last: dict[Any, int] = {}
    end = len(program.eqns)
    for i, eqn in enumerate(program.eqns):
        read = [root for v in variables(eqn.invars) for root in read_from[v]]
        if storing.recomputes and eqn.primitive.name in REDUCERS:  # run as soon as what they read is there
            at = max((program.producers.get(root, -1) for root in read), default=-1)
            last.update((root, max(last.get(root, at), at)) for root in read)
        else:
            last.update((root, i) for root in read)
    last.update((root, end) for v in outputs for root in read_from.get(v, (v,)))
    live: dict[Any, int] = {}
    on_chip: dict[Any, int] = {}
    best = best_at = 0
    best_held: tuple[Held, ...] = ()
    total = 0
    for i, eqn in enumerate(program.eqns):
        dying = [v for v in live if last.get(v, i) <= i]
        inner = _inner_peak(eqn, i, storing)
        made = {v: stored_bytes(program, v, storing) for v in eqn.outvars if read_from.get(v) == (v,)}
        if storing.fused and eqn.primitive.name in IN_PLACE:
            _overwrite(eqn, made, [v for v in spare if last.get(v) == i])
        if storing.chip_bytes:
            freed = _reused(program, eqn, made, on_chip, [v for v in dying if v in on_chip], storing)
            _keep_on_chip(made, on_chip, outputs, storing.chip_bytes + freed)
        reused = _reused(program, eqn, made, live, dying, storing) if storing.fused else 0
        live.update(made)
        total += sum(made.values())
        now = total - reused + _beside(program, eqn, made, storing) + (inner.temporary_bytes if inner else 0)
        if now > best:
            best, best_at = now, i
            here = (Held(program=program, path=(), var=v, bytes=b, at=i) for v, b in live.items() if b)
            best_held = (*here, *(inner.held if inner else ()))
        for v in [*dying, *(v for v in made if last.get(v, -1) <= i)]:
            total -= live.pop(v, 0)
            on_chip.pop(v, None)
    arguments_bytes = sum(value_bytes(v) for v in arguments)
    padding = sum(stored_bytes(program, v, storing) for v in arguments) - arguments_bytes
    return Peak(
        arguments_bytes=arguments_bytes,
        outputs_bytes=sum(value_bytes(v) for v in outputs),
        bytes=arguments_bytes + padding + best,
        held=tuple(sorted(best_held, key=lambda h: -h.bytes)),
        at=best_at,
    )


def _keep_on_chip(made: dict[Any, int], on_chip: dict[Any, int], outputs: set[Any], chip_bytes: int) -> None:
    """Let results live on the chip as far as there is room, whoever comes first."""
    for var, size in made.items():
        if var not in outputs and sum(on_chip.values()) + size <= chip_bytes:
            on_chip[var], made[var] = size, 0


def _reused(
    program: Program, eqn: Any, made: dict[Any, int], live: dict[Any, int], dying: Sequence[Any], storing: Storing
) -> int:
    """Bytes of results that take the place of values that are not read again."""
    if eqn.primitive.name not in FUSIBLE:
        return 0
    if not storing.recomputes:
        return min(sum(live[v] for v in dying), sum(made.values()))
    if eqn.primitive.name not in ELEMENTWISE or any(_is_cut(program, v, storing) for v in made):
        return 0
    return sum(b for v, b in made.items() if any(live[d] >= b and d.aval.shape == v.aval.shape for d in dying))


def _beside(program: Program, eqn: Any, made: dict[Any, int], storing: Storing) -> int:
    """What a matrix product stores beside its result: what it makes of its operands, or sums of parts of it."""
    if eqn.primitive.name != "dot_general":
        return 0
    if storing.packs:
        return _packed_bytes(program, eqn)
    if storing.joins:
        return (PARTS - 1) * sum(made.values()) if is_exact(eqn) else 0
    if not padded_depth(eqn, storing.cutting):
        return 0
    return sum(value_bytes(v) for v in variables(eqn.invars) if not _is_made_longer(program, v))


def _is_cut(program: Program, var: Any, storing: Storing) -> bool:
    """Whether a value is padded for a product that reads it, so that it takes the place of no other."""
    users = (program.eqns[i] for i, _ in program.consumers.get(var, ()))
    return any(u.primitive.name == "dot_general" and padded_depth(u, storing.cutting) > 0 for u in users)


def _is_made_longer(program: Program, var: Any) -> bool:
    """Whether an operand is padded as it is computed, so that no copy of it is made for that."""
    position = program.producers.get(var)
    while position is not None and program.eqns[position].primitive.name in VIEWS:
        position = program.producers.get(program.eqns[position].invars[0])
    return position is not None and program.eqns[position].primitive.name in FUSIBLE


def largest_bytes(program: Program, outputs: frozenset[Any] | None = None) -> int:
    """Bytes of the largest value that an equation computes, in bodies too, fused or not; outputs do not count."""
    outputs = frozenset(variables(program.outvars)) if outputs is None else outputs
    sizes = [value_bytes(v) for eqn in program.eqns for v in eqn.outvars if v not in outputs]
    for eqn in program.eqns:
        if eqn.primitive.name == "exla_split":
            sizes.append(largest_bytes(eqn.params["loop"].body, frozenset()))
        sizes += [largest_bytes(Program(jaxpr=_open(b.jaxpr)), frozenset()) for b in _compat.bodies(eqn)]
    return max(sizes, default=0)


def _overwrite(eqn: Any, made: dict[Any, int], spare: Sequence[Any]) -> None:
    """Let results take the place of operands of their size that may be overwritten and are not read again."""
    free = [v for v in spare if v in eqn.invars]
    for var, size in made.items():
        if free and value_bytes(free[0]) == size:
            made[var] = 0
            free.pop(0)


def _packed_bytes(program: Program, eqn: Any) -> int:
    """What a matrix product makes of its operands: all are packed, those that lie in another order copied before."""
    return copied_bytes(program, eqn) + sum(map(value_bytes, eqn.invars))


def _inner_peak(eqn: Any, position: int, storing: Storing) -> Peak | None:
    """Peak inside an equation that runs programs of its own: slices and temporaries of one trip."""
    if eqn.primitive.name == "exla_split":
        loop = eqn.params["loop"]
        body = _inside(loop.body, storing, loop.states(loop.body))
        extra = sum(value_bytes(v) for v, _, p in loop.inputs(loop.body) if p is not None)
        held = _below(position, 0, body)
        return Peak(arguments_bytes=0, outputs_bytes=0, bytes=body.temporary_bytes + extra, held=held)
    if eqn.primitive.name in REDUCERS | SCATTERS:
        return None
    bodies = _compat.bodies(eqn)
    jaxprs = [body.jaxpr for body in bodies] or _compat.inner_jaxprs(eqn)
    peaks = [_inside(Program(jaxpr=_open(j)), storing) for j in jaxprs]
    if not peaks:
        return None
    which, largest = max(enumerate(peaks), key=lambda pair: pair[1].temporary_bytes)
    shares = _compat.shares(eqn)  # each of so many devices has one
    largest = replace(largest, bytes=largest.bytes * shares, arguments_bytes=largest.arguments_bytes * shares)
    carried = sum(value_bytes(v) for v in eqn.outvars)
    held = _below(position, which, largest) if bodies and all(map(body_program, bodies)) else ()
    if eqn.primitive.name == "shard_map":  # its results are counted around it
        inside = max(largest.temporary_bytes - carried, 0)
        return Peak(arguments_bytes=0, outputs_bytes=0, bytes=inside, held=held)
    if eqn.primitive.name in VIEWS:  # `exla_unless`: its results are there already, and what it holds is cut with them
        piece = piece_of(eqn)
        share = 1.0 if piece is None else piece[1] / eqn.invars[0].aval.shape[piece[0]]
        inside = math.ceil(max(largest.temporary_bytes - carried, 0) * share)
        return replace(largest, bytes=inside, arguments_bytes=0, held=())
    return Peak(
        arguments_bytes=0,
        outputs_bytes=0,
        bytes=largest.temporary_bytes + carried,
        held=held,
    )


def piece_of(eqn: Any) -> tuple[int, int] | None:
    """The axis of its mask along which an `exla_unless` falls back in pieces, and their length; None where at once."""
    shape = eqn.invars[0].aval.shape
    axis = next((axis for axis, size in enumerate(shape) if size > 1), None)
    if axis is None:
        return None
    made = (value_bytes(v) for inner in eqn.params["otherwise"].jaxpr.eqns for v in inner.outvars)
    length = max(min(PIECE, PIECE_BYTES * shape[axis] // max(made, default=1)), 1)
    return (axis, length) if length < shape[axis] else None


def _below(position: int, which: int, inner: Peak) -> tuple[Held, ...]:
    """What holds the peak of a body, seen from the program around it."""
    return tuple(replace(held, path=((position, which), *held.path)) for held in inner.held)


def _open(jaxpr: Any) -> Any:
    return _compat.constants_as_inputs(jaxpr) if jaxpr.constvars else jaxpr
