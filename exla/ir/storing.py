"""What a compiler stores of a program, and as how many bytes.

XLA:CPU computes a cheap value again for every reader, one that is read once in its reader, and stores the rest; long
reductions store what they reduce, and matrix products pack their operands. The compilers of GPUs and TPUs compute more
again, pad and narrow values, and keep some on the chip. `Storing` says which of that holds; which values it leaves to
be stored is for `exla.ir.fusing`, and what lies beside them for `exla.ir.beside`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from exla import _compat
from exla.ir.code import CodeCosts
from exla.ir.primitives import ELEMENTWISE, SCATTERS, VIEWS, named
from exla.ir.products import is_exact, is_vectors
from exla.ir.program import Program, is_complex, value_bytes
from exla.ir.sliced import skips
from exla.ir.split_products import Cutting
from exla.ir.tiles import padded_bytes
from exla.ir.weighed import Rates

LONGEST_FUSED_REDUCTION = 32
"""Indices of an axis that XLA:CPU reduces in one pass (its TreeReductionRewriter's window, measured)."""
ROWS = named("gather conv_general_dilated") | SCATTERS
"""Primitives that TPUs compute on whole rows: their values lie with the last axis on the lanes, unless it is short.

What is gathered of a small table lies so all the same (`_gathers_on_chip`), and what loops read or stack in rows.
"""
SHORT_ROW = 32
"""Numbers; to pad less to whole lanes, other axes are laid on them (`f32[5752000, 3]{0,1:T(4,128)}`)."""
PRODUCTS = named("dot_general conv_general_dilated")
HANDED_ON = VIEWS | named("transpose concatenate stack")
"""What leaves numbers as they are on the way to a product."""


@dataclass(frozen=True, kw_only=True)
class Storing:
    """What a compiler stores of a program.

    Attributes:
      fused: whether element-wise chains are assumed to be fused.
      window: indices of an axis that are reduced without storing what is reduced; None = any number.
      blocks: whether long reductions are written in blocks (`exla.ir.blocks`).
      threads: of the libraries of XLA:CPU, to which what they allocate is added; 0 where there are none.
      recomputes: whether element-wise values are computed again for every fusion that reads them, whatever they cost.
      packs_once: whether another library may multiply (YNNPACK), which packs each operand once and whole.
      copies: whether what is cheap is computed again by each reader that can, though another has it stored, and what is
        not is stored where two read it (XLA's `InstructionFusion`).
      breadth_first: whether everything runs in the order in which it could, whatever is stored for that.
      gathers: whether gathers are computed by their readers too, and scatters compute their updates.
      joins: whether matrix products compute their operands, and are computed by the one fusion that reads them.
      narrow: whether what only products read is stored as bfloat16, in which they are computed.
      tiled: whether values are padded to tiles (`exla.ir.tiles`).
      chip_bytes: memory on the chip in which values may live, which is not counted; 0 where there is none.
      table_bytes: the largest table of which short rows are gathered whole: it fits on the chip.
      code: the size of the program itself; None where it is not counted.
      cached_bytes: of a value, up to which a GPU stores rather than computes again what it can read from its cache.
      cutting: how products with long contractions are cut; None where they are not.
      rates: by which a GPU's compiler weighs what to compute again; None where none does.
    """

    fused: bool = True
    window: int | None = LONGEST_FUSED_REDUCTION
    blocks: bool = False
    threads: int = 0
    packs_once: bool = False
    recomputes: bool = False
    copies: bool = False
    breadth_first: bool = False
    gathers: bool = False
    joins: bool = False
    narrow: bool = False
    tiled: bool = False
    chip_bytes: int = 0
    table_bytes: int = 0
    code: CodeCosts | None = None
    cached_bytes: int = 0
    cutting: Cutting | None = None
    rates: Rates | None = None


def stored_bytes(program: Program, var: Any, storing: Storing) -> int:
    """Bytes that a stored value takes."""
    if not storing.tiled or getattr(var.aval, "shape", None) is None or _compat.is_on_host(var.aval):
        return value_bytes(var)
    item = _compat.item_bytes(var.aval.dtype)
    if storing.narrow and var.aval.dtype == np.float32 and _is_for_products(program, var):
        item = 2
    if is_complex(var):  # real and imaginary parts are stored apart
        return 2 * padded_bytes(var.aval.shape, item // 2, _pinned(program, var, storing))
    return padded_bytes(var.aval.shape, item, _pinned(program, var, storing))


def _pinned(program: Program, var: Any, storing: Storing) -> str:
    """The layout that what makes and reads a value asks of it, as of `padded_bytes`."""
    at = program.producers.get(var)
    users = [program.eqns[i] for i, _ in program.consumers.get(var, ())]
    made = [] if at is None else [program.eqns[at]]
    shape = var.aval.shape
    if len(shape) < 2:
        return ""
    if any(eqn.primitive.name in ROWS for eqn in [*made, *users]) and shape[-1] >= SHORT_ROW:
        return "rows"
    if any(_gathers_on_chip(eqn, storing) for eqn in made):
        return "rows"
    if var not in program.outvars and at is not None and (is_stacked(program, var) or any(map(skips, users))):
        return "stacked"
    return ""


def _gathers_on_chip(eqn: Any, storing: Storing) -> bool:
    """Whether TPUs gather whole rows, however short, of a table that has its rows whole on the chip."""
    if eqn.primitive.name != "gather":
        return False
    shape = eqn.outvars[0].aval.shape
    if shape[-1] == 1 or len(shape) - 1 not in _compat.rows_of_gather(eqn):
        return False
    table = eqn.invars[0].aval
    return padded_bytes(table.shape, _compat.item_bytes(table.dtype), "rows") <= storing.table_bytes


def is_stacked(program: Program, var: Any) -> bool:
    """Whether a scan makes a value row by row, or reads it so."""
    at = program.producers.get(var)
    if at is not None and any(program.eqns[at].outvars[k] is var for k in _compat.stacked_by_scan(program.eqns[at])):
        return True
    return any(side in _compat.read_by_turns(program.eqns[i]) for i, side in program.consumers.get(var, ()))


def stacked_bytes(var: Any) -> int:
    """Bytes of a value of which a TPU writes or reads a row in each turn of a loop."""
    return padded_bytes(var.aval.shape, _compat.item_bytes(var.aval.dtype), "stacked")


def _is_for_products(program: Program, var: Any) -> bool:
    """Whether only products read a value, in the precision of bfloat16."""
    users = [program.eqns[i] for i, _ in program.consumers.get(var, ())]
    if not users or var in program.outvars or var not in program.producers:
        return False
    return all(_is_for_product(program, user) for user in users)


def _is_for_product(program: Program, user: Any) -> bool:
    if user.primitive.name in HANDED_ON or user.primitive.name in ELEMENTWISE:
        return _is_for_products(program, user.outvars[0])
    if user.primitive.name == "dot_general" and is_vectors(user):
        return False
    return user.primitive.name in PRODUCTS and not is_exact(user)
