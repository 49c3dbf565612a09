"""Weighted squared distances: a weight for each coordinate (ARD kernels), or a matrix between them (Mahalanobis)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from exla.ir.rewrites import REPLACE_RULES, Example, ReplaceRule
from exla.rules.distances import distances, guard, is_damped
from exla.rules.replace.squared_distance import differences

SOURCE = "Rasmussen and Williams, Gaussian Processes for Machine Learning, section 5.1 (ARD); Mahalanobis, 1936"
Extras = Sequence[tuple[str, Any]]


def _scaled(x: Any, y: Any, scale: Any, extras: Extras) -> tuple[Any, Any]:
    """Distances of points whose coordinates are multiplied by `scale` first, (d,)."""
    squared, left, right = distances(x * scale, y * scale)
    return is_damped(jnp.max(left) + jnp.max(right), squared.dtype, extras), squared


def weighted(x: Any, y: Any, w: Any, extras: Extras = ()) -> tuple[Any, Any]:
    """rewrite: sum(w (x_i - y_j)^2) -> distances of sqrt(w) x and sqrt(w) y; a negative weight is not safe."""
    return _scaled(x, y, jnp.sqrt(w), extras)


def divided(x: Any, y: Any, w: Any, extras: Extras = ()) -> tuple[Any, Any]:
    """rewrite: sum((x_i - y_j)^2 / w) -> distances of x / sqrt(w) and y / sqrt(w)."""
    return _scaled(x, y, 1 / jnp.sqrt(w), extras)


def multiplied(x: Any, y: Any, w: Any, extras: Extras = ()) -> tuple[Any, Any]:
    """rewrite: sum(((x_i - y_j) w)^2) -> distances of w x and w y."""
    return _scaled(x, y, w, extras)


def by_lengths(x: Any, y: Any, w: Any, extras: Extras = ()) -> tuple[Any, Any]:
    """rewrite: sum(((x_i - y_j) / w)^2) -> distances of x / w and y / w."""
    return _scaled(x, y, 1 / w, extras)


def mahalanobis(x: Any, y: Any, p: Any, extras: Extras = ()) -> tuple[Any, Any]:
    """rewrite: (x_i - y_j)' P (x_i - y_j) -> x_i' P x_i + y_j' P y_j - x_i' (P + P') y_j."""
    centre = jnp.mean(y, axis=0)
    x, y = x - centre, y - centre
    high = lax.Precision.HIGHEST
    left = jnp.sum(jnp.matmul(x, p, precision=high) * x, axis=1)
    right = jnp.sum(jnp.matmul(y, p, precision=high) * y, axis=1)
    cross = jnp.matmul(jnp.matmul(x, p + p.T, precision=high), y.T, precision=high)
    size = jnp.abs(p)
    scale = jnp.max(jnp.sum((jnp.abs(x) @ size) * jnp.abs(x), axis=1))
    scale += jnp.max(jnp.sum((jnp.abs(y) @ size) * jnp.abs(y), axis=1))
    return is_damped(scale, cross.dtype, extras), left[:, None] + right - cross


def _with_matrix(x: Any, y: Any, p: Any) -> Any:
    d = differences(x, y)
    return jnp.einsum("nmi,ij,nmj->nm", d, p, d)


SPELLINGS: dict[str, tuple[str, Callable[..., Any], tuple[Callable[..., Any], ...]]] = {
    "weighted": (
        "square",
        weighted,
        (
            lambda x, y, w: jnp.sum(w * differences(x, y) ** 2, axis=-1),
            lambda x, y, w: differences(x, y) ** 2 @ w,
        ),
    ),
    "divided": ("div", divided, (lambda x, y, w: jnp.sum(differences(x, y) ** 2 / w, axis=-1),)),
    "multiplied": ("mul", multiplied, (lambda x, y, w: jnp.sum((differences(x, y) * w) ** 2, axis=-1),)),
    "by_lengths": ("div", by_lengths, (lambda x, y, w: jnp.sum((differences(x, y) / w) ** 2, axis=-1),)),
}
"""How the weights are used -> a primitive of that, the replacement, and the patterns."""


def _kernel(distance: Callable[..., Any]) -> Example:
    return Example(
        fn=lambda x, y, w: jnp.exp(-distance(x, y, w)),
        draw=lambda r: (r.normal(size=(6, 4)), r.normal(size=(5, 4)), r.uniform(0.5, 2, size=4)),
    )


for _name, (_primitive, _replacement, _patterns) in SPELLINGS.items():
    REPLACE_RULES.register(f"distance_{_name}")(
        ReplaceRule(
            rewrite="squared distances with a weight for each coordinate -> distances of scaled points",
            source=SOURCE,
            arguments={"x": "n d", "y": "m d", "w": "d"},
            patterns=_patterns,
            made_of=("sub", _primitive),
            replacement=_replacement,
            checked=True,
            guard=guard,
            examples=tuple(_kernel(p) for p in _patterns),
            counterexamples=(
                _kernel(lambda x, y, w: jnp.sum(w * jnp.abs(differences(x, y)) ** 3, axis=-1)),
                _kernel(lambda x, y, w: jnp.max(w * differences(x, y) ** 2, axis=-1)),
                _kernel(lambda x, y, w: jnp.sqrt(jnp.sum(w * differences(x, y) ** 2, axis=-1))),
            ),
        )
    )

REPLACE_RULES.register("distance_mahalanobis")(
    ReplaceRule(
        rewrite="(x - y)' P (x - y) -> x' P x + y' P y - x' (P + P') y",
        source=SOURCE,
        arguments={"x": "n d", "y": "m d", "p": "d d"},
        patterns=(_with_matrix, lambda x, y, p: jnp.sum((differences(x, y) @ p) * differences(x, y), axis=-1)),
        made_of=("dot_general", "sub"),
        replacement=mahalanobis,
        checked=True,
        guard=guard,
        examples=(
            Example(fn=lambda x, y, p: jnp.exp(-_with_matrix(x, y, p @ p.T)), arguments=("6 4", "5 4", "4 4")),
            Example(
                fn=lambda x, y, p: jnp.exp(-jnp.sum((x[:, None] - y[None]) * ((x[:, None] - y[None]) @ p), axis=-1)),
                arguments=("6 4", "5 4", "4 4"),
            ),
        ),
        counterexamples=(
            Example(
                fn=lambda x, y, p: jnp.exp(-jnp.sum(differences(x, y) @ p, axis=-1)), arguments=("6 4", "5 4", "4 4")
            ),
        ),
    )
)
