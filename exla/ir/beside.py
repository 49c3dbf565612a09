"""What an operation stores beside its results while it is computed, by compiler.

XLA:CPU hands matrix products, sorts and Fourier transforms to libraries that allocate (`exla.scratch`), reduces long
axes in passes by windows, and sums cumulatively in two. XLA:GPU lengthens the operands of products that it cuts. TPUs
sum cumulatively in rows, and transform real numbers as complex ones; and they copy what a loop reads or stacks row by
row where arguments and results lie otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from exla import _compat
from exla.ir.blocks import block_of, first_axis, is_wide, parts_of
from exla.ir.convolutions import calls_library
from exla.ir.primitives import CUMULATIVE, ELEMENTWISE, FUSIBLE, REDUCERS, VIEWS, WINDOWED
from exla.ir.products import axes_of, is_ordered, is_outer, sizes_of
from exla.ir.program import Program, value_bytes, variables
from exla.ir.split_products import padded_depth
from exla.ir.storing import Storing, stacked_bytes
from exla.ir.tiles import padded_bytes
from exla.scratch import convolution_bytes, product_bytes, sort_bytes, transform_bytes

IN_PASSES = WINDOWED | CUMULATIVE
INDEX_BYTES = 4
TURNING = VIEWS | {"transpose"}
SPREADING = VIEWS | {"broadcast_in_dim"}
DECOMPOSED = frozenset({"svd", "eig"})
ROUNDS = 4
"""Values of their size that XLA:CPU stores to draw random bits: two, in a loop that copies both."""
MOST_OF_ROW, MOST_OF_COLUMN = 1024 * 16, 32 * 128
"""Indices that one block of threads of a GPU reduces, where they lie side by side and where they do not."""
WRITTEN = FUSIBLE | {"split"}
"""What XLA:GPU computes as it writes it, be it padded."""
FEW = 3
"""Indices over which XLA:GPU sums again for every reader rather than store the sums for two."""
ROW = 128
"""Indices that TPUs sum cumulatively at once."""
LONGEST_AT_ONCE = 256
"""Points of a Fourier transform that TPUs compute as one product."""
SUMMED = 16
"""Indices that XLA:CPU sums cumulatively at once (its ReduceWindowRewriter's window)."""


def beside_bytes(program: Program, eqn: Any, made: dict[Any, int], storing: Storing, room: int = 0) -> int:
    """Bytes that an equation stores beside its results.

    Args:
      program: the program.
      eqn: one of its equations.
      made: how many bytes its results take.
      storing: what the compiler stores.
      room: bytes that are free on the chip.
    """
    name = eqn.primitive.name
    if storing.tiled and name == "scan":
        return _beyond(_relaid(program, eqn), room)
    if storing.tiled and name in CUMULATIVE:
        return _beyond(_in_rows(eqn), room)
    if storing.tiled and name == "fft":
        return _beyond(_in_parts(eqn), room)
    if storing.threads:
        return _in_passes(program, eqn, storing)
    if name in REDUCERS and storing.cutting is not None:
        return _in_two_passes(eqn)
    if name != "dot_general":
        return 0
    if not padded_depth(eqn, storing.cutting):
        return 0
    roots = {_root(program, v) for v in variables(eqn.invars)}
    return sum(_lengthened_bytes(program, root, storing) for root in roots)


def libraries_bytes(program: Program, eqn: Any, storing: Storing, *, is_outside: bool) -> tuple[int, int]:
    """Bytes that a library allocates to compute an equation, outside of all loops or inside one; the compiler assigns
    none of them. First where Eigen multiplies matrices, then where YNNPACK does, which are the same for the rest."""
    if eqn.primitive.name != "dot_general":
        called = _called_bytes(eqn, storing, is_outside=is_outside)
        return called, called
    if is_outer(eqn):
        return 0, 0
    is_turned = _is_turned(program, eqn)
    packed = _packed_bytes(eqn, storing.threads, is_turned)
    packs_once = packed and storing.packs_once and not _is_left_to_eigen(eqn, int(is_turned))
    return packed, sum(map(value_bytes, eqn.invars)) if packs_once else packed


def _called_bytes(eqn: Any, storing: Storing, *, is_outside: bool) -> int:
    """The same of what is no matrix product."""
    name, threads = eqn.primitive.name, storing.threads
    if name == "conv_general_dilated":
        is_called = calls_library(eqn, is_outside=is_outside, is_written=storing.blocks)
        return _convolution_bytes(eqn, threads) if is_called else 0
    if name == "sort":
        length = eqn.invars[0].aval.shape[eqn.params["dimension"]]
        return sort_bytes(length=length, operands=len(eqn.invars))
    if name == "fft":
        largest = max((*eqn.invars, *eqn.outvars), key=value_bytes).aval
        length = max(eqn.params["fft_lengths"], default=1)
        rows = math.prod(largest.shape) // max(length, 1)
        return transform_bytes(rows=rows, length=length, item_bytes=_compat.item_bytes(largest.dtype), threads=threads)
    if name == "top_k":
        return INDEX_BYTES * eqn.invars[0].aval.shape[eqn.params.get("axis", -1)]
    return 0


def _in_passes(program: Program, eqn: Any, storing: Storing) -> int:
    """What XLA:CPU copies to compute an equation, and the results of the first pass over an axis that is long."""
    name, window = eqn.primitive.name, storing.window
    if name == "dot_general":
        parts, converted = parts_of(eqn) if storing.blocks else None, _converted_bytes(eqn)
        if parts is not None:
            return parts.parts * value_bytes(eqn.outvars[0]) + value_bytes(eqn.invars[1 - parts.matrix]) + converted
        return converted + (0 if is_outer(eqn) else _copied_bytes(eqn))
    if name in DECOMPOSED:
        return _decomposed_bytes(program, eqn)
    if name == "random_bits":
        return (ROUNDS - 1) * value_bytes(eqn.outvars[0])
    if window is None or name not in IN_PASSES:
        return 0
    operand = eqn.invars[0]
    shape = operand.aval.shape
    if name in CUMULATIVE:
        length = shape[eqn.params["axis"]]
        is_padded = length % SUMMED > 0 and operand not in program.producers
        return (1 + is_padded) * value_bytes(operand) if length > SUMMED else 0
    axes = eqn.params["axes"]
    item = 4 if storing.blocks and is_wide(eqn) else _compat.item_bytes(operand.aval.dtype)
    block = block_of(program, eqn) if storing.blocks else None
    if block is not None:
        shape = tuple(n // block.parts if axis == block.axis else n for axis, n in enumerate(shape))
    first = 0 if block is None else math.prod(shape) * item
    apart = first_axis(program, eqn) if storing.blocks else None
    if apart is not None:
        others = math.prod(n for axis, n in enumerate(shape) if axis != apart)
        return (others + (-(-shape[apart] // window) * others if shape[apart] > window else 0)) * item
    if all(shape[axis] <= window for axis in axes):
        return first
    windows = math.prod(-(-n // window) if axis in axes else n for axis, n in enumerate(shape))
    return first + windows * item


def _relaid(program: Program, eqn: Any) -> list[int]:
    """What a TPU stores of a scan because rows lie whole in it, and not in the program's arguments and results."""
    stacked = [eqn.outvars[k] for k in _compat.stacked_by_scan(eqn)]
    read = [eqn.invars[k] for k in _compat.read_by_turns(eqn)]
    found = [v for v in stacked if v in program.outvars] + [v for v in read if v in program.invars]
    sizes = {v: padded_bytes(v.aval.shape, _compat.item_bytes(v.aval.dtype)) for v in found}
    return [stacked_bytes(v) for v, size in sizes.items() if stacked_bytes(v) != size]


def _in_rows(eqn: Any) -> list[int]:
    """What TPUs store to sum cumulatively over more than `ROW` indices: rows of so many, and their sums."""
    shape = eqn.invars[0].aval.shape
    if shape[eqn.params["axis"]] <= ROW:
        return []
    return [padded_bytes(shape, _compat.item_bytes(eqn.outvars[0].aval.dtype))] * 2


def _in_parts(eqn: Any) -> list[int]:
    """What TPUs store to transform real numbers, or to them: both parts of the whole spectrum, from products.

    Half of it is what a program asks for or has; of that they make the other half before they transform it back.
    """
    real = next((v for v in (*eqn.invars, *eqn.outvars) if getattr(v.aval.dtype, "kind", "") == "f"), None)
    if real is None:
        return []
    is_short = real is eqn.invars[0] and real.aval.shape[-1] <= LONGEST_AT_ONCE
    return [padded_bytes(real.aval.shape, _compat.item_bytes(real.aval.dtype))] * (1 if is_short else 3)


def _beyond(sizes: Sequence[int], room: int) -> int:
    """Bytes of values for which there is no room on the chip, whoever comes first."""
    total = 0
    for size in sizes:
        if size <= room:
            room -= size
        else:
            total += size
    return total


def _in_two_passes(eqn: Any) -> int:
    """What XLA:GPU stores between the two passes in which it reduces more indices than one block of threads does.

    Source: `TreeReductionRewriter` and `ReductionDimensionRaceFreeBound` in XLA.
    """
    shape, axes = eqn.invars[0].aval.shape, sorted(eqn.params.get("axes", ()))
    reduced = math.prod(shape[axis] for axis in axes)
    most = MOST_OF_ROW if len(shape) - 1 in axes else MOST_OF_COLUMN
    if reduced <= most or axes != list(range(axes[0], axes[-1] + 1)):
        return 0
    item = sum(_compat.item_bytes(v.aval.dtype) for v in eqn.invars if v.aval.shape)
    return _partial_results(reduced, most) * item * math.prod(shape) // max(reduced, 1)


@lru_cache
def _partial_results(count: int, most: int) -> int:
    """Into how many results so many indices are reduced first: about their root, by what pads them least."""
    root = math.isqrt(count)
    largest = min(root, most)
    padded = {size: -count % size for size in range(largest // 2 + 1, largest + 1)}
    best = min(padded, key=lambda size: (padded[size], size.bit_count() > 1, -size))
    return best if root <= most else -(-count // best)


def _decomposed_bytes(program: Program, eqn: Any) -> int:
    """What LAPACK writes beside the results: an argument, which it overwrites, and vectors that nobody asked for.

    Singular vectors that are asked for are written the other way round, and then turned where the matrices were.
    """
    (operand,) = eqn.invars
    *batch, rows, columns = operand.aval.shape
    each = math.prod(batch) * _compat.item_bytes(operand.aval.dtype)
    copied = 0 if operand in program.producers else each * rows * columns
    if eqn.primitive.name == "svd":
        left, right = (rows, columns) if eqn.params["full_matrices"] else (min(rows, columns),) * 2
        reused = rows * columns if eqn.params["compute_uv"] else 0
        return copied + each * max(rows * left + columns * right - reused, 0)
    asked = eqn.params["compute_left_eigenvectors"] + eqn.params["compute_right_eigenvectors"]
    return copied + (2 - asked) * value_bytes(eqn.outvars[0]) * columns


def _copied_bytes(eqn: Any) -> int:
    """Operands whose axes lie in no order in which the library multiplies them."""
    return sum(value_bytes(v) for side, v in enumerate(eqn.invars) if not is_ordered(eqn, side))


def _converted_bytes(eqn: Any) -> int:
    """Operands of a product of two types that have not that of its result: XLA:CPU stores them as such."""
    dtype = eqn.outvars[0].aval.dtype
    if eqn.invars[0].aval.dtype == eqn.invars[1].aval.dtype:
        return 0
    return sum(v.aval.size * _compat.item_bytes(dtype) for v in eqn.invars if v.aval.dtype != dtype)


def _packed_bytes(eqn: Any, threads: int, is_turned: bool) -> int:
    (batch, _, rows), (_, depth, columns) = sizes_of(eqn, 0), sizes_of(eqn, 1)
    return product_bytes(
        batch=batch,
        rows=columns if is_turned else rows,
        columns=rows if is_turned else columns,
        depth=depth,
        item_bytes=_compat.item_bytes(eqn.invars[0].aval.dtype),
        threads=threads,
    )


def _is_left_to_eigen(eqn: Any, left: int) -> bool:
    """Whether YNNPACK does not multiply, for the left matrix lies in columns; `left`: which operand that is."""
    _, contracted, free = axes_of(eqn, left)
    return len(contracted) == len(free) == 1 and contracted[0] < free[0]


def _is_turned(program: Program, eqn: Any) -> bool:
    """Whether a product of two matrices is only read transposed: XLA multiplies them the other way round then.

    Source: `HandleTranspose` in XLA's algebraic simplifier.
    """
    (result,) = eqn.outvars
    readers = [program.eqns[i].primitive.name for i, _ in program.consumers.get(result, ())]
    return readers == ["transpose"] and result.aval.ndim == 2 and result not in program.outvars


def _convolution_bytes(eqn: Any, threads: int) -> int:
    (image, kernel), result = (v.aval.shape for v in eqn.invars), eqn.outvars[0].aval.shape
    numbers = eqn.params["dimension_numbers"]
    channels, features = image[numbers.lhs_spec[1]], result[numbers.out_spec[1]]
    is_dense = all(d == 1 for d in (*eqn.params["rhs_dilation"], *eqn.params["window_strides"]))
    return convolution_bytes(
        image=(math.prod(image) // max(channels, 1), channels),
        result=(math.prod(result) // max(features, 1), features),
        window=tuple(kernel[axis] for axis in numbers.rhs_spec[2:]),
        groups=eqn.params["feature_group_count"],
        is_dilated=is_dense and any(d > 1 for d in eqn.params["lhs_dilation"]),
        item_bytes=max(_compat.item_bytes(v.aval.dtype) for v in (eqn.invars[0], eqn.outvars[0])),
        threads=threads,
    )


def _root(program: Program, var: Any) -> Any:
    """What a value is a view of, be it turned."""
    position = program.producers.get(var)
    while position is not None and program.eqns[position].primitive.name in TURNING:
        behind = variables(program.eqns[position].invars)
        if not behind:
            return var
        var = behind[0]
        position = program.producers.get(var)
    return var


def _lengthened_bytes(program: Program, var: Any, storing: Storing) -> int:
    """Copies of an operand that XLA:GPU makes for the products that it cuts: for all that read it at once."""
    position = program.producers.get(var)
    if position is not None and _is_written_longer(program, position):
        return 0
    return len(_paddings(program, var, tuple(range(len(var.aval.shape))), storing)) * value_bytes(var)


def _paddings(program: Program, var: Any, axes: tuple[int, ...], storing: Storing) -> set[tuple[int, int]]:
    """The axes of a value that products lengthen, and to which length; `axes` are those of the value as it is seen."""
    found = set[tuple[int, int]]()
    for i, side in program.consumers.get(var, ()):
        eqn = program.eqns[i]
        if eqn.primitive.name == "transpose":
            turned = tuple(axes[k] for k in eqn.params["permutation"])
            found |= _paddings(program, eqn.outvars[0], turned, storing)
        elif eqn.primitive.name in VIEWS:
            seen = eqn.outvars[0].aval.shape
            found |= _paddings(program, eqn.outvars[0], tuple(range(len(seen))), storing)
        elif eqn.primitive.name == "dot_general" and (depth := padded_depth(eqn, storing.cutting)):
            found.add((axes[eqn.params["dimension_numbers"][0][side][0]], depth))
    return found


def _is_written_longer(program: Program, position: int) -> bool:
    """Whether a value is padded as it is computed, so that no copy of it is made for that.

    Where another reduction reads it too, and it is made of short sums, it is not computed twice.
    """
    eqn = program.eqns[position]
    if eqn.primitive.name not in WRITTEN or is_normalised(program, position):
        return False
    users = [program.eqns[i] for v in eqn.outvars for i, _ in program.consumers.get(v, ())]
    return not (any(user.primitive.name in REDUCERS for user in users) and _is_of_sums(program, position))


def _is_of_sums(program: Program, position: int) -> bool:
    """Whether a value is computed element by element of sums of more than a few."""
    eqn = program.eqns[position]
    if eqn.primitive.name in REDUCERS:
        return math.prod(eqn.invars[0].aval.shape) > FEW * math.prod(eqn.outvars[0].aval.shape)
    behind = [program.producers.get(v) for v in variables(eqn.invars)] if eqn.primitive.name in ELEMENTWISE else []
    return any(at is not None and _is_of_sums(program, at) for at in behind)


def is_normalised(program: Program, position: int) -> bool:
    """Whether an equation relates values to a reduction of their rows: XLA:GPU has a kernel for it, which pads nothing.

    Source: `SoftmaxRewriterTriton` in XLA.
    """
    eqn = program.eqns[position]
    for var in variables(eqn.invars):
        at = program.producers.get(var)
        while at is not None and program.eqns[at].primitive.name in SPREADING and variables(program.eqns[at].invars):
            at = program.producers.get(variables(program.eqns[at].invars)[0])
        if at is not None and program.eqns[at].primitive.name in REDUCERS:
            reduced = program.eqns[at]
            last = len(reduced.invars[0].aval.shape) - 1
            if tuple(reduced.params["axes"]) == (last,) and reduced.invars[0].aval.shape == eqn.outvars[0].aval.shape:
                return True
    return False
