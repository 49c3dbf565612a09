"""The k nearest points: candidates by a matrix product, the chosen ones by the original formula.

PET's correction of a partially equivalent rewrite: the cheap distances only choose a few candidates more than are asked
for; their distances are then computed as the program does, and the selection is made among those, with its ties. Where
the error bound of the cheap form does not prove that no other point belongs among them, as with many equal distances
or with NaN, the original equations are evaluated for those rows' chunk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from exla.ir.rewrites import REPLACE_RULES, Example, ReplaceRule
from exla.rules.distances import distances
from exla.rules.guards import floating
from exla.rules.primitives import at_columns, number, padded, rows_at, spread
from exla.rules.replace.squared_distance import PATTERNS

SOURCE = "Wang et al., PET: partially equivalent transformations and automated corrections, OSDI 2021"
Finish = Callable[[Any], Any]
Nearest = Callable[[Any, Any, int], tuple[Any, Any, Any]]
"""`nearest`, but for what is the same at every site."""
RANKED = 32
"""So many values at a time are ranked by comparing each with each: XLA:CPU unrolls sums of up to 32 and vectorises
them, whole vectors best: 24 take four times as long, 48 take 15 times. Its TopK runs on one core, where 12 of 125 take
as long as twelve such rankings."""


def nearest(x: Any, y: Any, count: int, finish: Finish, ranked: bool = False) -> tuple[Any, Any, Any]:
    """The nearest rows of y to each row of x.

    Args:
      x: points, (n, d).
      y: points, (m, d).
      count: how many.
      finish: what the program computes from squared distances; increasing.
      ranked: whether candidates that are few are ranked by comparing each with each, not by `lax.top_k`.

    Returns:
      Whether each row is proved right, (n, 1); what `finish` makes of the distances, (n, count), smallest first; and
      the indices, (n, count) int32.
    """
    (total, depth), rows = y.shape, x.shape[0]
    taken = min(count + max(2, count // 8), total)
    few = ranked and 2 * taken <= RANKED
    block = _block(total, taken, few)
    if few:
        taken = min(RANKED // block, total)
    if taken == total:
        candidates = spread(lax.iota(np.int32, total), (rows, total), (1,))
    else:
        cheap, left, right = distances(x, y, -total % block)
        farthest_taken, candidates = _smallest_of(cheap, taken, block, few)
    inside = lax.min(lax.max(candidates, np.int32(0)), np.int32(total - 1))
    away = lax.sub(lax.expand_dims(x, (1,)), rows_at(y, inside))
    chosen = finish(lax.reduce_sum(lax.square(away), [2]))
    values, indices = _ordered(chosen, candidates, count)
    if taken == total:
        return lax.expand_dims(lax.reduce_and(lax.is_finite(chosen), [1]), (1,)), values, indices
    precision = float(jnp.finfo(x.dtype).eps)
    norms = lax.add(lax.expand_dims(left, (1,)), lax.reduce_max(right, [0]))
    beyond = lax.sub(farthest_taken, lax.mul(norms, number(norms, (depth + 5) * precision)))
    # The extreme of each row, not a slice of it: XLA:CPU sorts whole rows for a slice of a top-k.
    farthest = lax.expand_dims(lax.reduce_max(values, [1]), (1,))
    beyond = lax.mul(lax.max(beyond, number(beyond, 0)), number(beyond, 1 - (depth + 8) * precision))
    return lax.lt(farthest, finish(beyond)), values, indices


def _first(values: Any, indices: Any) -> Any:
    """Whether element j of a row comes before element i, the lower index first among equals: (rows, i, j).

    Indices may be the same for all rows, (1, columns)."""
    (left, right), (first, second) = ((lax.expand_dims(v, (1,)), lax.expand_dims(v, (2,))) for v in (values, indices))
    return lax.bitwise_or(lax.lt(left, right), lax.bitwise_and(lax.le(left, right), lax.lt(first, second)))


def _ordered(values: Any, indices: Any, count: int) -> tuple[Any, Any]:
    """The smallest of each row in order, the lower index first among equals: each is put where its rank says."""
    chosen = _chosen(values, indices, count)
    there = spread(values, chosen.shape, (0, 2))
    smallest = lax.reduce_sum(lax.select(chosen, there, lax.full_like(there, 0)), [2])
    return smallest, _summed(chosen, indices)


def _chosen(values: Any, indices: Any, count: int) -> Any:
    """Whether element j of a row is the i-th smallest: (rows, count, columns)."""
    kind = indices.dtype
    rank = lax.reduce_sum(lax.convert_element_type(_first(values, indices), kind), [2])
    return lax.eq(lax.expand_dims(rank, (1,)), lax.broadcasted_iota(kind, (1, count, 1), 1))


def _summed(chosen: Any, indices: Any) -> Any:
    """The indices that were chosen, (rows, count)."""
    return lax.reduce_sum(lax.mul(lax.convert_element_type(chosen, indices.dtype), lax.expand_dims(indices, (1,))), [2])


def _block(total: int, taken: int, few: bool) -> int:
    """How many columns are looked at together; 1: each by itself."""
    if few:
        return 1 << (RANKED // taken).bit_length() - 1
    block = 1 << max(round(math.log2(total / taken) / 2), 0)
    return block if block >= 4 else 1


def _smallest_of(values: Any, count: int, block: int, few: bool) -> tuple[Any, Any]:
    """The largest of each row's smallest, (rows, 1), and the columns of them all, (rows, count).

    They lie in the blocks with the smallest minima, which are found in the same way among all blocks where `few` are
    asked for: those are ranked by comparing each with each. The columns of a row with NaN mean nothing.
    """
    rows, total = values.shape
    if few and total <= RANKED:
        values = _padded(values, RANKED)
        smallest, columns = _ordered(values, lax.broadcasted_iota(np.int32, (1, RANKED), 1), count)
        return lax.expand_dims(lax.reduce_max(smallest, [1]), (1,)), columns
    if block == 1:
        largest, columns = lax.top_k(lax.neg(values), count)
        return lax.neg(lax.expand_dims(lax.reduce_min(largest, [1]), (1,))), columns
    values = _padded(values, block)
    minima = lax.reduce_min(lax.reshape(values, (rows, values.shape[1] // block, block)), [2])
    _, chosen = _smallest_of(minima, count, block if few else 1, few)
    first = lax.mul(lax.expand_dims(chosen, (2,)), np.int32(block))
    inside = lax.add(first, lax.broadcasted_iota(np.int32, (1, 1, block), 2))
    inside = lax.reshape(inside, (rows, chosen.shape[1] * block))
    farthest, places = _smallest_of(at_columns(values, inside), count, 1, few)
    return farthest, at_columns(inside, places)


def _padded(values: Any, multiple: int) -> Any:
    """With infinities at the end of each row, so that its length is a multiple."""
    return padded(values, (0, -values.shape[1] % multiple), np.inf)


def _identity(squared: Any) -> Any:
    return squared


def _top_k(x: Any, y: Any, sizes: Mapping[str, int], nearest: Nearest) -> tuple[Any, Any]:
    """rewrite: top_k(-d(x, y), k) -> top_k among candidates."""
    proved, values, indices = nearest(x, y, sizes["k"])
    return proved, (lax.neg(values), indices)


def _sorted(x: Any, y: Any, sizes: Mapping[str, int], nearest: Nearest) -> tuple[Any, Any]:
    """rewrite: sort(d(x, y))[:, :k] -> top_k among candidates."""
    proved, values, _ = nearest(x, y, sizes["k"])
    return proved, values


def _argsorted(x: Any, y: Any, sizes: Mapping[str, int], nearest: Nearest) -> tuple[Any, Any]:
    """rewrite: argsort(d(x, y))[:, :k] -> top_k among candidates."""
    proved, _, indices = nearest(x, y, sizes["k"])
    return proved, indices


def _smallest(x: Any, y: Any, nearest: Nearest) -> tuple[Any, Any]:
    """rewrite: min(d(x, y), 1) -> the exact distance of the best of some candidates."""
    proved, values, _ = nearest(x, y, 1)
    return lax.squeeze(proved, [1]), lax.squeeze(values, [1])


def _arg_smallest(x: Any, y: Any, nearest: Nearest) -> tuple[Any, Any]:
    """rewrite: argmin(d(x, y), 1) -> the index of the best of some candidates."""
    proved, _, indices = nearest(x, y, 1)
    return lax.squeeze(proved, [1]), lax.squeeze(indices, [1])


def _spelled(outer: Callable[..., Any], finish: Finish) -> tuple[Callable[..., Any], ...]:
    """`outer` of the distances in each of their spellings."""

    def of(inner: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x, y, **sizes: outer(finish(inner(x, y)), **sizes)

    return tuple(of(p) for p in PATTERNS)


def _pairs(fn: Callable[..., Any]) -> tuple[Example, ...]:
    """A function of distances, tried on plain and vmapped points."""

    def direct(x: Any, y: Any) -> Any:
        return fn(jnp.sum((x[:, None, :] - y[None, :, :]) ** 2, axis=-1))

    def cubed(x: Any, y: Any) -> Any:
        return fn(jnp.sum(jnp.abs(x[:, None, :] - y[None, :, :]) ** 3, axis=-1))

    return Example(fn=direct, arguments=("7 3", "40 3")), Example(fn=cubed, arguments=("7 3", "40 3"))


OUTER: Mapping[str, tuple[tuple[str, ...], Callable[..., Any], Callable[..., Any], Callable[..., Any]]] = {
    "top_k": (
        ("top_k",),
        lambda d, sizes: tuple(lax.top_k(lax.neg(d), sizes["k"])),
        _top_k,
        lambda d: lax.top_k(-d, 5),
    ),
    "sorted": (("sort",), lambda d, sizes: jnp.sort(d)[..., : sizes["k"]], _sorted, lambda d: jnp.sort(d)[:, :5]),
    "argsorted": (
        ("iota", "sort"),
        lambda d, sizes: jnp.argsort(d)[..., : sizes["k"]],
        _argsorted,
        lambda d: jnp.argsort(d)[:, :5],
    ),
    "smallest": (("reduce_min",), lambda d: lax.reduce_min(d, [1]), _smallest, lambda d: jnp.min(d, axis=1)),
    "arg_smallest": (("argmin",), lambda d: jnp.argmin(d, axis=-1), _arg_smallest, lambda d: jnp.argmin(d, axis=1)),
}
"""Selection -> its primitives, its pattern, its replacement, and how a user writes it; each of distances."""

for _name, (_selects, _outer, _replacement, _user) in OUTER.items():
    for _root, _finish in (("", _identity), ("_root", lax.sqrt)):
        for _ranked in (False, True):
            _example, _lookalike = _pairs(lambda d, user=_user, finish=_finish: user(finish(d)))
            REPLACE_RULES.register(f"nearest_{_name}{_root}{'_ranked' if _ranked else ''}")(
                ReplaceRule(
                    rewrite=f"{_name} of distances -> candidates by a matrix product, chosen by the exact distance",
                    source=SOURCE,
                    arguments={"x": "n d", "y": "m d"},
                    sizes=("k",) if _name in ("top_k", "sorted", "argsorted") else (),
                    patterns=_spelled(_outer, _finish),
                    made_of=("sub", *_selects, *(("sqrt",) if _root else ())),
                    replacement=partial(_replacement, nearest=partial(nearest, finish=_finish, ranked=_ranked)),
                    checked=True,
                    slow_top_k=_ranked,
                    guard=floating,
                    examples=(_example,),
                    counterexamples=(_lookalike,),
                )
            )
