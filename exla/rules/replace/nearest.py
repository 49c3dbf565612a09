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
from jax import lax

from exla.ir.rewrites import REPLACE_RULES, Example, ReplaceRule
from exla.rules.distances import distances
from exla.rules.guards import floating
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
    (total, depth), taken = y.shape, min(count + max(2, count // 8), y.shape[0])
    few = ranked and 2 * taken <= RANKED
    block = _block(total, taken, few)
    if few:
        taken = min(RANKED // block, total)
    if taken == total:
        candidates = jnp.broadcast_to(jnp.arange(total, dtype=jnp.int32), (x.shape[0], total))
    else:
        cheap, left, right = distances(x, y, -total % block)
        farthest_taken, candidates = _smallest_of(cheap, taken, block, few)
    near = y.at[jnp.clip(candidates, 0, total - 1)].get(mode="promise_in_bounds")
    chosen = finish(jnp.sum((x[:, None, :] - near) ** 2, axis=2))
    values, indices = _ordered(chosen, candidates, count)
    if taken == total:
        return jnp.all(jnp.isfinite(chosen), axis=1, keepdims=True), values, indices
    precision = float(jnp.finfo(x.dtype).eps)
    beyond = farthest_taken - (depth + 5) * precision * (left[:, None] + jnp.max(right))
    # The extreme of each row, not a slice of it: XLA:CPU sorts whole rows for a slice of a top-k.
    farthest = jnp.max(values, axis=1, keepdims=True)
    return farthest < finish(jnp.maximum(beyond, 0) * (1 - (depth + 8) * precision)), values, indices


def _first(values: Any, indices: Any) -> Any:
    """Whether element j of a row comes before element i, the lower index first among equals: (rows, i, j).

    Indices may be the same for all rows, (1, columns)."""
    left, right = values[:, None, :], values[:, :, None]
    return (left < right) | (left <= right) & (indices[:, None, :] < indices[:, :, None])


def _ordered(values: Any, indices: Any, count: int) -> tuple[Any, Any]:
    """The smallest of each row in order, the lower index first among equals: each is put where its rank says."""
    rank = jnp.sum(_first(values, indices), axis=2, dtype=indices.dtype)
    is_there = rank[:, None, :] == jnp.arange(count, dtype=indices.dtype)[None, :, None]
    smallest = jnp.sum(jnp.where(is_there, values[:, None, :], 0), axis=2, dtype=values.dtype)
    return smallest, jnp.sum(is_there * indices[:, None, :], axis=2, dtype=indices.dtype)


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
        smallest, columns = _ordered(values, jnp.arange(RANKED, dtype=jnp.int32)[None, :], count)
        return jnp.max(smallest, axis=1, keepdims=True), columns
    if block == 1:
        largest, columns = lax.top_k(-values, count)
        return -jnp.min(largest, axis=1, keepdims=True), columns
    values = _padded(values, block)
    minima = jnp.min(values.reshape(rows, -1, block), axis=2)
    _, chosen = _smallest_of(minima, count, block if few else 1, few)
    inside = (chosen[:, :, None] * block + jnp.arange(block, dtype=jnp.int32)).reshape(rows, -1)
    farthest, places = _smallest_of(jnp.take_along_axis(values, inside, axis=1, mode="clip"), count, 1, few)
    return farthest, jnp.take_along_axis(inside, places, axis=1, mode="clip")


def _padded(values: Any, multiple: int) -> Any:
    """With infinities at the end of each row, so that its length is a multiple."""
    return jnp.pad(values, ((0, 0), (0, -values.shape[1] % multiple)), constant_values=jnp.inf)


def _identity(squared: Any) -> Any:
    return squared


def _top_k(x: Any, y: Any, sizes: Mapping[str, int], nearest: Nearest) -> tuple[Any, Any]:
    """rewrite: top_k(-d(x, y), k) -> top_k among candidates."""
    proved, values, indices = nearest(x, y, sizes["k"])
    return proved, (-values, indices)


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
    return proved[:, 0], values[:, 0]


def _arg_smallest(x: Any, y: Any, nearest: Nearest) -> tuple[Any, Any]:
    """rewrite: argmin(d(x, y), 1) -> the index of the best of some candidates."""
    proved, _, indices = nearest(x, y, 1)
    return proved[:, 0], indices[:, 0]


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
    "top_k": (("top_k",), lambda d, sizes: tuple(lax.top_k(-d, sizes["k"])), _top_k, lambda d: lax.top_k(-d, 5)),
    "sorted": (("sort",), lambda d, sizes: jnp.sort(d)[..., : sizes["k"]], _sorted, lambda d: jnp.sort(d)[:, :5]),
    "argsorted": (
        ("iota", "sort"),
        lambda d, sizes: jnp.argsort(d)[..., : sizes["k"]],
        _argsorted,
        lambda d: jnp.argsort(d)[:, :5],
    ),
    "smallest": (("reduce_min",), lambda d: jnp.min(d, axis=-1), _smallest, lambda d: jnp.min(d, axis=1)),
    "arg_smallest": (("argmin",), lambda d: jnp.argmin(d, axis=-1), _arg_smallest, lambda d: jnp.argmin(d, axis=1)),
}
"""Selection -> its primitives, its pattern, its replacement, and how a user writes it; each of distances."""

for _name, (_selects, _outer, _replacement, _user) in OUTER.items():
    for _root, _finish in (("", _identity), ("_root", jnp.sqrt)):
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
