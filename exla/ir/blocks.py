"""Long reductions in blocks: how exla writes for XLA:CPU what it would reduce in passes.

XLA:CPU reduces an axis of more than 32 indices in passes over windows of 32. It stores what it reduces for that, and
LLVM makes no vector code of a window. The same sum over b * q indices, as a sum over b of blocks of q and then over
what that leaves, is one loop over q with b terms: they are computed as they are added, in vectors, and one element in b
is stored.

`block_of` says which reductions are written so, `write` writes one. Sums are in another order then; maxima are the
same. What is reduced is computed b times in the code of that loop: where that is much, LLVM does not unroll it, and
XLA's passes are faster. Which reductions gain is from `python -m benchmarks.reductions`.

A window over two axes adds 1,024 numbers one after the other, and one over three 32,768, each time with the rounding of
a sum so far. So a sum over several axes is written as one sum after the other, the last axis first (`first_axis`).

XLA makes one reduction of a sum of sums, and a window of it goes over the axes of both: 23 turns and 32 indices are 736
numbers, one after the other. A sum that another one reads is made by itself (`is_summed_again`).

The product of a transposed matrix and a vector is such a chain too: XLA:CPU adds one row after the other to the result.
Of 400,000 rows that is off by 5e-5 of it, where the library's product with two columns is by 7e-7. A chunk of one
column makes such products of others, so long ones are written as products of blocks, summed then (`parts_of`).
What is not of the type of the result is converted to it before, as XLA:CPU does, which stores what it converts.

Complex numbers are added one after the other in a window, and in vectors in blocks, which takes a twentieth of the time
(8,000 sums of 1,000); but for those that are divided, or that another function in branches is taken of, as they are
added (`BRANCHED`): those are in vectors where they are stored.

Triangular systems are solved transposed (`Turned`): LAPACK wants matrices column by column, so XLA:CPU copies each that
lies row by row, as all do that a loop writes or reads. A transposed matrix is what it wants, where it lies; XLA of jax
0.12 does not see that, and copies it too.

Convolutions of few features, and those in groups of the batch, are written as `exla.ir.convolutions` says.

The largest and smallest of numbers in bfloat16 are found in float32, where they are the same numbers: XLA:CPU compares
one after the other otherwise, which takes up to twenty times as long (`Wide`). Those in float16 are left: written so,
XLA would not round what it compares, as it does not in bfloat16 either way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from exla import _compat
from exla._compat import Literal
from exla.ir import convolutions
from exla.ir.primitives import ADDS, BRANCHED, EXTREMES, FUSIBLE, REDUCERS, RESHAPED, TRANSCENDENTAL, VIEWS, named
from exla.ir.products import axes_of, sizes_of
from exla.ir.program import Program, program_of
from exla.ir.storing import LONGEST_FUSED_REDUCTION

WRITTEN = EXTREMES | named("reduce_sum")
REAL, COMPLEX = (np.float32, np.float64), (np.complex64, np.complex128)
DTYPES = (*REAL, *COMPLEX)
"""What is written: what LAPACK solves systems of, too."""
SOLVES = named("triangular_solve")
BLOCKS = 8
"""How many blocks are best, of 4, 8, 16 and 25."""
FEWEST, MOST = 4, 16
VECTOR = 6
"""Indices of the last axis that a block has at least: LLVM makes vectors of 8 of them."""
MOST_WORK, MOST_WORK_ACROSS = 36, 4
"""What may be computed with an element that is reduced, in additions; less where axes behind it stay, in vectors."""
TRANSCENDENTAL_WORK = 10
LONGEST_CHAIN = 1024
"""Rows that a product adds one after the other, at most."""
ROWS = 256
"""How many rows of a block are best; with 256 to 1,024 a product takes as long as in one piece."""
FEWEST_ROWS, MOST_ROWS = 64, 2048
GATHERED = named("gather dynamic_slice concatenate pad")


class Apart(NamedTuple):
    """An axis that is summed by itself, before others are."""

    axis: int


class Alone(NamedTuple):
    """A sum that another one reads, made by itself."""


class Block(NamedTuple):
    """An axis that is reduced in blocks.

    Attributes:
      axis: the axis.
      parts: how many blocks it is divided into.
      is_along: whether no axis behind it stays.
    """

    axis: int
    parts: int
    is_along: bool = True


class Parts(NamedTuple):
    """A product with a vector in blocks of the first axis that is summed.

    Attributes:
      matrix: which operand is the matrix.
      parts: how many blocks the axis is divided into.
    """

    matrix: int
    parts: int


class Wide(NamedTuple):
    """An extreme of numbers in bfloat16, found in float32.

    Attributes:
      block: the axis that is reduced in blocks; None where none is.
    """

    block: Block | None


class Turned(NamedTuple):
    """Triangular systems, solved as those of the transposed matrix from the other side."""


class Convolved(NamedTuple):
    """A convolution in another order or other groups (`exla.ir.convolutions`)."""


Written = Block | Apart | Alone | Parts | Wide | Turned | Convolved
"""How something is written in another way."""


def block_of(program: Program, eqn: Any) -> Block | None:
    """How a reduction of a program is written in blocks; None where it is not.

    Args:
      program: the program.
      eqn: one of its equations.

    Returns:
      The outermost long axis that is reduced, and the number of its blocks.
    """
    if eqn.primitive.name not in WRITTEN:
        return None
    known = program.known.setdefault("blocks", {})
    made = eqn.outvars[0]
    if made not in known:
        known[made] = _block_of(program, eqn)
    return known[made]


def _block_of(program: Program, eqn: Any) -> Block | None:
    aval, axes = eqn.invars[0].aval, eqn.params["axes"]
    if aval.dtype not in (REAL if eqn.primitive.name in EXTREMES else DTYPES) and not is_wide(eqn):
        return None
    for axis in sorted(axes):
        before, after = math.prod(aval.shape[:axis]), aval.shape[axis + 1 :]
        count = _count(aval.shape[axis], 1 if after else VECTOR)
        if aval.shape[axis] <= LONGEST_FUSED_REDUCTION or count is None or (after and math.prod(after) < VECTOR):
            continue
        is_along = all(k in axes for k in range(axis, len(aval.shape)))
        if not is_along and before > 1:
            return None
        block = Block(axis, count, is_along)
        return block if _is_fast(program, eqn.invars[0], block, is_last=not after) else None
    return None


def is_wide(eqn: Any) -> bool:
    """Whether an equation is an extreme that is found in float32."""
    return eqn.primitive.name in EXTREMES and eqn.invars[0].aval.dtype == jnp.bfloat16


def _is_fast(program: Program, var: Any, block: Block, *, is_last: bool) -> bool:
    """Whether what is computed with each element that is reduced leaves LLVM to make vectors of a block."""
    work, is_nested = _work(program, var)
    if is_nested and (is_last or not block.is_along or block.parts != BLOCKS):
        return False
    return work <= (MOST_WORK if block.is_along else MOST_WORK_ACROSS)


def _count(size: int, least: int) -> int | None:
    """How many blocks of a least length an axis is divided into: what divides it and is nearest to what is best."""
    divisors = (n for n in range(FEWEST, MOST + 1) if size % n == 0 and size // n >= least)
    return _nearest(divisors, BLOCKS)


def _work(program: Program, var: Any) -> tuple[int, bool]:
    """What is computed for an element of a value in the loop that reads it, in additions, no further than too much.

    And whether there is a short reduction in it, a loop inside the loop.
    """
    found, is_nested, stack, seen = 0, False, [(var, 1)], {var}
    while stack and found <= MOST_WORK:
        v, times = stack.pop()
        position = program.producers.get(v)
        if position is None:
            continue
        eqn = program.eqns[position]
        name = eqn.primitive.name
        if name in GATHERED or (name in BRANCHED and v.aval.dtype in COMPLEX):
            return MOST_WORK + 1, is_nested  # XLA:CPU fuses them too, and they make no vectors
        if name in REDUCERS:
            reduced = math.prod(eqn.invars[0].aval.shape[axis] for axis in eqn.params.get("axes", ()))
            if reduced > LONGEST_FUSED_REDUCTION:
                continue
            times, is_nested = times * reduced, True
        elif name not in FUSIBLE:
            continue
        if name not in VIEWS and name != "broadcast_in_dim":
            found += times * (TRANSCENDENTAL_WORK if name in TRANSCENDENTAL else 1)
        new = [w for w in program.operands[position] if w not in seen]
        seen.update(new)
        stack += [(w, times) for w in new]
    return found, is_nested


def first_axis(program: Program, eqn: Any) -> int | None:
    """The axis that a sum over several is written to begin with; None where that is one sum, or in blocks."""
    if eqn.primitive.name != "reduce_sum" or eqn.invars[0].aval.dtype not in DTYPES:
        return None
    shape = eqn.invars[0].aval.shape
    axes = [axis for axis in eqn.params["axes"] if shape[axis] > 1]
    if len(axes) < 2 or all(shape[axis] <= LONGEST_FUSED_REDUCTION for axis in axes):
        return None
    return max(axes) if block_of(program, eqn) is None else None


def is_summed_again(program: Program, eqn: Any) -> bool:
    """Whether an equation is a sum that another one sums further, over more numbers than one pass reduces in a row."""
    if eqn.primitive.name != "reduce_sum" or eqn.invars[0].aval.dtype not in DTYPES:
        return False
    known = program.known.setdefault("summed again", {})
    made = eqn.outvars[0]
    if made not in known:
        known[made] = _is_summed_again(program, made, _longest(eqn))
    return known[made]


def _is_summed_again(program: Program, var: Any, longest: int) -> bool:
    """Whether a sum reads a value, as it is or as what XLA makes of it: with another sign or shape, or with 0 added."""
    for position, _ in program.consumers.get(var, ()):
        reader = program.eqns[position]
        name = reader.primitive.name
        if name == "reduce_sum" and longest * _longest(reader) > LONGEST_FUSED_REDUCTION:
            return True
        is_passed = (
            name in RESHAPED or name == "neg" or (name in ADDS and any(_is_zero(program, v) for v in reader.invars))
        )
        if is_passed and _is_summed_again(program, reader.outvars[0], longest):
            return True
    return False


def _longest(eqn: Any) -> int:
    """Numbers that a sum adds one after the other: a window of each of its axes."""
    shape = eqn.invars[0].aval.shape
    return math.prod(min(shape[axis], LONGEST_FUSED_REDUCTION) for axis in eqn.params["axes"])


def _is_zero(program: Program, var: Any) -> bool:
    """Whether a value is nothing but 0."""
    position = None if isinstance(var, Literal) else program.producers.get(var)
    if position is not None and program.eqns[position].primitive.name == "broadcast_in_dim":
        (var, *_) = program.eqns[position].invars
    return isinstance(var, Literal) and not np.any(var.val)


def parts_of(eqn: Any) -> Parts | None:
    """How a product of a matrix and a vector, or of batches of both, is written in blocks; None where it is not.

    Args:
      eqn: an equation.

    Returns:
      Which operand is the matrix, and the number of blocks of the first axis that is summed. None where what stays of
      the matrix is not behind what is summed, as XLA:CPU sums what lies side by side in vectors; or where no number of
      blocks divides that axis.
    """
    if eqn.primitive.name != "dot_general" or not _is_made_of_no_wider(eqn):
        return None
    sizes = [sizes_of(eqn, side) for side in (0, 1)]
    matrix = 0 if sizes[0][2] > 1 else 1
    (_, total, kept), (_, _, others) = sizes[matrix], sizes[1 - matrix]
    batched, contracted, free = axes_of(eqn, matrix)
    shape = eqn.invars[matrix].aval.shape
    if kept < 2 or others != 1 or total <= LONGEST_CHAIN or [*batched, *contracted, *free] != list(range(len(shape))):
        return None
    first = shape[contracted[0]]
    lengths = (n for n in range(min(MOST_ROWS, total // 2), FEWEST_ROWS - 1, -1) if total % n == 0)
    rows = _nearest((n for n in lengths if first % (total // n) == 0), ROWS)
    return None if rows is None else Parts(matrix, total // rows)


def _is_made_of_no_wider(eqn: Any) -> bool:
    """Whether the result of a product has a type that is written, and each operand that or one that becomes it."""
    dtype = eqn.outvars[0].aval.dtype
    return dtype in DTYPES and all(jnp.promote_types(v.aval.dtype, dtype) == dtype for v in eqn.invars)


def otherwise(eqn: Any) -> Turned | Convolved | None:
    """How an equation is written that solves systems, where LAPACK knows them, or is such a convolution."""
    if convolutions.is_otherwise(eqn):
        return Convolved()
    is_solve = eqn.primitive.name in SOLVES and eqn.outvars[0].aval.dtype in DTYPES
    return Turned() if is_solve else None


def _nearest(counts: Iterable[int], best: int) -> int | None:
    """The first of some counts that are nearest to what is best, by their ratio; None where there is none."""
    return min(counts, key=lambda n: abs(math.log(n / best)), default=None)


def blocks_in(program: Program) -> dict[Any, Written]:
    """What of a program is written in another way, in its control flow too: result -> how."""
    found: dict[Any, Written] = {}
    for eqn in program.eqns:
        block = block_of(program, eqn)
        how = Wide(block) if is_wide(eqn) else block or parts_of(eqn) or otherwise(eqn)
        if how is not None:
            found[eqn.outvars[0]] = how
        elif (axis := first_axis(program, eqn)) is not None:
            found[eqn.outvars[0]] = Apart(axis)
        elif is_summed_again(program, eqn):
            found[eqn.outvars[0]] = Alone()
        for body in _compat.bodies(eqn):
            found.update(blocks_in(program_of(body.jaxpr)))
    return found


def write(eqn: Any, operands: list[Any], how: Written) -> list[Any]:
    """Evaluate an equation as it is written for XLA:CPU.

    Args:
      eqn: the equation.
      operands: its operands.
      how: how.

    Returns:
      The result.
    """
    if isinstance(how, Parts):
        return _multiplied_in_parts(eqn, operands, how)
    if isinstance(how, Turned):
        return _solved_transposed(eqn, operands)
    if isinstance(how, Convolved):
        return convolutions.write(eqn, operands)
    (operand,) = operands
    if isinstance(how, Wide):
        with _compat.equation_context(eqn):
            wide = lax.convert_element_type(operand, np.float32)
        found = _compat.bind(eqn, wide) if how.block is None else write(eqn, [wide], how.block)
        with _compat.equation_context(eqn):
            return [lax.convert_element_type(x, operand.dtype) for x in found]
    if isinstance(how, Alone):
        return [_alone(eqn, operand, eqn.params["axes"])]
    axes = sorted(eqn.params["axes"])
    if isinstance(how, Block):
        axis, parts = how.axis, how.parts
        shape = operand.shape
        blocked = (*shape[:axis], parts, shape[axis] // parts, *shape[axis + 1 :])
        with _compat.equation_context(eqn):
            operand = lax.reshape(operand, blocked)
        operand = _alone(eqn, operand, (axis,))
    while eqn.primitive.name == "reduce_sum" and len(axes) > 1:
        operand = _alone(eqn, operand, (axes.pop(),))
    return _compat.bind(eqn, operand, axes=tuple(axes))


def _alone(eqn: Any, operand: Any, axes: tuple[int, ...]) -> Any:
    (partial,) = _compat.bind(eqn, operand, axes=axes)
    with _compat.equation_context(eqn):
        return lax.optimization_barrier(partial)  # XLA would make one reduction of two


def _solved_transposed(eqn: Any, operands: list[Any]) -> list[Any]:
    """op(a) x = b as x.T op(a).T = b.T, where op(a).T is op(a.T) of a triangle on the other side."""
    sides = {name: not eqn.params[name] for name in ("left_side", "lower")}
    with _compat.equation_context(eqn):
        operands = [jnp.swapaxes(x, -1, -2) for x in operands]
    (solved,) = _compat.bind(eqn, *operands, **sides)
    with _compat.equation_context(eqn):
        return [jnp.swapaxes(solved, -1, -2)]


def _multiplied_in_parts(eqn: Any, operands: list[Any], how: Parts) -> list[Any]:
    """The products of the blocks of both operands, and their sum.

    Written with one batch axis: to merge several XLA:CPU copies the operands. They have the type of the result before:
    XLA:CPU would store what it converts in either case, and once more in blocks.
    """
    found, dtype = [], eqn.outvars[0].aval.dtype
    for side, operand in enumerate(operands):
        batched, contracted, free = axes_of(eqn, side)
        batch, total, kept = sizes_of(eqn, side)
        with _compat.equation_context(eqn):
            operand = lax.transpose(lax.convert_element_type(operand, dtype), (*batched, *contracted, *free))
            found.append(lax.reshape(operand, (batch * how.parts, total // how.parts, kept)))
    (products,) = _compat.bind(eqn, *found, dimension_numbers=(((1,), (1,)), ((0,), (0,))))
    with _compat.equation_context(eqn):
        products = lax.optimization_barrier(products)  # XLA could make one product of them
        products = lax.reshape(products, (batch, how.parts, products.size // (batch * how.parts)))
        return [lax.reshape(lax.reduce_sum(products, [1]), eqn.outvars[0].aval.shape)]
