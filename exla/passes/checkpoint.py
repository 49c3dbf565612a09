"""The checkpoint pass: what waits for the backward pass is computed again there, segment by segment.

    rewrite: a = f(x); b = g(a); c = h(b); dc = h'(b); db = g'(a) dc      everything waits for the gradient
         ->  a = f(x); b = g(a); c = h(b); dc = h'(b); b' = g(a); ...     a waits; b is computed again of it

A gradient reads, in reverse, what its forward pass has computed. Where that cannot be cut, as each step of it mixes all
that there is (Fourier transforms, stencils along all axes, gates on every qubit), it can be computed again: the forward
pass is taken as segments, one after the other. Of each is kept what later ones begin with, and what else of it is read
later is computed again where the first of it is read. With as many segments as there are values in each, both take the
root of what all values would (Chen et al. 2016, *Training deep nets with sublinear memory cost*). That costs one more
forward pass at most. It is what `jax.checkpoint` does around each of some layers, here for any program, and for as much
of it as the limit asks for.

What is computed again is made to depend on something that is computed late (`not_before`): compilers would take it for
what they have already. It may have another last bit than before, so that where something kept was decided by a number
(an index, a truth value) that number is kept, too; what is decided and used in one segment is decided again there. What
is compared for equality is kept: the gradient of a maximum would find none that is as large.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from exla import _compat
from exla.errors import ReplayMiss
from exla.ir.check import check
from exla.ir.memory import Held
from exla.ir.numbering import renamed
from exla.ir.primitives import EXCHANGING, FUSIBLE, named
from exla.ir.program import Program, value_bytes, variables
from exla.passes.decisions import Checkpoint
from exla.passes.opaque import has_numbers, not_before
from exla.passes.paths import at_site
from exla.passes.rewritten import applied
from exla.passes.rounding import is_inexact
from exla.passes.steady import compared_in

COUNTS = (2, 3, 4, 6, 8, 12, 16, 24, 32)
"""How many segments are tried."""
EARLY = 1 / 2
"""Share of what a segment may compute for later, after which it may end, where little is handed on."""
KEPT = EXCHANGING | named("argmax argmin sort top_k")
"""What is not computed again: what devices exchange, and what is chosen and stored."""
STEPS = named("floor ceil round sign is_finite")
"""What jumps where its operand changes by a last bit; conversions to integers and comparisons do, too."""


@dataclass(frozen=True, kw_only=True)
class Segment:
    """What is computed again of a part of a program.

    Attributes:
      positions: the equations, in order.
      wanted: what is read late of what they compute.
      reads: what they read that is kept.
    """

    positions: tuple[int, ...]
    wanted: frozenset[Any]
    reads: tuple[Any, ...]


def enumerate_checkpoints(held: Sequence[Held], small_bytes: int) -> Iterator[Checkpoint]:
    """Offer to compute again what waits at the peak, of ever shorter segments.

    Args:
      held: what is live at the peak, in one program or in several, one inside the other.
      small_bytes: values up to this size may wait.
    """
    by_path = defaultdict[Any, list[Held]](list)
    for item in held:
        if item.bytes > small_bytes and item.var in item.program.producers:
            by_path[item.path].append(item)
    for path, items in by_path.items():
        program = items[0].program
        waiting = [(program.producers[i.var], _last_reader(program, i.var), i.bytes) for i in items]
        at = _crossed(len(program.eqns), waiting)
        weights = [0] * (at + 1)
        for made_at, last, size in waiting:
            if made_at <= at < last:
                weights[made_at] += size
        handed = _handed_on(program, at, small_bytes)
        known = set[tuple[int, ...]]()
        for count in COUNTS:
            ends = _ends(weights, handed, sum(weights) / count)
            if ends and ends not in known:
                known.add(ends)
                yield Checkpoint(path=path, site=program.site(at), ends=ends, small_bytes=small_bytes)


def apply_checkpoint(program: Program, decision: Checkpoint) -> Program:
    """Replay a checkpoint.

    Raises:
      ReplayMiss: if nothing of that can be computed again.
    """

    def change(inner: Program, position: int) -> Program:
        before, names = _all_again(inner, position, _segments(inner, position, decision))
        if not before:
            raise ReplayMiss(f"{decision}: nothing that is read later can be computed again")
        return _spliced(inner, position, before, names)

    return at_site(program, decision, change)


def _crossed(count: int, waiting: Iterable[tuple[int, int, int]]) -> int:
    """The first of some equations at which most of what waits, from one to another, has been computed."""
    steps = [0] * (count + 1)
    for made_at, last, size in waiting:
        if last > made_at:
            steps[made_at] += size
            steps[last] -= size
    course = list(itertools.accumulate(steps[:-1]))
    return max(range(count), key=course.__getitem__)


def _last_reader(program: Program, var: Any) -> int:
    """The last equation that reads a value, or what may be computed of it where that is read; -1 where none does."""
    last, seen, stack = -1, set[Any](), [var]
    while stack:
        read = stack.pop()
        if read in seen:
            continue
        seen.add(read)
        for position, _ in program.consumers.get(read, ()):
            last = max(last, position)
            if program.eqns[position].primitive.name in FUSIBLE:
                stack += program.eqns[position].outvars
    return last


def _late_readers(program: Program, var: Any, at: int) -> list[int]:
    return [position for position, _ in program.consumers.get(var, ()) if position > at]


def _handed_on(program: Program, at: int, small_bytes: int) -> list[int]:
    """For each position up to a last one, bytes that equations before it hand on to those from there to the last."""
    steps = [0] * (at + 2)
    for i in range(at):
        for var in program.eqns[i].outvars:
            last = max((p for p, _ in program.consumers.get(var, ()) if p <= at), default=i)
            if last > i and value_bytes(var) > small_bytes:
                steps[i + 1] += value_bytes(var)
                steps[last + 1] -= value_bytes(var)
    return list(itertools.accumulate(steps))


def _ends(weights: Sequence[int], handed: Sequence[int], most: float) -> tuple[int, ...]:
    """Where segments end that compute so much for later, at most, and each hands on little; the last is left open."""
    ends, begin = list[int](), 0
    while True:
        total, best = 0.0, None
        for position in range(begin, len(weights)):
            if total >= EARLY * most and (best is None or handed[position] < handed[best]):
                best = position
            total += weights[position]
            if total > most and best is not None:
                break
        else:
            return tuple(ends)
        begin = best
        ends.append(best)


def _segments(program: Program, at: int, decision: Checkpoint) -> Iterator[Segment]:
    """What is computed again, the last segment first."""
    ends = decision.ends
    if not ends or list(ends) != sorted(set(ends)) or ends[0] < 1 or ends[-1] > at:
        raise ReplayMiss(f"{decision}: these are no segments of the equations up to {at}")
    kept = set(variables(program.outvars)) | compared_in(program)
    for i in range(ends[-1]):
        eqn = program.eqns[i]
        if eqn.effects or eqn.primitive.name in KEPT:
            kept.update(eqn.outvars)
        kept.update(v for v in eqn.outvars if _is_small(program, v, decision.small_bytes))
    kept |= _decided_by(program, kept)
    for begin, end in reversed(list(itertools.pairwise((0, *ends)))):
        segment = _again(program, range(begin, end), at, kept)
        kept |= set(segment.reads) | _decided_by(program, segment.reads)
        yield segment


def _is_small(program: Program, var: Any, small_bytes: int) -> bool:
    """Whether a value is to be kept because it is small, and with it what has decided it."""
    return value_bytes(var) <= small_bytes and all(
        value_bytes(number) <= small_bytes for number in _decided_by(program, (var,))
    )


def _decided_by(program: Program, kept: Iterable[Any]) -> set[Any]:
    """The numbers that decide what integers and truth values that are kept are.

    They are kept as well: computed again, a number may have another last bit, and be beyond what it was found to be.
    """
    found, seen, stack = set[Any](), set[Any](), [v for v in kept if v in program.producers]
    while stack:
        var = stack.pop()
        position = program.producers.get(var)
        if var in seen or position is None:
            continue
        seen.add(var)
        is_step = program.eqns[position].primitive.name in STEPS
        if is_inexact(var) and not is_step:
            continue
        for operand in program.operands[position]:
            if is_inexact(operand):
                found.add(operand)
            else:
                stack.append(operand)
    return found


def _again(program: Program, span: range, at: int, kept: Set[Any]) -> Segment:
    """What is computed again of some equations."""

    def is_at_hand(var: Any) -> bool:
        return var in kept or program.producers.get(var, -1) not in span

    late = [v for i in span for v in program.eqns[i].outvars if not is_at_hand(v) and _late_readers(program, v, at)]
    found, reads, stack = set[int](), dict[Any, None](), list(late)
    while stack:
        position = program.producers[stack.pop()]
        if position in found:
            continue
        found.add(position)
        for var in program.operands[position]:
            if is_at_hand(var):
                reads[var] = None
            else:
                stack.append(var)
    return Segment(positions=tuple(sorted(found)), wanted=frozenset(late), reads=tuple(reads))


def _all_again(program: Program, at: int, segments: Iterable[Segment]) -> tuple[dict[int, list[Any]], dict[Any, Any]]:
    """What computes segments again before late equations, and from what was computed before to what that makes.

    A segment that is so near that nothing tells before from after stays as it is.
    """
    before, names = dict[int, list[Any]](), dict[Any, Any]()
    for segment in segments:
        first = min((p for v in segment.wanted for p in _late_readers(program, v, at)), default=None)
        late = None if first is None else _late(program, at, first, segment.wanted)
        if first is not None and late is not None:
            eqns, made = _computed_again(program, segment, late)
            before.setdefault(first, []).extend(eqns)
            names.update((v, made[v]) for v in segment.wanted)
    return before, names


def _spliced(program: Program, at: int, before: Mapping[int, Sequence[Any]], names: Mapping[Any, Any]) -> Program:
    """The program with equations before others, of which the late ones read what those compute."""
    eqns = list[Any]()
    for position, eqn in enumerate(program.eqns):
        eqns += before.get(position, ())
        eqns.append(renamed(eqn, names) if position > at else eqn)
    return check(Program(jaxpr=program.jaxpr.replace(eqns=eqns), consts=program.consts))


def _late(program: Program, at: int, reader: int, wanted: Iterable[Any]) -> Any:
    """Something that is computed after what is wanted and before an equation, if possible of what it reads; or None."""
    depths = _depths(program)
    least = max(depths[v] for v in wanted)

    def tells(var: Any) -> bool:
        return at < program.producers.get(var, -1) < reader and depths[var] > least and has_numbers(var.aval)

    made = (v for i in range(reader - 1, at, -1) for v in program.eqns[i].outvars if not _compat.is_drop(v))
    return next(filter(tells, itertools.chain(_read_by(program, at, reader), made)), None)


def _read_by(program: Program, at: int, reader: int) -> Iterator[Any]:
    """What an equation reads, and what the integers and truth values that it reads are made of, the latest first.

    Each value once, of those that are computed after `at`.
    """
    read = defaultdict[int, list[Any]](list)  # position -> what is read of what is computed there

    def note(position: int) -> None:
        for v in program.operands[position]:
            read[program.producers.get(v, -1)].append(v)

    note(reader)
    for position in range(reader - 1, at, -1):
        asked = list(dict.fromkeys(reversed(read.pop(position, []))))
        yield from filter(is_inexact, asked)
        if not all(map(is_inexact, asked)):
            note(position)


def _depths(program: Program) -> dict[Any, int]:
    """How many equations at least are computed before each value, one after the other."""
    if "depths" not in program.known:
        depths = dict[Any, int](dict.fromkeys(program.invars, 0))
        for i, eqn in enumerate(program.eqns):
            depth = 1 + max((depths[v] for v in program.operands[i]), default=-1)
            depths.update(dict.fromkeys(eqn.outvars, depth))
        program.known["depths"] = depths
    return program.known["depths"]


def _computed_again(program: Program, segment: Segment, late: Any) -> tuple[list[Any], dict[Any, Any]]:
    """The equations that compute a segment again, once something late is there; and the values that they make.

    Only an operand that has elements on the device can wait: what is made of the others is what was there before.
    """
    eqns, made, gates = list[Any](), dict[Any, Any](), dict[Any, Any]()
    for position in segment.positions:
        eqn = program.eqns[position]
        operands = program.operands[position]
        if not any(v in made or v in gates for v in operands):
            fitting = [v for v in operands if value_bytes(v) and not _compat.is_extended(v.aval.dtype)]
            if fitting:
                var = min(fitting, key=value_bytes)
                added, gates[var] = applied(not_before, var, late, aval=var.aval)
                eqns += added
        eqn = renamed(eqn, gates | made)
        outvars = [v if _compat.is_drop(v) else _compat.Var(v.aval) for v in eqn.outvars]
        made.update(zip(program.eqns[position].outvars, outvars, strict=True))
        eqns.append(eqn.replace(outvars=outvars))
    return eqns, made
