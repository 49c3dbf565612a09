"""The reorder pass: a tree of products and sums is one contraction, and is evaluated in the best order.

    rewrite: (A.T @ B) @ v -> A.T @ (B @ v)

Products of matrices, products with broadcasts, transposes and sums over axes are all sums of products over indices. A
maximal tree of them is collected, however it is spelled, and opt_einsum finds the order of pairwise contractions.
Any of its optimisers, or cotengra's, can be among those that are asked (`OPTIMIZERS`); of their orders the one with the
least predicted time is taken among those whose live values fit, else the one that needs the least memory.

What is computed in between and read by somebody else as well, or returned, stays as it is. Nothing is reordered in
types below 32 bits, nor under numerics="exact".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import opt_einsum

from exla._compat import Literal
from exla.errors import ReplayMiss
from exla.ir.indexed import RENAMING, Indexed, Term
from exla.ir.memory import Path
from exla.ir.program import Program
from exla.passes.decisions import Order, Reorder
from exla.passes.paths import at_site, bodies_to_rewrite
from exla.passes.rewritten import rewritten

OPTIMIZERS: dict[str, Any] = {
    "flops": opt_einsum.DynamicProgramming(minimize="flops"),
    "size": opt_einsum.DynamicProgramming(minimize="size"),
    "write": opt_einsum.DynamicProgramming(minimize="write"),
    "greedy": "greedy",
}
"""Who proposes orders: anything that opt_einsum takes as `optimize`."""
TYPES = frozenset({"float32", "float64", "complex64", "complex128", "int32", "int64", "uint32", "uint64"})
MOST_FACTORS = 40

Seconds = Callable[[int, int, int], float]
"""(multiplications, elements read, elements written) -> predicted seconds of one pairwise contraction."""


@dataclass(frozen=True, kw_only=True)
class Contraction:
    """A sum of products: result[indices] = sum over the other indices of the product of the factors.

    Attributes:
      factors: what is multiplied.
      result: the result and its indices.
      sizes: index -> how many.
      inside: positions of the equations that it covers.
      precision: that of its matrix products.
    """

    factors: tuple[Term, ...]
    result: Term
    sizes: dict[int, int]
    inside: frozenset[int]
    precision: Any

    def indices(self) -> list[frozenset[int]]:
        """The indices of each factor."""
        return [frozenset(i for i in f.indices if i is not None) for f in self.factors]


def contraction(program: Program, position: int) -> Contraction | None:
    """The contraction whose result an equation makes; None where there is none worth looking at."""
    eqn = program.eqns[position]
    if eqn.primitive.name not in ("dot_general", "reduce_sum"):
        return None
    dtype = eqn.outvars[0].aval.dtype
    if str(dtype) not in TYPES:
        return None
    walk = Indexed(program)
    result = walk.whole(eqn.outvars[0])
    outputs = {v for v in program.outvars if not isinstance(v, Literal)}
    inside: set[int] = set()
    precisions: list[Any] = []
    factors: list[Term] = []
    stack = [result]
    while stack:
        term = stack.pop()
        behind = walk.peel(term)
        i = None if isinstance(behind.atom, Literal) else program.producers.get(behind.atom)
        is_root = i == position
        if i is None or not (is_root or _only_here(program, term, behind, outputs)):
            factors.append(behind)
            continue
        inner = program.eqns[i]
        name = inner.primitive.name
        precision = inner.params.get("precision")
        joined = name in ("dot_general", "reduce_sum", "mul") and inner.outvars[0].aval.dtype == dtype
        if name == "dot_general":
            joined = joined and all(v.aval.dtype == dtype for v in inner.invars)
            joined = joined and (not precisions or precisions[0] == precision)
        operands = walk.operands(i, [behind]) if joined else None
        if operands is None or len(factors) + len(stack) > MOST_FACTORS:
            if is_root:
                return None
            factors.append(behind)
            continue
        if name == "dot_general":
            precisions.append(precision)
        inside.add(i)
        stack += operands
    if len(factors) < 2 or (len(factors) == 2 and len(inside) == 1):
        return None
    return Contraction(
        factors=tuple(factors),
        result=result,
        sizes=dict(walk.sizes),
        inside=frozenset(inside),
        precision=precisions[0] if precisions else None,
    )


def _only_here(program: Program, term: Term, behind: Term, outputs: set[Any]) -> bool:
    """Whether a value is read once only, through what merely renames its indices."""
    var = behind.atom
    while True:
        uses = program.consumers.get(var, [])
        if var in outputs or len(uses) != 1:
            return False
        if var is term.atom:
            return True
        eqn = program.eqns[uses[0][0]]
        if eqn.primitive.name not in RENAMING:
            return True
        var = eqn.outvars[0]


def orders(found: Contraction, seconds: Seconds, room_bytes: int) -> list[Order]:
    """Orders of evaluation, best first: by predicted time among those whose live values fit, then by their bytes.

    Args:
      found: the contraction.
      seconds: predicts one pairwise contraction.
      room_bytes: what intermediate values may take.
    """
    names = {i: opt_einsum.get_symbol(n) for n, i in enumerate(sorted(set().union(*found.indices())))}
    inputs = ["".join(names[i] for i in f.indices if i is not None) for f in found.factors]
    output = "".join(names[i] for i in found.result.indices if i in names)
    shapes = [tuple(found.sizes[i] for i in f.indices if i is not None) for f in found.factors]
    known: dict[Order, tuple[bool, float]] = {}
    for optimize in OPTIMIZERS.values():
        path, _ = opt_einsum.contract_path(
            f"{','.join(inputs)}->{output}", *shapes, shapes=True, optimize=optimize if len(inputs) > 2 else "greedy"
        )
        order = tuple(tuple(int(k) for k in step) for step in path)
        if order not in known:
            spent, most = _cost(found, order, seconds)
            fits = most <= room_bytes
            known[order] = (not fits, spent if fits else float(most))
    return sorted(known, key=lambda order: known[order])


def _steps(found: Contraction, order: Order) -> Iterator[tuple[tuple[int, ...], list[frozenset[int]], frozenset[int]]]:
    """Each step of an order: (which of the factors left, their indices, the indices of what they become)."""
    left = found.indices()
    wanted = frozenset(i for i in found.result.indices if i is not None)
    for step in order:
        taken = [left[k] for k in step]
        left = [f for k, f in enumerate(left) if k not in step]
        made = frozenset().union(*taken) & wanted.union(*left)
        left.append(made)
        yield step, taken, made


def _cost(found: Contraction, order: Order, seconds: Seconds) -> tuple[float, int]:
    """Predicted seconds of an order, and the most bytes of intermediate values that are live at once."""
    item = found.result.atom.aval.dtype.itemsize
    original = set(found.indices())

    def count(indices: frozenset[int]) -> int:
        return math.prod(found.sizes[i] for i in indices)

    spent, live, most = 0.0, 0, 0
    for _, taken, made in _steps(found, order):
        spent += seconds(count(frozenset().union(*taken)), sum(map(count, taken)), count(made))
        live += count(made) * item
        most = max(most, live)
        live -= sum(count(t) * item for t in taken if t not in original)
    return spent, most


def enumerate_reorders(
    program: Program, seconds: Seconds, room_bytes: int, path: Path = ()
) -> Iterator[tuple[Reorder, Contraction]]:
    """The best order of each maximal contraction, bodies of control flow included.

    Args:
      program: the program.
      seconds: predicts one pairwise contraction.
      room_bytes: what intermediate values may take.
      path: where the program is.
    """
    covered: set[int] = set()
    for position in reversed(range(len(program.eqns))):
        found = None if position in covered else contraction(program, position)
        if found is None:
            continue
        covered |= found.inside
        yield Reorder(path=path, site=program.site(position), order=orders(found, seconds, room_bytes)[0]), found
    for body, inner in bodies_to_rewrite(program, path):
        yield from enumerate_reorders(body, seconds, room_bytes, inner)


def apply_reorder(program: Program, decision: Reorder) -> Program:
    """Replay a reordering.

    Raises:
      ReplayMiss: if there is no such contraction.
    """

    def change(inner: Program, position: int) -> Program:
        found = contraction(inner, position)
        if found is None or not _is_order(decision.order, len(found.factors)):
            raise ReplayMiss(f"{decision}: there is no contraction of that many factors")
        reads = [factor.atom for factor in found.factors]
        return rewritten(inner, position, reads, lambda get: [_evaluated(found, decision.order, get)])

    return at_site(program, decision, change)


def _is_order(order: Order, factors: int) -> bool:
    for step in order:
        if not step or len(set(step)) != len(step) or not all(0 <= k < factors for k in step):
            return False
        factors -= len(step) - 1
    return factors == 1


def _evaluated(found: Contraction, order: Order, get: Callable[[Any], Any]) -> Any:
    """The contraction, evaluated in an order."""
    dtype = found.result.atom.aval.dtype
    left: list[tuple[Any, tuple[int, ...]]] = []
    for factor in found.factors:
        axes = tuple(i for i in factor.indices if i is not None)
        left.append((jnp.asarray(get(factor.atom), dtype).reshape([found.sizes[i] for i in axes]), axes))
    wanted = tuple(i for i in found.result.indices if i is not None)
    for step, _, made in _steps(found, order):
        taken = [left[k] for k in step]
        left = [f for k, f in enumerate(left) if k not in step]
        value, axes = taken[0]
        for n, (other, other_axes) in enumerate(taken[1:], 2):
            rest = {i for _, later in taken[n:] for i in later}
            value, axes = _pair(value, axes, other, other_axes, made | rest, found)
        if len(taken) == 1 or set(axes) != made:
            value, axes = _summed(value, axes, made)
        left.append((value, axes))
    ((value, axes),) = left
    present = [i for i in wanted if i in axes]
    value = value.transpose([axes.index(i) for i in present])
    value = value.reshape([found.sizes[i] if i in axes else 1 for i in found.result.indices if i is not None])
    value = jnp.broadcast_to(value, [found.sizes[i] for i in wanted])
    return value.reshape(found.result.atom.aval.shape)


def _summed(value: Any, axes: Sequence[int], kept: Set[int]) -> tuple[Any, tuple[int, ...]]:
    """A value summed over the axes that are not kept."""
    gone = tuple(k for k, i in enumerate(axes) if i not in kept)
    return (jnp.sum(value, axis=gone, dtype=value.dtype) if gone else value), tuple(i for i in axes if i in kept)


def _pair(
    a: Any,
    a_axes: tuple[int, ...],
    b: Any,
    b_axes: tuple[int, ...],
    kept: frozenset[int] | set[int],
    found: Contraction,
) -> tuple[Any, tuple[int, ...]]:
    """The product of two values, summed over what is not kept; what only one of them has is summed first."""
    a, a_axes = _summed(a, a_axes, set(b_axes) | kept)
    b, b_axes = _summed(b, b_axes, set(a_axes) | kept)
    axes = tuple(dict.fromkeys((*(i for i in a_axes if i in kept), *(i for i in b_axes if i in kept))))
    both = set(a_axes) | set(b_axes)
    if both == set(axes):
        return _along(a, a_axes, axes) * _along(b, b_axes, axes), axes
    names = {i: opt_einsum.get_symbol(n) for n, i in enumerate(sorted(both))}
    spelled = ["".join(names[i] for i in group) for group in (a_axes, b_axes, axes)]
    value = jnp.einsum(f"{spelled[0]},{spelled[1]}->{spelled[2]}", a, b, precision=found.precision)
    return value, axes


def _along(value: Any, axes: Sequence[int], onto: Sequence[int]) -> Any:
    """A value with unit axes where it lacks some of `onto`."""
    order = [i for i in onto if i in axes]
    value = value.transpose([axes.index(i) for i in order])
    return jnp.expand_dims(value, [k for k, i in enumerate(onto) if i not in axes])
