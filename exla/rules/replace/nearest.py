"""The k nearest points: candidates by a matrix product, the chosen ones by the original formula.

PET's correction of a partially equivalent rewrite: the cheap distances only choose a few candidates more than are asked
for; their distances are then computed as the program does, and the selection is made among those, with its ties. Where
the error bound of the cheap form does not prove that no other point belongs among them, as with many equal distances
or with NaN, the original equations are evaluated for those rows' chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import lax

from exla.ir.rewrites import REPLACE_RULES, Admitted, Example, Match, ReplaceRule
from exla.rules.distances import distances
from exla.rules.replace.squared_distance import PATTERNS

SOURCE = "Wang et al., PET: partially equivalent transformations and automated corrections, OSDI 2021"
Finish = Callable[[Any], Any]


def guard(match: Match) -> str | Admitted:
    """Decline types whose errors the bound does not cover."""
    if any(str(d) not in ("float32", "float64") for d in match.dtypes.values()):
        return f"its types are {sorted({str(d) for d in match.dtypes.values()})}, not float32 or float64"
    return Admitted()


def nearest(x: Any, y: Any, count: int, finish: Finish) -> tuple[Any, Any, Any]:
    """The nearest rows of y to each row of x.

    Args:
      x: points, (n, d).
      y: points, (m, d).
      count: how many.
      finish: what the program computes from squared distances; increasing.

    Returns:
      Whether each row is proved right, (n, 1); what `finish` makes of the distances, (n, count), smallest first; and
      the indices, (n, count) int32.
    """
    (total, depth), taken = y.shape, min(count + max(6, count // 2), y.shape[0])
    cheap, left, right = distances(x, y)
    worst, candidates = lax.top_k(-cheap, taken)
    candidates = jnp.sort(candidates, axis=1)  # ties go to the lowest index
    chosen = finish(jnp.sum((x[:, None, :] - y[candidates]) ** 2, axis=2))
    values, places = lax.top_k(-chosen, count)
    indices = jnp.take_along_axis(candidates, places, axis=1)
    precision = float(jnp.finfo(x.dtype).eps)
    beyond = -worst[:, -1:] - (depth + 5) * precision * (left[:, None] + jnp.max(right))
    proved = -values[:, -1:] < finish(jnp.maximum(beyond, 0) * (1 - (depth + 8) * precision))
    return proved | (taken == total), -values, indices


def _identity(squared: Any) -> Any:
    return squared


def _top_k(x: Any, y: Any, sizes: Mapping[str, int], finish: Finish) -> tuple[Any, Any]:
    """rewrite: top_k(-d(x, y), k) -> top_k among candidates."""
    proved, values, indices = nearest(x, y, sizes["k"], finish)
    return proved, (-values, indices)


def _sorted(x: Any, y: Any, sizes: Mapping[str, int], finish: Finish) -> tuple[Any, Any]:
    """rewrite: sort(d(x, y))[:, :k] -> top_k among candidates."""
    proved, values, _ = nearest(x, y, sizes["k"], finish)
    return proved, values


def _argsorted(x: Any, y: Any, sizes: Mapping[str, int], finish: Finish) -> tuple[Any, Any]:
    """rewrite: argsort(d(x, y))[:, :k] -> top_k among candidates."""
    proved, _, indices = nearest(x, y, sizes["k"], finish)
    return proved, indices


def _smallest(x: Any, y: Any, finish: Finish) -> tuple[Any, Any]:
    """rewrite: min(d(x, y), 1) -> the exact distance of the best of some candidates."""
    proved, values, _ = nearest(x, y, 1, finish)
    return proved[:, 0], values[:, 0]


def _arg_smallest(x: Any, y: Any, finish: Finish) -> tuple[Any, Any]:
    """rewrite: argmin(d(x, y), 1) -> the index of the best of some candidates."""
    proved, _, indices = nearest(x, y, 1, finish)
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


OUTER: Mapping[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]] = {
    "top_k": (lambda d, sizes: tuple(lax.top_k(-d, sizes["k"])), _top_k, lambda d: lax.top_k(-d, 5)),
    "sorted": (lambda d, sizes: jnp.sort(d)[..., : sizes["k"]], _sorted, lambda d: jnp.sort(d)[:, :5]),
    "argsorted": (lambda d, sizes: jnp.argsort(d)[..., : sizes["k"]], _argsorted, lambda d: jnp.argsort(d)[:, :5]),
    "smallest": (lambda d: jnp.min(d, axis=-1), _smallest, lambda d: jnp.min(d, axis=1)),
    "arg_smallest": (lambda d: jnp.argmin(d, axis=-1), _arg_smallest, lambda d: jnp.argmin(d, axis=1)),
}
"""Selection -> its pattern, its replacement, and how a user writes it; each of distances."""

for _name, (_outer, _replacement, _user) in OUTER.items():
    for _suffix, _finish in (("", _identity), ("_root", jnp.sqrt)):
        _example, _lookalike = _pairs(lambda d, user=_user, finish=_finish: user(finish(d)))  # type: ignore[misc]
        REPLACE_RULES.register(f"nearest_{_name}{_suffix}")(
            ReplaceRule(
                rewrite=f"{_name} of distances -> candidates by a matrix product, chosen by the exact distance",
                source=SOURCE,
                arguments={"x": "n d", "y": "m d"},
                sizes=("k",) if _name in ("top_k", "sorted", "argsorted") else (),
                patterns=_spelled(_outer, _finish),
                replacement=partial(_replacement, finish=_finish),
                checked=True,
                guard=guard,
                examples=(_example,),
                counterexamples=(_lookalike,),
            )
        )
