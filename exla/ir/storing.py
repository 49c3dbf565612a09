"""Which values a compiler stores, and as how many bytes: what is said of each compiler, and what follows for a program.

A *fusion* is a loop that computes one stored value from others, with everything in between computed as it goes. Which
values lie in between differs:

* XLA:CPU computes a cheap value again for every reader, one that is read once in its reader, and stores the rest; long
  reductions store what they reduce, and matrix products pack their operands.
* XLA:GPU and TPUs' compiler compute element-wise values again for every fusion that reads them, whatever they cost.
  GPUs do so with gathers and with reductions that are too short for a kernel of their own; TPUs compute products
  inside the one fusion that reads them, be it another product.

`roots` says of every value which stored values it is read from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from exla import _compat
from exla._compat import Literal
from exla.ir.primitives import CHEAP, FUSIBLE, REDUCERS, SCATTERS, VIEWS, named
from exla.ir.products import axes_of
from exla.ir.program import Program, value_bytes, variables
from exla.ir.split_products import Cutting, padded_depth
from exla.ir.tiles import padded_bytes

LONGEST_FUSED_REDUCTION = 32
"""Indices of an axis that XLA:CPU reduces in one pass (its TreeReductionRewriter's window, measured)."""
WINDOWED = frozenset({"reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "reduce_and", "reduce_or"})
WARP = 32
"""Threads of a GPU that reduce a row together."""
REPEATED = named("broadcast_in_dim iota convert_element_type slice transpose rev reshape squeeze expand_dims")
"""What is computed again for every place that it is broadcast to; the rest is stored before."""
ROWS = named("gather scatter scatter-add scatter-sub scatter-mul scatter-min scatter-max sort fft dynamic_slice")
"""Primitives that TPUs compute on whole rows: their values lie with the last axis on the lanes."""
MANY = -1


@dataclass(frozen=True, kw_only=True)
class Storing:
    """What a compiler stores of a program.

    Attributes:
      fused: whether element-wise chains are assumed to be fused.
      window: indices of an axis that are reduced without storing what is reduced; None = any number.
      packs: whether a matrix product packs its operands, and transposes those before that lie in another order.
      recomputes: whether element-wise values are computed again for every fusion that reads them, whatever they cost.
      gathers: whether gathers are computed by their readers too, and scatters compute their updates.
      joins: whether matrix products compute their operands, and are computed by the one fusion that reads them.
      narrow: whether what only products read is stored as bfloat16, in which they are computed.
      tiled: whether values are padded to tiles (`exla.ir.tiles`).
      chip_bytes: memory on the chip in which values may live, which is not counted; 0 where there is none.
      cutting: how products with long contractions are cut; None where they are not.
    """

    fused: bool = True
    window: int | None = LONGEST_FUSED_REDUCTION
    packs: bool = False
    recomputes: bool = False
    gathers: bool = False
    joins: bool = False
    narrow: bool = False
    tiled: bool = False
    chip_bytes: int = 0
    cutting: Cutting | None = None


Roots = Mapping[Any, tuple[Any, ...]]
"""Variable -> the stored values that it is read from; itself where it is stored."""


def roots(program: Program, storing: Storing) -> Roots:
    """Which stored values each variable of a program is read from."""
    found: dict[Any, tuple[Any, ...]] = {v: (v,) for v in program.invars}
    outputs = set(variables(program.outvars))
    if storing.fused and storing.recomputes:
        virtual = _computed_by_readers(program, storing, outputs)
    else:
        virtual = None
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


def stored_bytes(program: Program, var: Any, storing: Storing) -> int:
    """Bytes that a stored value takes."""
    if not storing.tiled or not hasattr(var.aval, "shape"):
        return value_bytes(var)
    item = _compat.item_bytes(var.aval.dtype)
    if storing.narrow and var.aval.dtype == np.float32 and _is_for_products(program, var):
        item = 2
    if getattr(var.aval.dtype, "kind", "") == "c":  # real and imaginary parts are stored apart
        return 2 * padded_bytes(var.aval.shape, item // 2, _pinned(program, var))
    return padded_bytes(var.aval.shape, item, _pinned(program, var))


def _pinned(program: Program, var: Any) -> str:
    """The layout that what makes and reads a value asks of it, as of `padded_bytes`."""
    at = program.producers.get(var)
    users = [program.eqns[i] for i, _ in program.consumers.get(var, ())]
    names = {eqn.primitive.name for eqn in (users if at is None else [program.eqns[at], *users])}
    if names & ROWS:
        return "rows"
    return "stacked" if "scan" in names else ""


def _is_for_products(program: Program, var: Any) -> bool:
    """Whether only products read a value, in the precision of bfloat16."""
    users = [program.eqns[i] for i, _ in program.consumers.get(var, ())]
    if not users or var in program.outvars or var not in program.producers:
        return False
    return all(_is_for_product(program, user) for user in users)


def _is_for_product(program: Program, user: Any) -> bool:
    if user.primitive.name in ("transpose", *VIEWS):
        return _is_for_products(program, user.outvars[0])
    return user.primitive.name in ("dot_general", "conv_general_dilated") and user.params.get("precision") is None


def _is_virtual(program: Program, eqn: Any, var: Any, window: int | None) -> bool:
    """Whether XLA:CPU will probably never store this value."""
    name = eqn.primitive.name
    if name in VIEWS:
        return True
    if name not in FUSIBLE:
        return False
    users = [program.eqns[i] for i, _ in program.consumers.get(var, ())]
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
    barred = set[Any]()  # values with a reader that wants them stored
    for position in range(len(program.eqns) - 1, -1, -1):
        eqn = program.eqns[position]
        home = position
        if len(eqn.outvars) == 1:
            var = eqn.outvars[0]
            if var not in outputs and var not in barred and _is_repeatable(eqn, homes.get(var, position), storing):
                virtual.add(var)
                home = homes.get(var, position)
        is_view = eqn.primitive.name in VIEWS
        takes = eqn.outvars[0] in virtual if is_view else _takes(eqn, storing)
        for operand in variables(eqn.invars):
            known = homes.get(operand, home)
            homes[operand] = home if known == home else MANY
            if not takes or (not is_view and _is_repeated(program, operand, eqn)):
                barred.add(operand)
        if is_view and eqn.outvars[0] not in outputs:
            virtual.add(eqn.outvars[0])
    return virtual


def _is_repeatable(eqn: Any, home: int, storing: Storing) -> bool:
    """Whether a value is computed by what reads it."""
    name = eqn.primitive.name
    if name in FUSIBLE:
        return storing.joins or name in CHEAP or home != MANY
    if name == "dot_general":
        return home != MANY and (storing.joins or is_sum(eqn))
    if name == "gather":
        return storing.gathers
    return storing.gathers and name in REDUCERS and _is_short(eqn)


def _takes(eqn: Any, storing: Storing) -> bool:
    """Whether an equation computes its operands itself."""
    name = eqn.primitive.name
    if name in FUSIBLE or name in REDUCERS:
        return True
    if name == "dot_general":
        return storing.joins or is_sum(eqn) or padded_depth(eqn, storing.cutting) > 0
    return storing.gathers and name in SCATTERS


def is_sum(eqn: Any) -> bool:
    """Whether XLA:GPU computes a product as a sum of products: one side of each of its batches is a vector.

    Source: `GpuAlgebraicSimplifierVisitor::ShouldStrengthReduceDotToReduce`.
    """
    batched = eqn.params["dimension_numbers"][1][0]
    return bool(batched) and any(_size_of(eqn, side) == 1 for side in (0, 1))


def _size_of(eqn: Any, side: int) -> int:
    """Rows of a product, or columns: indices of an operand's free axes."""
    return math.prod(eqn.invars[side].aval.shape[k] for k in axes_of(eqn, side)[2])


def _is_short(eqn: Any) -> bool:
    """Whether XLA:GPU computes a reduction like an element-wise value: it has too few indices for a warp.

    Source: `IsUnnestedReductionFasterThanElemental` in XLA's `ir_emission_utils.cc`.
    """
    shape, axes = eqn.invars[0].aval.shape, eqn.params.get("axes", ())
    reduced = math.prod(shape[axis] for axis in axes)
    is_row = len(shape) - 1 in axes
    return reduced < WARP and not (is_row and WARP % max(reduced, 1) == 0)


def _is_repeated(program: Program, var: Any, user: Any) -> bool:
    """Whether a reader would compute a value once for every place that it is broadcast to."""
    position = program.producers.get(var)
    if position is None or program.eqns[position].primitive.name in REPEATED or user.primitive.name not in FUSIBLE:
        return False
    return any(_size(out) > _size(var) for out in user.outvars) and user.primitive.name not in ("concatenate", "pad")


def _size(var: Any) -> int:
    return math.prod(var.aval.shape)


def is_literal(atom: Any) -> bool:
    return isinstance(atom, Literal)
