"""Projected memory: what the compiler will probably need, from liveness over the program.

Two models of one program:

* *fused*: element-wise values whose every consumer can be computed in the same loop are never materialised, as
  XLA's fusion does; reshapes are views; an element-wise result may take the place of an operand that dies.
* *unfused*: every value is materialised. This is an upper bound on what a fusion can hold inside itself.

Both know the habits of a compiler where they are told (`Storing`): those of XLA:CPU, of XLA:GPU or of TPUs'. Which
values these leave to be stored is for `exla.ir.fusing`, as how many bytes for `exla.ir.storing`.

`projected_bytes` is arguments plus the fused peak, in the order of `exla.ir.ordering`, plus the most that a library
allocates (`exla.ir.beside`), plus the code where that is counted (`exla.ir.code`). Results have memory throughout, in
which others fit before they are computed. It ranks candidates; what is believed is the compiler's figure. Values inside
a chunk loop are those of its body, once.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from exla import _compat
from exla.ir.asked import is_asked, is_asked_once, is_returned
from exla.ir.beside import beside_bytes, is_normalised, libraries_bytes
from exla.ir.blocks import block_of, parts_of
from exla.ir.code import added, own_amounts
from exla.ir.fusing import Fused, fused, is_reduced_apart
from exla.ir.ordering import is_computed, order_of
from exla.ir.primitives import ELEMENTWISE, FUSIBLE, IN_PLACE, REDUCERS, SCATTERS, VIEWS, named
from exla.ir.products import flat_operand, flat_result, is_outer
from exla.ir.program import Program, aval_bytes, body_program, program_of, value_bytes, variables
from exla.ir.sliced import is_sliced
from exla.ir.split_products import padded_depth
from exla.ir.states import LOOPS, first_of_state, renewed, uncopied
from exla.ir.storing import Storing, stored_bytes

SIMPLE = (FUSIBLE - VIEWS) | REDUCERS | SCATTERS | named("dot_general gather")
"""Primitives that run no programs of their own, or none that stores anything."""

Path = tuple[tuple[int, int], ...]
"""(position, which of its bodies) of each equation around a program."""

PIECE, PIECE_BYTES = 8, 1 << 20
"""Rows of an `exla_unless` that fall back together at most, and the size that the largest value may then have."""

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
      arguments_bytes: constants and arguments that are read, live throughout.
      outputs_bytes: the outputs.
      bytes: arguments plus the largest sum of live values.
      temporary_bytes: the same without the arguments and the code.
      libraries: bytes that libraries allocate, of which the compiler's buffers know nothing, where one of XLA:CPU's two
        for matrix products multiplies all matrices, and where the other does.
      code_bytes: the part that the program itself takes, where that is counted.
      held: the values that are live at the peak, largest first.
      at: the equation at which it is.
      course: what is live, libraries' included, while each equation runs.
    """

    arguments_bytes: int
    outputs_bytes: int
    bytes: int
    held: tuple[Held, ...]
    at: int = 0
    libraries: tuple[int, int] = (0, 0)
    code_bytes: int = 0
    course: tuple[int, ...] = field(default=(), repr=False)

    @property
    def library_bytes(self) -> int:
        """The part of `bytes` that libraries allocate, under the better of the compile options."""
        return min(self.libraries)

    @property
    def temporary_bytes(self) -> int:
        return self.bytes - self.arguments_bytes - self.code_bytes

    def called(self, library_bytes: int) -> Peak:
        """The same where libraries allocate so much, as under some compile options."""
        total = self.bytes - self.library_bytes + library_bytes
        return replace(self, bytes=total, libraries=(library_bytes, library_bytes))

    def beyond(self, limit_bytes: int, positions: Iterable[int] | None = None) -> int:
        """Bytes above a limit, added up over some or all equations: of programs of one peak, what is left to be cut."""
        room = limit_bytes - self.arguments_bytes - self.code_bytes
        course = self.course if positions is None else (self.course[i] for i in positions)
        return sum(b - room for b in course if b > room)


def project(program: Program, storing: Storing = ANYWHERE) -> Peak:
    """Project the peak memory of a program.

    Args:
      program: the program.
      storing: what the compiler stores of it.

    Returns:
      The peak and what holds it.
    """
    inside = _inside(program, storing, is_whole=True)
    arguments = [Held(program=program, path=(), var=v, bytes=value_bytes(v), at=inside.at) for v in program.arguments]
    code = 0 if storing.code is None else storing.code.bytes(code_amounts(program, storing))
    held = tuple(sorted([*inside.held, *arguments], key=lambda h: -h.bytes))
    return replace(inside, bytes=inside.bytes + code, code_bytes=code, held=held)


def code_amounts(program: Program, storing: Storing) -> Mapping[str, float]:
    """How much code of each kind (`exla.ir.code.KINDS`) a program has: one program, with all that is in it."""
    return added([{"program": 1}, _inside_code(program, storing)])


def _inside_code(program: Program, storing: Storing) -> Mapping[str, float]:
    """The same of a body; kept, as its peak is."""
    key = ("code", storing)
    if key not in program.known:
        inner = (_inside_code(body, storing) for eqn in program.eqns for body in programs_of(eqn))
        program.known[key] = added([own_amounts(program, fused_of(program, storing)), *inner])
    return program.known[key]


def fused_of(program: Program, storing: Storing) -> Fused:
    """What a program's fusions store and read; kept where both its peak and its code are made of it."""
    if storing.code is None:
        return fused(program, storing)
    key = ("fused", storing)
    if key not in program.known:
        program.known[key] = fused(program, storing)
    return program.known[key]


def programs_of(eqn: Any) -> list[Program]:
    """The programs that an equation runs."""
    if eqn.primitive.name == "exla_split":
        return [eqn.params["loop"].body]
    if eqn.primitive.name in SIMPLE:
        return []
    jaxprs = [body.jaxpr for body in _compat.bodies(eqn)] or _compat.inner_jaxprs(eqn)
    return list(map(_opened, jaxprs))


def _inside(program: Program, storing: Storing, spare: Sequence[Any] = (), is_whole: bool = False) -> Peak:
    """The peak of a program, held by what it computes; kept, as candidates share the loops that no split has changed.

    Args:
      program: the program.
      storing: as of `project`.
      spare: inputs that may be overwritten, counted by the caller: the state that a chunk loop carries; or outputs that
        take their place.
      is_whole: whether this is no body of another program.
    """
    key = ("peak", storing, is_whole, *spare)
    if key not in program.known:
        program.known[key] = _walked(program, storing, spare, is_whole)
    return program.known[key]


def _walked(program: Program, storing: Storing, spare: Sequence[Any], is_whole: bool) -> Peak:
    fusions = fused_of(program, storing)
    order = order_of(program, fusions, storing)
    outputs = dict.fromkeys(variables(program.outvars))
    last = _last_readers(program, fusions, order, storing)
    live: dict[Any, int] = {}
    on_chip: dict[Any, int] = {}
    best = best_at = most = 0
    libraries = (0, 0)
    best_live: dict[Any, int] = {}
    best_inner: Peak | None = None
    total = 0
    course = [0] * len(program.eqns)
    waiting = {v: stored_bytes(program, v, storing) for v in outputs if v in fusions.stored} if is_whole else {}
    whens = _whens(program, order, waiting, storing) if waiting else {}
    waiting_bytes = sum(waiting.values())
    ends: list[list[Any]] = [[] for _ in range(len(order) + 1)]
    for v, when in last.items():
        ends[when].append(v)
    for when, i in enumerate(order):
        eqn = program.eqns[i]
        dying = [v for v in ends[when] if v in live]
        inner = _inner_peak(eqn, i, storing, _instead(program, eqn, fusions, live, storing))
        made = {v: stored_bytes(program, v, storing) for v in eqn.outvars if v in fusions.stored}
        if storing.recomputes:
            made.update((v, 0) for v in made if v in spare)
        if storing.fused and eqn.primitive.name in IN_PLACE:
            _overwrite(eqn, made, [v for v in spare if last.get(v) == when])
        if storing.chip_bytes:
            freed = _reused(program, eqn, made, on_chip, [v for v in dying if v in on_chip], storing)
            _keep_on_chip(made, on_chip, outputs, is_whole, storing.chip_bytes + freed)
        reused = _reused(program, eqn, made, live, dying, storing) if storing.fused else 0
        live.update(made)
        for v in made:
            waiting_bytes -= waiting.pop(v, 0)
        total += sum(made.values())
        now = total - reused + beside_bytes(program, eqn, made, storing, storing.chip_bytes - sum(on_chip.values()))
        calls = libraries_bytes(program, eqn, storing, is_outside=is_whole) if storing.threads else (0, 0)
        if inner is not None:
            now += inner.temporary_bytes - inner.library_bytes
            calls = _larger(calls, inner.libraries)
        libraries, called = _larger(libraries, calls), min(calls)
        if waiting_bytes and now + waiting_bytes > best:
            now += _unused(waiting, live, last, whens)
        best = max(best, now)
        course[i] = now + called
        if now + called > most:
            most, best_at = now + called, i
            best_live, best_inner = dict(live), inner
        for v in [*dying, *(v for v in made if last.get(v, -1) <= when)]:
            total -= live.pop(v, 0)
            on_chip.pop(v, None)
    held = [Held(program=program, path=(), var=v, bytes=b, at=best_at) for v, b in best_live.items() if b]
    held += best_inner.held if best_inner is not None else ()
    arguments_bytes = sum(value_bytes(v) for v in program.arguments)
    padding = sum(stored_bytes(program, v, storing) for v in program.arguments) - arguments_bytes
    return Peak(
        arguments_bytes=arguments_bytes,
        outputs_bytes=sum(value_bytes(v) for v in outputs),
        bytes=arguments_bytes + padding + best + min(libraries),
        libraries=libraries,
        held=tuple(sorted(held, key=lambda h: -h.bytes)),
        at=best_at,
        course=tuple(course),
    )


def _larger(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return max(one[0], other[0]), max(one[1], other[1])


def _last_readers(program: Program, fusions: Fused, order: Sequence[int], storing: Storing) -> dict[Any, int]:
    """When each stored value is read last, as a place in the order."""
    last: dict[Any, int] = {}
    made: dict[Any, int] = {}
    for when, i in enumerate(order):
        eqn, read = program.eqns[i], fusions.reads[i]
        if storing.joins and not is_computed(eqn, fusions):
            continue  # what computes it in its place reads for it
        made.update((v, when) for v in eqn.outvars)
        if storing.recomputes and eqn.primitive.name in REDUCERS:  # run as soon as what they read is there
            at = max((made.get(root, 0) for root in read), default=0)
            last.update((root, max(last.get(root, at), at)) for root in read)
        else:
            last.update((root, when) for root in read)
    last.update((root, len(order)) for root in fusions.outputs)
    return last


def _whens(program: Program, order: Sequence[int], outputs: Iterable[Any], storing: Storing) -> dict[Any, int]:
    """The place in the order until which the memory of each output is free for others, its operands too if it may."""
    places = {i: when for when, i in enumerate(order)}
    found = {}
    for output in outputs:
        position = program.producers[output]
        eqn = program.eqns[position]
        in_place = eqn.primitive.name in ELEMENTWISE
        if storing.recomputes and eqn.primitive.name in LOOPS:
            in_place = eqn.outvars.index(output) not in _compat.stacked_by_scan(eqn)
        found[output] = places[position] if in_place else places[position] - 1
    return found


def _unused(
    waiting: Mapping[Any, int], live: Mapping[Any, int], last: Mapping[Any, int], whens: Mapping[Any, int]
) -> int:
    """Bytes of outputs still to be computed that have memory already, in which nothing else is stored till then.

    Of several as large the one that is computed first comes first, whatever order they are in.
    """
    latest = max(whens[output] for output in waiting)
    free = [(b, last.get(v, -1)) for v, b in live.items() if b and last.get(v, -1) <= latest]
    free.sort(key=lambda pair: -pair[0])
    unused, first = 0, 0  # what is before the first is too large for what is left
    for output, size in sorted(waiting.items(), key=lambda pair: (-pair[1], whens[pair[0]])):
        while first < len(free) and free[first][0] > size:
            first += 1
        until = whens[output]
        inside = next((k for k in range(first, len(free)) if free[k][1] <= until), None)
        unused += size - (free.pop(inside)[0] if inside is not None else 0)
    return unused


def _keep_on_chip(
    made: dict[Any, int], on_chip: dict[Any, int], outputs: Collection[Any], is_whole: bool, chip_bytes: int
) -> None:
    """Let values live on the chip as far as there is room, whoever comes first; what a loop carries is there twice."""
    for var, size in made.items():
        if is_whole and var in outputs:
            continue
        if sum(on_chip.values()) + (2 if var in outputs else 1) * size <= chip_bytes:
            on_chip[var], made[var] = size, 0


def _reused(
    program: Program, eqn: Any, made: dict[Any, int], live: dict[Any, int], dying: Sequence[Any], storing: Storing
) -> int:
    """Bytes of results that take the place of values that are not read again."""
    if storing.recomputes and eqn.primitive.name in LOOPS:  # a loop begins with what its state is then written over
        state = eqn.outvars[: len(eqn.outvars) - len(_compat.stacked_by_scan(eqn))]
        begun = zip(state, eqn.invars[first_of_state(eqn) :], strict=False)
        return sum(made[v] for v, start in begun if made.get(v, 0) and start in dying and live[start] == made[v])
    if eqn.primitive.name not in FUSIBLE:
        return 0
    if is_asked_once(program, eqn):  # the branch makes its results in their place
        return sum(made.get(v, 0) for v, cheap in zip(eqn.outvars, eqn.invars[1:], strict=False) if cheap in dying)
    if not storing.recomputes and not storing.copies:
        return min(sum(live[v] for v in dying), sum(made.values()))
    if eqn.primitive.name not in ELEMENTWISE or any(_is_cut(program, v, storing) for v in made):
        return 0
    if storing.joins and any(is_sliced(program, v) for v in made):
        return 0
    if storing.cutting is not None and any(is_normalised(program, program.producers[v]) for v in made):
        return 0
    if not storing.joins:
        if any(is_returned(program, v) for v in made):
            return 0
        dying = [d for d in dying if not is_returned(program, d)]
    return sum(
        b
        for v, b in made.items()
        if any(live[d] >= b and _shape(program, d, storing) == _shape(program, v, storing) for d in dying)
    )


def _shape(program: Program, var: Any, storing: Storing) -> list[int]:
    """The shape that two values must have in common for one to take the other's place.

    XLA:CPU minds no axes of one. It stores what it multiplies as matrices, and so what only a product reads.
    """
    shape = var.aval.shape
    if not storing.copies:
        return list(shape)
    users = program.consumers.get(var, ())
    (at, side), made = users[0] if len(users) == 1 else (None, 0), program.producers.get(var)
    if made is not None and _is_product(program.eqns[made]):
        shape = flat_result(program.eqns[made])
    elif at is not None and _is_product(program.eqns[at]):
        shape = flat_operand(program.eqns[at], side)
        parts = parts_of(program.eqns[at]) if storing.blocks else None
        if parts is not None and parts.matrix == side:
            shape = [parts.parts, *shape]
    return [size for size in shape if size != 1]


def _is_product(eqn: Any) -> bool:
    return eqn.primitive.name == "dot_general" and not is_outer(eqn)


def _is_cut(program: Program, var: Any, storing: Storing) -> bool:
    """Whether a value is padded for a product that reads it, so that it takes the place of no other."""
    users = (program.eqns[i] for i, _ in program.consumers.get(var, ()))
    return any(u.primitive.name == "dot_general" and padded_depth(u, storing.cutting) > 0 for u in users)


def largest_bytes(program: Program, outputs: frozenset[Any] | None = None) -> int:
    """Bytes of the largest value that an equation computes, in bodies too, fused or not; outputs do not count."""
    outputs = frozenset(variables(program.outvars)) if outputs is None else outputs
    sizes = [value_bytes(v) for eqn in program.eqns for v in eqn.outvars if v not in outputs]
    for eqn in program.eqns:
        if eqn.primitive.name == "exla_split":
            sizes.append(largest_bytes(eqn.params["loop"].body, frozenset()))
        sizes += [largest_bytes(_opened(b.jaxpr), frozenset()) for b in _compat.bodies(eqn)]
    return max(sizes, default=0)


def _overwrite(eqn: Any, made: dict[Any, int], spare: Sequence[Any]) -> None:
    """Let results take the place of operands of their size that may be overwritten and are not read again."""
    free = [v for v in spare if v in eqn.invars]
    for var, size in made.items():
        if free and value_bytes(free[0]) == size:
            made[var] = 0
            free.pop(0)


def _inner_peak(eqn: Any, position: int, storing: Storing, instead: int = 0) -> Peak | None:
    """Peak inside an equation that runs programs of its own: slices and temporaries of one trip.

    `instead` is what `_instead` says of an `exla_unless`.
    """
    if eqn.primitive.name == "exla_split":
        loop = eqn.params["loop"]
        body = _inside(loop.body, storing, loop.states(loop.body))
        largest, beside = body, 0
        if loop.tail is not None and storing.breadth_first and loop.trips == 1:  # XLA makes no loop of that
            tail = _inside(loop.tail, storing, loop.states(loop.tail))
            beside = tail.temporary_bytes - tail.library_bytes
        elif loop.tail is not None and storing.blocks and _is_in_blocks_alone(loop.body, loop.tail):
            tail = _inside(loop.tail, storing, loop.states(loop.tail))
            largest = max(body, tail, key=lambda peak: peak.temporary_bytes)
        extra = sum(value_bytes(v) for v, _, p in loop.inputs(loop.body) if p is not None)
        besides = (aval for output in loop.outputs for aval in output.besides)
        extra += sum(map(aval_bytes, besides)) + (sum(map(aval_bytes, loop.copied)) if storing.threads else 0)
        held = _below(position, 0, body)
        size, libraries = largest.temporary_bytes + beside + extra, largest.libraries
        return replace(body, arguments_bytes=0, outputs_bytes=0, bytes=size, libraries=libraries, held=held)
    if eqn.primitive.name in SIMPLE:
        return None
    bodies = _compat.bodies(eqn)
    programs = programs_of(eqn)
    peaks = [_inside(body, storing, renewed(eqn, body) if storing.recomputes else ()) for body in programs]
    if not peaks:
        return None
    which, largest = max(enumerate(peaks), key=lambda pair: pair[1].temporary_bytes)
    shares = _compat.shares(eqn)  # each of so many devices has one
    largest = replace(
        largest,
        bytes=largest.bytes * shares,
        arguments_bytes=largest.arguments_bytes * shares,
        libraries=(largest.libraries[0] * shares, largest.libraries[1] * shares),
    )
    stacked = _compat.stacked_by_scan(eqn)  # written in place
    kept = uncopied(eqn, programs[-1], storing) if eqn.primitive.name in LOOPS and storing.recomputes else ()
    carried = sum(value_bytes(v) for k, v in enumerate(eqn.outvars) if k not in stacked and k not in kept)
    held = _below(position, which, largest) if bodies and all(map(body_program, bodies)) else ()
    if eqn.primitive.name == "shard_map":  # its results are counted around it
        inside = max(largest.temporary_bytes - carried, largest.library_bytes)
        return replace(largest, arguments_bytes=0, outputs_bytes=0, bytes=inside, held=held)
    if eqn.primitive.name in VIEWS:  # `exla_unless`: its results are there already, and what it holds is cut with them
        piece = piece_of(eqn)
        share = 1.0 if piece is None else piece[1] / eqn.invars[0].aval.shape[piece[0]]
        inside = math.ceil(max(largest.temporary_bytes - carried + instead, 0) * share)
        libraries = (min(largest.libraries[0], inside), min(largest.libraries[1], inside))
        return replace(largest, bytes=inside, arguments_bytes=0, held=(), libraries=libraries)
    return replace(largest, arguments_bytes=0, outputs_bytes=0, bytes=largest.temporary_bytes + carried, held=held)


def _is_in_blocks_alone(body: Program, tail: Program) -> bool:
    """Whether a chunk reduces something in blocks, and the remainder, though it is smaller, stores it to reduce it."""
    return any(
        block_of(body, ours) is not None and block_of(tail, theirs) is None
        for ours, theirs in zip(body.eqns, tail.eqns, strict=False)
    )


def _instead(program: Program, eqn: Any, fusions: Fused, live: Mapping[Any, int], storing: Storing) -> int:
    """How much more of its results a loop stores that falls back on an `exla_unless`, than the one that need not.

    What its original equations reduce to is stored, where the cheap results are computed in what reads them; what only
    the cheap results are made of is not.
    """
    if not storing.recomputes or eqn.primitive.name != "exla_unless" or is_asked(program, eqn):
        return 0
    more, (otherwise,) = 0, programs_of(eqn)
    for var, cheap, result in zip(eqn.outvars, eqn.invars[1:], otherwise.outvars, strict=False):
        choice = otherwise.producers.get(result)
        if cheap in fusions.stored or choice is None or otherwise.eqns[choice].primitive.name != "select_n":
            continue
        exact = otherwise.producers.get(otherwise.eqns[choice].invars[1])
        if exact is not None and is_reduced_apart(otherwise.eqns[exact], storing):
            more += value_bytes(var)
    return more - sum(live[v] for v in live.keys() - _left_to_fall_back(program)) if more else 0


def _left_to_fall_back(program: Program) -> set[Any]:
    """What is still computed where no `exla_unless` of a program is safe."""
    left = set(variables(program.outvars))
    for eqn in reversed(program.eqns):
        if left.isdisjoint(eqn.outvars):
            continue
        is_cheap = eqn.primitive.name == "exla_unless" and not is_asked(program, eqn)
        left.update(variables(eqn.invars[1 + len(eqn.outvars) :] if is_cheap else eqn.invars))
    return left


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


def _opened(body: Any) -> Program:
    """The program of a body's jaxpr; arrays that it holds are inputs."""
    return Program(jaxpr=_compat.constants_as_inputs(body)) if body.constvars else program_of(body)
