"""How large the program itself is where a compiler counts it: TPUs hold their code in the memory that it works on.

A TPU's compiler unrolls: a sine of a matrix is 0.3 MB of instructions, a sort of rows of 4,096 numbers 1.2, a Cholesky
factor of 1,024 columns 7, and a program that does nothing 0.03. Programs whose values fit on the chip take little but
their code. `code_bytes` is a sum over equations, each once however many fusions compute it (counting each of these
told no more): so much for each kind, and less where a value is too small to be unrolled. It is right within a factor
of 1.4 for half of the programs that it was not made from, and of 2 for most.

The costs (`TPU`) are those of programs of one operation, moved to where they fit those of the zoo that
`benchmarks.projection` compiled for a `tpu:v5e`: `python -m benchmarks.code_size` does both again, and says what is
foretold of programs that were left out. Where a sort or product is cut into loops is not known, nor which values of a
fusion are unrolled together.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from exla.ir.primitives import CUMULATIVE, ELEMENTWISE, REDUCERS, SCATTERS, TRANSCENDENTAL, VIEWS, named
from exla.ir.products import axes_of, is_vectors
from exla.ir.program import Program

if TYPE_CHECKING:
    from exla.ir.fusing import Fused

VECTOR = 1024
"""Numbers in a register of a TPU's vector unit: 8 x 128."""
UNROLLED = 1024
"""Registers from which on a value costs no more; a square matrix of 1,024 rows has so many."""
SPREAD = 8
"""What is broadcast to so many times its size is read in a loop of its own, which is unrolled too."""
LEAST_SPREAD = 256
"""Numbers; what is smaller and broadcast is a constant."""
DEEP = 1024
"""Indices of a contraction from which on a product's code grows no more."""
LONGEST_TRANSFORM = 1024
"""Likewise the points of a Fourier transform, which is products up to there."""
COLUMNS = 128
"""Columns of a matrix that one block of a factorisation has."""

SERIES = named("sin cos tan pow rem atan2 lgamma digamma erf_inv sinh cosh asin acos atan igamma random_bits")
"""What a TPU has no instruction for, and computes by many."""
FUNCTIONS = (TRANSCENDENTAL - SERIES) | named("sqrt div")
MOVING = named("transpose rev concatenate stack pad slice")
ORTHOGONAL = named("geqrf householder_product qr")
FACTORS = named("cholesky triangular_solve lu eigh")
SELECTING = named("argmax argmin")
FREE = VIEWS | named("broadcast_in_dim iota")


@dataclass(frozen=True, kw_only=True, eq=False)
class CodeCosts:
    """Bytes of code for each kind of equation; "of" says what they are multiplied with.

    Attributes:
      program: what every program has.
      kernel: what every stored value has.
      unrolled: its loop, where the value is large.
      elementwise: element-wise values where they are large, and what moves them about.
      spread: element-wise values of what is broadcast.
      functions: likewise exponentials, roots, quotients.
      series: functions made of many instructions; random bits.
      reductions: reductions of what is large.
      spread_reductions: reductions of what is broadcast.
      selections: argmax and argmin.
      products: matrix products that are large.
      deep: the part of them that grows with the contraction.
      sorts: sorts; of the square of the logarithm of the length.
      cumulative: cumulative reductions; of the logarithm of the length.
      transforms: Fourier transforms; of the points.
      factors: factors and solves of a matrix; of its columns.
      orthogonal: QR factors.
      indexed: gathers, scatters and top-k.
      convolutions: convolutions.
      others: all other equations, with bodies or without.
    """

    program: int
    kernel: int
    unrolled: int
    elementwise: int
    spread: int
    functions: int
    series: int
    reductions: int
    spread_reductions: int
    selections: int
    products: int
    deep: int
    sorts: int
    cumulative: int
    transforms: int
    factors: int
    orthogonal: int
    indexed: int
    convolutions: int
    others: int

    def bytes(self, amounts: Mapping[str, float]) -> int:
        """Bytes of a program of which so much is of each kind."""
        return round(sum(getattr(self, kind) * amount for kind, amount in amounts.items()))


TPU = CodeCosts(
    program=39_000,
    kernel=5_700,
    unrolled=25_000,
    elementwise=30_000,
    spread=33_000,
    functions=45_000,
    series=450_000,
    reductions=10_000,
    spread_reductions=72_000,
    selections=160_000,
    products=110_000,
    deep=250_000,
    sorts=13_000,
    cumulative=100_000,
    transforms=5_500,
    factors=5_100,
    orthogonal=820_000,
    indexed=470_000,
    convolutions=740_000,
    others=9_500,
)
"""Of libtpu 0.0.42.1 for a `tpu:v5e`; they aim a sixth above what it counts, at the middle of what is wanted."""
KINDS = tuple(field.name for field in fields(CodeCosts))


def amounts(program: Program, plan: Fused) -> dict[str, float]:
    """How much of each kind (`CodeCosts`) a program has of its own, without the programs in it.

    Args:
      program: the program.
      plan: what its fusions store and read.
    """
    found = defaultdict[str, float](float)
    spread = set[Any]()  # values computed from what is broadcast, in the same fusion
    for position, eqn in enumerate(program.eqns):
        if any(v in plan.stored for v in eqn.outvars):
            found["kernel"] += 1
            found["unrolled"] += _unrolled(max(map(_size, [*eqn.invars, *eqn.outvars]), default=0))
        is_spread = _spreads(eqn) or any(v in spread for v in program.operands[position])
        if is_spread:
            spread.update(v for v in eqn.outvars if v not in plan.stored)
        if eqn.primitive.name not in FREE and eqn.outvars:
            for kind, amount in _amounts(eqn, is_spread):
                found[kind] += amount
    return found


def _amounts(eqn: Any, is_spread: bool) -> list[tuple[str, float]]:
    name = eqn.primitive.name
    made = max(map(_size, eqn.outvars), default=0)
    read = max(map(_size, eqn.invars), default=0)
    parts = 2 if getattr(getattr(eqn.outvars[0].aval, "dtype", None), "kind", "") == "c" else 1
    if name in SERIES:
        return [("series", _unrolled(made))]
    if name in FUNCTIONS and is_spread:
        return [("functions", parts * _unrolled(made))]
    if name in ELEMENTWISE:
        return [("spread" if is_spread else "elementwise", parts * _unrolled(made))]
    if name in MOVING:
        return [("elementwise", 2 * _unrolled(max(made, read)))]
    if name in SELECTING:
        return [("selections", _unrolled(read))]
    if name in REDUCERS:
        return [("spread_reductions" if is_spread else "reductions", _unrolled(read))]
    if name == "dot_general":
        share = parts**2 * _unrolled(max(made, read))
        if is_vectors(eqn):
            return [("reductions", share)]
        narrow, depth = _sides(eqn)
        return [("products", share), ("deep", share * min(depth / DEEP, 1) * min(narrow / COLUMNS, 1))]
    if name == "sort":
        length = eqn.invars[0].aval.shape[eqn.params["dimension"]]
        return [("sorts", math.log2(max(length, 2)) ** 2 * _unrolled(read))]
    if name in CUMULATIVE:
        return [("cumulative", math.log2(max(eqn.invars[0].aval.shape[eqn.params["axis"]], 2)))]
    if name == "fft":
        return [("transforms", sum(min(n, LONGEST_TRANSFORM) for n in eqn.params["fft_lengths"]))]
    if name in ORTHOGONAL:
        return [("orthogonal", 1)]
    if name in FACTORS:
        return [("factors", eqn.invars[0].aval.shape[-1])]
    if name in SCATTERS or name in ("gather", "top_k"):
        moved = _size(eqn.invars[2]) if name in SCATTERS else made
        return [("indexed", _unrolled(read if name == "top_k" else moved))]
    return [("convolutions" if name == "conv_general_dilated" else "others", 1)]


def _sides(eqn: Any) -> tuple[int, int]:
    """The shorter side of each result of a product, and the indices that it sums over."""
    (_, contracted, left), (_, _, right) = axes_of(eqn, 0), axes_of(eqn, 1)
    shapes = [v.aval.shape for v in eqn.invars]
    rows, columns = (math.prod(shape[k] for k in axes) for shape, axes in zip(shapes, (left, right), strict=True))
    return min(rows, columns), math.prod(shapes[0][k] for k in contracted)


def _spreads(eqn: Any) -> bool:
    if eqn.primitive.name in ("dot_general", "gather") or not eqn.outvars:
        return False
    made = _size(eqn.outvars[0])
    if len(getattr(eqn.outvars[0].aval, "shape", ())) < 2:
        return False
    return any(_size(v) >= LEAST_SPREAD and made >= SPREAD * _size(v) for v in eqn.invars)


def _unrolled(count: int) -> float:
    """The share of the code of a large value that one of so many numbers has."""
    return min(count / VECTOR, UNROLLED) / UNROLLED


def _size(var: Any) -> int:
    return math.prod(getattr(var.aval, "shape", ()))
