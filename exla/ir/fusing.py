"""Which values of a program are stored, by how a compiler forms fusions.

A *fusion* is a loop that computes one stored value from others, with everything in between computed as it goes. What
lies in between differs (all of it is seen in what the compilers make of the zoo, `benchmarks.projection`):

* XLA:CPU stores what is read by several loops, unless it is cheap.
* XLA:GPU and TPUs' compiler compute an element-wise value again for every fusion that reads it, unless it is expensive
  or put together of several (`STORED_ONCE`). What is broadcast to more places is stored before.
* XLA:GPU does the same with gathers, and with reductions that are too short for a kernel of their own.
* TPUs compute a matrix product inside the one fusion that reads it, be it another product.

`roots` says of every value which stored values it is read from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from exla import _compat
from exla.ir.primitives import CHEAP, FUSIBLE, REDUCERS, SCATTERS, TRANSCENDENTAL, VIEWS, named
from exla.ir.products import is_exact, is_vectors
from exla.ir.program import Program, variables
from exla.ir.storing import Storing

WINDOWED = frozenset({"reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "reduce_and", "reduce_or"})
WARP = 32
"""Threads of a GPU that reduce a row together."""
REPEATED = named("broadcast_in_dim iota convert_element_type slice transpose rev reshape squeeze expand_dims")
"""What is computed again for every place that it is broadcast to; the rest is stored before."""
STORED_ONCE = TRANSCENDENTAL | named("sqrt pad concatenate")
"""Fusible primitives that no two fusions compute each for itself: they are expensive, or put values together."""
MOST_TIMES = 16
"""Places in which a value is computed; what associative scans interleave would be computed in exponentially many."""
BARRIER = "optimization_barrier"
"""What is behind it is not fused with what is before: its operand is stored."""
MANY = -1

Roots = Mapping[Any, tuple[Any, ...]]
"""Variable -> the stored values that it is read from; itself where it is stored."""


def roots(program: Program, storing: Storing) -> Roots:
    """Which stored values each variable of a program is read from."""
    found: dict[Any, tuple[Any, ...]] = {v: (v,) for v in program.invars}
    outputs = set(variables(program.outvars))
    recomputes = storing.fused and storing.recomputes
    virtual = _computed_by_readers(program, storing, outputs) if recomputes else None
    for eqn in program.eqns:
        for var in eqn.outvars:
            if _compat.is_drop(var):
                continue
            if virtual is not None:
                is_stored = var not in virtual
            else:
                is_stored = var in outputs or not (storing.fused and _is_virtual(program, eqn, var, storing.window))
            if is_stored:
                found[var] = (var,)
            else:
                found[var] = tuple(dict.fromkeys(r for v in variables(eqn.invars) for r in found[v]))
    return found


def _is_virtual(program: Program, eqn: Any, var: Any, window: int | None) -> bool:
    """Whether XLA:CPU will probably never store this value."""
    name = eqn.primitive.name
    if name in VIEWS:
        return True
    if name not in FUSIBLE:
        return False
    users = [program.eqns[i] for i, _ in program.consumers.get(var, ())]
    if any(user.primitive.name == BARRIER for user in users):
        return False
    if not all(user.primitive.name in FUSIBLE or _reduces(user, window) for user in users):
        return False
    return name in CHEAP or len(users) <= 1


def _reduces(eqn: Any, window: int | None) -> bool:
    """Whether a reduction computes its operand as it goes; XLA:CPU reduces longer axes by windows, in passes."""
    if eqn.primitive.name not in REDUCERS:
        return False
    if window is None or eqn.primitive.name not in WINDOWED:
        return True
    return all(eqn.invars[0].aval.shape[axis] <= window for axis in eqn.params["axes"])


def _computed_by_readers(program: Program, storing: Storing, outputs: set[Any]) -> set[Any]:
    """The values that are never stored by a compiler that computes values again, readers before what they read."""
    virtual = set[Any]()
    homes: dict[Any, int] = {}  # value -> the one fusion that computes it, or MANY
    times: dict[Any, int] = {}  # value -> in how many places it is computed
    barred = set[Any]()  # values with a reader that wants them stored
    for position in range(len(program.eqns) - 1, -1, -1):
        eqn = program.eqns[position]
        home = position
        if len(eqn.outvars) == 1:
            var = eqn.outvars[0]
            if homes.get(var) == MANY and times[var] > MOST_TIMES:
                barred.add(var)
            if (
                var not in outputs
                and var not in barred
                and _is_repeatable(program, eqn, homes.get(var, position), storing)
            ):
                virtual.add(var)
                home = homes.get(var, position)
        is_view = eqn.primitive.name in VIEWS
        takes = eqn.outvars[0] in virtual and eqn.primitive.name != BARRIER if is_view else _takes(eqn, storing)
        for operand in variables(eqn.invars):
            known = homes.get(operand, home)
            homes[operand] = home if known == home else MANY
            times[operand] = times.get(operand, 0) + (times.get(eqn.outvars[0], 1) if eqn.outvars[0] in virtual else 1)
            if not takes or (storing.joins and _is_gathered(program, operand, eqn)):
                barred.add(operand)
            elif not is_view and (repeated := _repeated(program, operand, eqn)) is not None:
                barred.add(repeated)
        if is_view and eqn.outvars[0] not in outputs:
            virtual.add(eqn.outvars[0])
    return virtual


def _is_repeatable(program: Program, eqn: Any, home: int, storing: Storing) -> bool:
    """Whether a value is computed by what reads it."""
    name = eqn.primitive.name
    if name in FUSIBLE:
        return home != MANY or name not in STORED_ONCE
    if name == "dot_general":
        return home != MANY and (_is_joined(program, eqn, home) if storing.joins else is_sum(eqn))
    if name == "gather":
        return storing.gathers
    return storing.gathers and name in REDUCERS and _is_short(eqn)


def _takes(eqn: Any, storing: Storing) -> bool:
    """Whether an equation computes its operands itself."""
    name = eqn.primitive.name
    if name in FUSIBLE or name in REDUCERS:
        return True
    if name == "dot_general":
        if storing.joins:
            return not _is_complex(eqn)
        return is_sum(eqn)
    return storing.gathers and name in SCATTERS


def _is_joined(program: Program, eqn: Any, home: int) -> bool:
    """Whether TPUs compute a product inside the fusion that reads it; as it lies, where that is another product.

    What is several products of real numbers, or of bfloat16, is not.
    """
    users = (program.eqns[i].primitive.name for i, _ in program.consumers.get(eqn.outvars[0], ()))
    is_moved = any(name in VIEWS or name == "transpose" for name in users)
    if _is_complex(eqn) or (is_exact(eqn) and not is_vectors(eqn)):
        return False
    return not (is_moved and program.eqns[home].primitive.name == "dot_general")


def _is_complex(eqn: Any) -> bool:
    """Whether a product is of complex matrices, which are several products of real ones."""
    return getattr(eqn.outvars[0].aval.dtype, "kind", "") == "c" and not is_vectors(eqn)


def is_sum(eqn: Any) -> bool:
    """Whether XLA:GPU computes a product as a sum of products: one side of each of its batches is a vector.

    Source: `GpuAlgebraicSimplifierVisitor::ShouldStrengthReduceDotToReduce`.
    """
    batched = eqn.params["dimension_numbers"][1][0]
    return bool(batched) and is_vectors(eqn)


def _is_short(eqn: Any) -> bool:
    """Whether XLA:GPU computes a reduction like an element-wise value: it has too few indices for a warp.

    Source: `IsUnnestedReductionFasterThanElemental` in XLA's `ir_emission_utils.cc`.
    """
    shape, axes = eqn.invars[0].aval.shape, eqn.params.get("axes", ())
    reduced = math.prod(shape[axis] for axis in axes)
    is_row = len(shape) - 1 in axes
    return reduced < WARP and not (is_row and WARP % max(reduced, 1) == 0)


def _is_gathered(program: Program, var: Any, user: Any) -> bool:
    """Whether a product reads what was put together of several values, which TPUs do before."""
    position = program.producers.get(var)
    is_concatenated = position is not None and program.eqns[position].primitive.name == "concatenate"
    return is_concatenated and user.primitive.name == "dot_general"


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
