"""Which values of a program are stored, by how a compiler forms fusions.

A *fusion* is a loop that computes one stored value from others, with everything in between computed as it goes. What
lies in between differs (all of it is seen in what the compilers make of the zoo, `benchmarks.projection`):

* XLA:CPU computes a cheap value again in every fusion that can, also where a reader wants it stored: a product, or a
  reduction along a long axis. Expensive values that two fusions read are stored, and so is what would be computed once
  for every place that it is broadcast to, or in too many places, or joined of several values in more than one.
* XLA:GPU computes an element-wise value again for every fusion that reads it, unless it is expensive or put together of
  several (`STORED_ONCE`); TPUs' compiler unless it slices it (`exla.ir.sliced`), and what it puts together it stores
  before. So it is with what is broadcast to more places.
* XLA:GPU does the same with gathers, and with reductions that are too short for a kernel of their own.
* TPUs compute a matrix product inside the one fusion that reads it (`exla.ir.joined`); and random bits like any
  element-wise value.
* On both, reductions of one shape that do not wait for each other are one fusion (`exla.ir.siblings`), but XLA:GPU
  stores what it would rather read than compute for each of them (`exla.ir.weighed`); and comparisons that are counted
  are stored (`exla.ir.ties`).

`fused` says which values are stored, and which of them every equation reads.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Container, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from exla import _compat
from exla._compat import Literal
from exla.ir.asked import is_asked
from exla.ir.blocks import block_of, first_axis, is_summed_again
from exla.ir.joined import is_joined
from exla.ir.primitives import (
    CHEAP,
    ELEMENTWISE,
    FUSIBLE,
    REDUCERS,
    RESHAPED,
    SCATTERS,
    TRANSCENDENTAL,
    VIEWS,
    WINDOWED,
    named,
)
from exla.ir.products import flat_operand, is_outer, is_vectors
from exla.ir.program import Program, is_complex, value_bytes, variables
from exla.ir.siblings import are_siblings
from exla.ir.sliced import is_sliced_of_stored
from exla.ir.softmaxes import is_shifted
from exla.ir.storing import Storing
from exla.ir.ties import is_counted
from exla.ir.turned import is_met_turned
from exla.ir.weighed import is_computed_again

SHORT, VERY_SHORT = 16, 5
"""A reduction of fewer indices XLA:GPU computes like an element-wise value for the one fusion that reads it; and for
several where its results are too many to be read from the cache (`Storing.cached_bytes`). Seen with cards from A100 to
L4, along any axis; for several the bound is 4 to 10 indices, by the compiler's model of the card and of what is around.
"""
REPEATED = named("broadcast_in_dim iota convert_element_type slice transpose rev reshape squeeze expand_dims")
"""What is computed again for every place that it is broadcast to; the rest is stored before."""
STORED_ONCE = TRANSCENDENTAL | named("sqrt pad concatenate stack")
"""Fusible primitives that no two fusions compute each for itself: they are expensive, or put values together."""
FUSED = FUSIBLE | named("stack split bitcast_convert_type")
JOINED = named("concatenate stack pad")
"""What XLA:CPU computes in one place of one fusion only (`ElementalIrEmitter::OpInvalidatesCache`)."""
CONCATENATED = named("concatenate stack")
"""What TPUs' compiler computes again for every reader, from operands that it stores."""
JOINING = named("concatenate stack pad gather")
"""What makes a larger value of its operands and reads each of their elements once."""
EXPENSIVE = TRANSCENDENTAL | REDUCERS | named("sqrt div gather")
"""What XLA:CPU computes in one place only, `_is_expensive`."""
MOST_TIMES = 15
"""Places in a fusion in which a value is computed; what associative scans interleave would be in exponentially many.

Source: `FusionNodeIndexingEvaluation` in XLA.
"""
BARRIER = "optimization_barrier"
"""What is behind it is not fused with what is before: its operand is stored."""
MANY = -1

Places = Mapping[int, int]
"""The equations that read a value elsewhere than they are computed themselves, and how often: a key for each fusion and
equation in it, `fusion * count + equation`."""
NOWHERE: Places = {}


@dataclass(frozen=True)
class Fused:
    """What a program's fusions store and read.

    Attributes:
      stored: the values that equations store.
      reads: per equation, the stored values and inputs that what it computes is read from.
      outputs: the stored values behind the outputs.
    """

    stored: Set[Any]
    reads: Sequence[tuple[Any, ...]]
    outputs: tuple[Any, ...]


def fused(program: Program, storing: Storing) -> Fused:
    """Which values of a program are stored, and which of them each equation reads."""
    outputs = variables(program.outvars)
    plan = _plan(program, storing, set(outputs))
    stored = set[Any]()
    direct: dict[Any, tuple[Any, ...]] = {v: (v,) for v in program.invars}  # for readers that want a value stored
    through = dict(direct)  # for those that compute it themselves where they can
    reads = []
    for position, eqn in enumerate(program.eqns):
        read = _behind(program.operands[position], through if position in plan.taking else direct)
        if sliced := _cut_for_remainder(eqn, storing):
            read = tuple(dict.fromkeys((*read, *_behind(sliced, through))))
        reads.append(read)
        for var in eqn.outvars:
            if _compat.is_drop(var):
                continue
            if var not in plan.virtual:
                stored.add(var)
                direct[var] = (var,)
                through[var] = read if var in plan.copied else (var,)
            elif position in plan.views:
                operands = program.operands[position]
                direct[var], through[var] = _behind(operands, direct), _behind(operands, through)
            else:
                direct[var] = through[var] = read
    return Fused(stored, reads, tuple(dict.fromkeys(r for v in outputs for r in direct[v])))


def _cut_for_remainder(eqn: Any, storing: Storing) -> list[Any]:
    """What a chunk loop reads that the remainder after it slices for itself, from what XLA:CPU computes it of."""
    loop = eqn.params["loop"] if storing.copies and eqn.primitive.name == "exla_split" else None
    if loop is None or loop.tail is None or loop.tail_first:
        return []
    return [
        v
        for v, placement in zip(eqn.invars, loop.operands, strict=True)
        if placement is not None and not isinstance(v, Literal)
    ]


def _behind(operands: Sequence[Any], source: Mapping[Any, tuple[Any, ...]]) -> tuple[Any, ...]:
    if len(operands) == 1:
        return source[operands[0]]
    return tuple(dict.fromkeys(r for v in operands for r in source[v]))


@dataclass(frozen=True)
class _Plan:
    """Which values are never stored, which are and are computed again all the same, and which equations do that."""

    virtual: Set[Any]
    copied: Set[Any] = frozenset()
    taking: Set[int] = frozenset()
    views: Set[int] = frozenset()


def _plan(program: Program, storing: Storing, outputs: set[Any]) -> _Plan:
    if storing.fused and (storing.recomputes or storing.copies):
        return _computed_by_readers(program, storing, outputs)
    return _Plan(
        {
            var
            for eqn in program.eqns
            for var in eqn.outvars
            if not _compat.is_drop(var)
            and var not in outputs
            and storing.fused
            and _is_virtual(program, eqn, var, storing)
        }
    )


def _is_virtual(program: Program, eqn: Any, var: Any, storing: Storing) -> bool:
    """Whether a compiler of which nothing is known will probably never store this value."""
    name = eqn.primitive.name
    if name in VIEWS:
        return True
    if name not in FUSIBLE:
        return False
    users = [program.eqns[i] for i, _ in program.consumers.get(var, ())]
    if any(user.primitive.name == BARRIER for user in users):
        return False
    if not all(user.primitive.name in FUSIBLE or _reduces(program, user, storing) for user in users):
        return False
    return name in CHEAP or len(users) <= 1


def _reduces(program: Program, eqn: Any, storing: Storing) -> bool:
    """Whether a reduction computes its operand as it goes; XLA:CPU reduces longer axes by windows, in passes."""
    if eqn.primitive.name not in REDUCERS:
        return False
    window = storing.window
    if window is None or eqn.primitive.name not in WINDOWED:
        return True
    if storing.blocks and block_of(program, eqn) is not None:
        return True
    first = first_axis(program, eqn) if storing.blocks else None
    if first is not None:
        return eqn.invars[0].aval.shape[first] <= window
    return all(eqn.invars[0].aval.shape[axis] <= window for axis in eqn.params["axes"])


def _computed_by_readers(program: Program, storing: Storing, outputs: set[Any]) -> _Plan:
    """The values that are never stored by a compiler that computes values again, readers before what they read."""
    copies, count = storing.copies, len(program.eqns)
    virtual, copied = set[Any](), set[Any]()
    taking, views = set[int](), set[int]()
    places: dict[Any, Places] = {}
    taken = set[Any]()  # values with a reader that computes them
    cut = set[Any]()  # values that a remainder takes a slice of
    barred = set(outputs)  # values with a reader that wants them stored
    lying = set(outputs)  # those of them that it wants as they lie, not in another shape
    reused = set[Any]()  # values that a reader would compute once for every place that they are broadcast to
    ways = _Ways()
    for position in range(count - 1, -1, -1):
        eqn = program.eqns[position]
        name = eqn.primitive.name
        made = [v for v in eqn.outvars if v in places or v in outputs]
        found = places.get(made[0], NOWHERE) if len(made) == 1 else _united([places[v] for v in made if v in places])
        is_conditional = is_asked(program, eqn)
        can_take = not is_conditional and _takes(program, eqn, storing)
        can_fold = copies or storing.gathers
        is_view = name in VIEWS and not is_conditional
        is_view |= can_fold and name == "transpose" and _is_folded(program, made, outputs, storing)
        is_view |= copies and name == "neg" and _is_summed(program, made, outputs)
        is_reused = copies and any(v in reused for v in made)
        is_virtual = is_copied = False
        is_apart = storing.joins and name == "transpose" and is_met_turned(program, position, places)
        is_apart = is_apart or is_conditional or (storing.blocks and is_summed_again(program, eqn))
        if not is_apart and (can_take or not copies) and (len(made) == 1 == len(eqn.outvars) or name == "split"):
            times = _times(found, count)
            is_one = len(times) <= 1 or (not copies and name not in JOINED and _are_one(program, times, storing))
            home = next(iter(times), position) if is_one else MANY
            readers = {place % count for place in found} if name == "dot_general" else ()
            most = 1 if copies and name in JOINED else MOST_TIMES
            is_often = max(times.values(), default=0) > most
            rates = storing.rates if is_one and len(times) > 1 else None
            if not is_often and _is_repeatable(program, eqn, home, readers, is_reused, storing):
                is_virtual = not any(v in barred for v in made)
                if is_virtual and rates is not None and len(program.consumers.get(made[0], ())) > 1:
                    is_virtual = is_computed_again(program, position, times, virtual, rates)
                is_copied = copies and any(v in taken for v in made)
                if copies and not _is_copied(program, eqn):
                    waits = ways.wait_for_each_other(program, made)
                    is_virtual = is_virtual and not waits
                    is_copied = is_copied and not waits and not any(v in lying for v in made)
                is_copied = is_copied and not is_virtual
        if is_virtual:
            virtual.update(made)
        elif is_copied:
            copied.update(made)
            found = {**found, position * count + position: 1}
        else:
            found = {position * count + position: 1}
        takes = is_virtual and name != BARRIER if is_view else can_take
        if takes:
            taking.add(position)
        is_carried = is_reused and (is_virtual or is_copied)
        sliced = _cut_for_remainder(eqn, storing)
        moved = None if takes and name in ELEMENTWISE else _moved(found, position, count)
        for operand in program.operands[position]:
            is_spread = takes and _is_broadcast(eqn, operand)
            if is_spread and moved is None:
                moved = _moved(found, position, count)
            inside = found if moved is None or (name in ELEMENTWISE and not is_spread) else moved
            known = places.get(operand, inside)
            places[operand] = inside if known == inside else {**known, **inside}
            if not takes:
                barred.add(operand)
                if not (name in RESHAPED or _is_flattened(eqn, operand)):
                    lying.add(operand)
                if any(v is operand for v in sliced) or (is_view and made and made[0] in cut):
                    cut.add(operand)
                    taken.add(operand)
                continue
            taken.add(operand)
            if copies:
                if is_carried or (is_spread and name not in JOINING):
                    reused.add(operand)
            elif not is_view and (repeated := _repeated(program, operand, eqn)) is not None:
                barred.add(repeated)
        if is_view:
            views.add(position)
            virtual.update(v for v in eqn.outvars if v not in outputs)
        if copies:
            ways.add(program, position, taking if is_virtual or is_copied or is_view else ())
    return _Plan(virtual, copied, taking, views)


def _is_flattened(eqn: Any, operand: Any) -> bool:
    """Whether a product reads a value in another shape, as a matrix."""
    if eqn.primitive.name != "dot_general":
        return False
    shape = list(operand.aval.shape)
    return all(flat_operand(eqn, side) != shape for side, v in enumerate(eqn.invars) if v is operand)


def _is_summed(program: Program, made: Sequence[Any], outputs: Container[Any]) -> bool:
    """Whether what is negated is only summed: XLA:CPU sums first."""
    users = [program.eqns[i] for v in made for i, _ in program.consumers.get(v, ())]
    return all(user.primitive.name == "reduce_sum" for user in users) and not any(v in outputs for v in made)


class _Ways:
    """Which equations each leads to, and to which of these through something that is stored: sets of bits."""

    def __init__(self) -> None:
        self._any: dict[int, int] = {}
        self._stored: dict[int, int] = {}

    def add(self, program: Program, position: int, computing: Container[int]) -> None:
        """An equation before all that were added; which of its readers compute its results themselves."""
        reached = stored = 0
        for reader in {i for v in program.eqns[position].outvars for i, _ in program.consumers.get(v, ())}:
            beyond = 1 << reader | self._any[reader]
            reached |= beyond
            stored |= self._stored[reader] if reader in computing else beyond
        self._any[position], self._stored[position] = reached, stored

    def wait_for_each_other(self, program: Program, values: Sequence[Any]) -> bool:
        """Whether a reader of some values waits for something stored that another reader of theirs leads to.

        Source: `InstructionFusion::CanFuseOnAllPaths`.
        """
        readers = {i for v in values for i, _ in program.consumers.get(v, ())}
        if len(readers) < 2:
            return False
        others = functools.reduce(operator.or_, (1 << reader for reader in readers))
        return any(self._stored[reader] & others for reader in readers)


def _united(several: Sequence[Places]) -> Places:
    return {place: n for places in several for place, n in places.items()}


def _times(places: Places, count: int) -> Mapping[int, int]:
    """Fusion -> how often it computes a value, of which `places` says where."""
    if len(places) == 1:
        return {place // count: n for place, n in places.items()}
    found: dict[int, int] = {}
    for place, n in places.items():
        found[place // count] = found.get(place // count, 0) + n
    return found


def _moved(places: Places, position: int, count: int) -> Places:
    """Where the operands are computed of an equation that reads them elsewhere than it is computed itself."""
    if len(places) == 1:
        ((place, n),) = places.items()
        return {place - place % count + position: n}
    return {home * count + position: n for home, n in _times(places, count).items()}


def _are_one(program: Program, positions: Iterable[int], storing: Storing) -> bool:
    """Whether what is computed at some positions is one fusion; on GPUs whole sums and short ones are none."""
    homes = [program.eqns[position] for position in positions]
    if storing.gathers and not all(e.primitive.name in REDUCERS and e.outvars[0].aval.shape for e in homes):
        return False
    if storing.gathers and any(map(_is_short, homes)):
        return False
    return are_siblings(program, positions, any_axes=storing.joins)


def _is_repeatable(
    program: Program, eqn: Any, home: int, readers: Iterable[int], is_reused: bool, storing: Storing
) -> bool:
    """Whether a value is computed by what reads it, the equations `readers` in the one fusion at `home` or in many."""
    name = eqn.primitive.name
    if storing.copies:
        if name in JOINED:
            return home != MANY
        return (home != MANY and not is_reused) or not _is_expensive(eqn)
    if storing.joins and name == "sub" and is_shifted(program, eqn):
        return False
    if home == MANY and is_counted(program, eqn):
        return False
    if name in FUSED or is_outer(eqn):
        return home != MANY or storing.joins or name not in STORED_ONCE
    if name == "dot_general":
        return home != MANY and (is_joined(program, eqn, home, readers) if storing.joins else is_sum(eqn))
    if name == "random_bits":
        return storing.joins
    if name == "gather":
        return storing.gathers
    if name not in REDUCERS or is_reduced_apart(eqn, storing):
        return False
    return home != MANY or (_reduced(eqn) < VERY_SHORT and value_bytes(eqn.outvars[0]) > storing.cached_bytes)


def is_reduced_apart(eqn: Any, storing: Storing) -> bool:
    """Whether GPUs and TPUs store what an equation reduces to, though one fusion alone reads it."""
    return eqn.primitive.name in REDUCERS and not (storing.gathers and _is_short(eqn))


def _takes(program: Program, eqn: Any, storing: Storing) -> bool:
    """Whether an equation computes its operands itself."""
    name = eqn.primitive.name
    if storing.copies:
        return name in FUSED or name == "gather" or is_outer(eqn) or _reduces(program, eqn, storing)
    if storing.joins and (name in CONCATENATED or is_sliced_of_stored(program, eqn)):
        return False
    if name in FUSED or name in REDUCERS or is_outer(eqn):
        return True
    if name == "dot_general":
        return storing.joins or is_sum(eqn)
    return storing.gathers and (name in SCATTERS or name == "gather")


def _is_expensive(eqn: Any) -> bool:
    """Whether XLA computes a value in one place only.

    Source: `InstructionFusion::IsExpensive` in XLA's `instruction_fusion.cc`.
    """
    name = eqn.primitive.name
    if name in ("sin", "cos", "tan"):
        return is_complex(eqn.outvars[0])
    if name == "div":  # by what is broadcast: multiplied by its inverse
        return _size(eqn.invars[1]) == _size(eqn.outvars[0])
    return name in EXPENSIVE


def _is_copied(program: Program, eqn: Any) -> bool:
    """Whether a value that one reader wants stored is computed again by the others: it reads no more than it makes.

    Source: `InstructionFusion::ComputeGloballyUnfusible`.
    """
    size = _size(eqn.outvars[0])
    sizes = [_size(v) for v in variables(eqn.invars) if not _is_spread(program, v)]
    return sum(n >= size for n in sizes) <= 1 or sum(sizes) <= size


def _is_spread(program: Program, var: Any) -> bool:
    at = program.producers.get(var)
    return at is not None and program.eqns[at].primitive.name in ("broadcast_in_dim", "iota")


def _is_broadcast(eqn: Any, var: Any) -> bool:
    """Whether an equation makes more elements than an operand has."""
    shape = var.aval.shape
    if eqn.outvars[0].aval.shape == shape:
        return False
    return any(out.aval.shape != shape and math.prod(out.aval.shape) > math.prod(shape) for out in eqn.outvars)


def _is_folded(program: Program, made: Sequence[Any], outputs: set[Any], storing: Storing) -> bool:
    """Whether XLA multiplies what is transposed as it lies: all readers are products, or fuse it."""
    users = [program.eqns[i] for v in made for i, _ in program.consumers.get(v, ())]
    dots = [u for u in users if u.primitive.name == "dot_general"]
    if not dots or not outputs.isdisjoint(made) or any(u.primitive.name not in FUSED for u in users if u not in dots):
        return False
    return storing.gathers or not any(is_vectors(dot) for dot in dots)


def is_sum(eqn: Any) -> bool:
    """Whether XLA:GPU computes a product as a sum of products: one side is a vector, in batches or of complex numbers.

    Source: `GpuAlgebraicSimplifierVisitor::ShouldStrengthReduceDotToReduce`.
    """
    batched = eqn.params["dimension_numbers"][1][0]
    return (bool(batched) or is_complex(eqn.outvars[0])) and is_vectors(eqn)


def _is_short(eqn: Any) -> bool:
    """Whether XLA:GPU computes a reduction like an element-wise value where one fusion reads it."""
    return _reduced(eqn) < SHORT


def _reduced(eqn: Any) -> int:
    """How many elements each result of a reduction is made of."""
    shape = eqn.invars[0].aval.shape
    return math.prod(shape[axis] for axis in eqn.params.get("axes", ()))


def _repeated(program: Program, var: Any, user: Any) -> Any:
    """What a reader would compute once for every place that it is broadcast to; None where there is nothing such."""
    if user.primitive.name not in FUSIBLE or user.primitive.name in ("concatenate", "pad"):
        return None
    if not any(_size(out) > _size(var) for out in user.outvars):
        return None
    position = program.producers.get(var)
    while position is not None and program.eqns[position].primitive.name in REPEATED:
        operands = variables(program.eqns[position].invars)
        if not operands:
            return None
        var = operands[0]
        position = program.producers.get(var)
    return None if position is None else var


def _size(var: Any) -> int:
    return math.prod(var.aval.shape)
