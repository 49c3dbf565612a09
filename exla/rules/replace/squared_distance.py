"""Squared Euclidean distances, however they are spelled: a sum of squared differences becomes a matrix product.

The guard declines what reads distances near zero closely; a check at run time compares the error with what the readers
tolerate, and non-finite points with nothing at all: those are left to the original equations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from exla.ir.rewrites import REPLACE_RULES, Example, ReplaceRule
from exla.rules.distances import distances, guard, is_damped

SOURCE = "Artemev et al., Memory Safe Computations with XLA Compiler, section 3.1; the guard is exla's"


def replacement(x: Any, y: Any, extras: Sequence[tuple[str, Any]] = ()) -> tuple[Any, Any]:
    """rewrite: sum((x_i - y_j)^2) -> max(|x_i|^2 + |y_j|^2 - 2 x_i.y_j, 0)."""
    squared, left, right = distances(x, y)
    scale = lax.add(lax.reduce_max(left, [0]), lax.reduce_max(right, [0]))
    return is_damped(scale, squared.dtype, extras), squared


def differences(x: Any, y: Any) -> Any:
    """x[:, None, :] - y[None, :, :]"""
    return lax.sub(lax.expand_dims(x, (1,)), lax.expand_dims(y, (0,)))


def _sum(values: Any) -> Any:
    return lax.reduce_sum(values, [2])


def _einsum(x: Any, y: Any) -> Any:
    d = differences(x, y)
    return jnp.einsum("nmd,nmd->nm", d, d)


PATTERNS = (
    lambda x, y: _sum(lax.square(differences(x, y))),
    lambda x, y: _sum(lax.mul(differences(x, y), differences(x, y))),
    lambda x, y: _sum(lax.square(lax.abs(differences(x, y)))),
    lambda x, y: lax.square(lax.sqrt(_sum(lax.square(differences(x, y))))),
    _einsum,
)

REPLACE_RULES.register("squared_distance")(
    ReplaceRule(
        rewrite="sum((x - y)^2) -> |x|^2 + |y|^2 - 2 x.y",
        source=SOURCE,
        arguments={"x": "n d", "y": "m d"},
        patterns=PATTERNS,
        made_of=("sub",),
        replacement=replacement,
        checked=True,
        guard=guard,
        examples=(
            Example(fn=lambda x, y: jnp.exp(-jnp.sum((x[:, None] - y) ** 2, -1)), arguments=("6 4", "5 4")),
            Example(
                fn=lambda x, y: jnp.exp(-0.5 * jax.vmap(lambda a: jax.vmap(lambda b: jnp.sum((a - b) ** 2))(y))(x).T),
                arguments=("6 4", "5 4"),
            ),
            Example(
                fn=lambda x, y, s: jnp.exp(-jnp.sum(jnp.square(y[:, :, None] - x.T[None]), 1) / s),
                arguments=("6 4", "5 4", ""),
                draw=lambda r: (r.normal(size=(6, 4)), r.normal(size=(5, 4)), r.uniform(1, 2)),
            ),
            Example(fn=lambda x: 1 / (1 + jnp.sum((x[:, None] - x) ** 2, -1)), arguments=("6 4",)),
            Example(
                fn=lambda x, y: jax.nn.logsumexp(-jnp.sum((x[:, None] - y[None]) ** 2, -1), axis=1),
                arguments=("6 4", "5 4"),
            ),
            Example(
                fn=lambda x, y: jax.nn.softmax(-jnp.sum((x[:, :, None] - y[:, None]) ** 2, -1)),
                arguments=("3 6 4", "3 5 4"),
            ),
        ),
        counterexamples=(
            Example(fn=lambda x, y: jnp.exp(-jnp.sum((x[:, None] - y) ** 3, -1)), arguments=("6 4", "5 4")),
            Example(fn=lambda x, y: jnp.exp(-jnp.max((x[:, None] - y) ** 2, -1)), arguments=("6 4", "5 4")),
            Example(fn=lambda x, y: jnp.exp(-jnp.sum(jnp.abs(x[:, None] - y), -1)), arguments=("6 4", "5 4")),
            Example(fn=lambda x, y: jnp.sqrt(jnp.sum((x[:, None] - y) ** 2, -1)), arguments=("6 4", "5 4")),
            Example(fn=lambda x, y: jnp.sum((x[:, None] - y) ** 2, -1), arguments=("6 4", "5 4")),
            Example(fn=lambda x, y: jnp.min(jnp.sum((x[:, None] - y) ** 2, -1), 1), arguments=("6 4", "5 4")),
            Example(fn=lambda x, y: 1 / jnp.sum((x[:, None] - y) ** 2, -1), arguments=("6 4", "5 4")),
            Example(fn=lambda x, y: jnp.sum((x[:, None] - y) ** 2, -1) < 1, arguments=("6 4", "5 4")),
        ),
    )
)


def of_sums(x: Any, y: Any, extras: Sequence[tuple[str, Any]] = ()) -> tuple[Any, Any]:
    """rewrite: sum((x_i + y_j)^2) -> max(|x_i|^2 + |y_j|^2 + 2 x_i.y_j, 0)."""
    return replacement(x, lax.neg(y), extras)


REPLACE_RULES.register("squared_sum")(
    ReplaceRule(
        rewrite="sum((x + y)^2) -> |x|^2 + |y|^2 + 2 x.y",
        source=SOURCE,
        arguments={"x": "n d", "y": "m d"},
        patterns=(lambda x, y: _sum(lax.square(lax.add(lax.expand_dims(x, (1,)), lax.expand_dims(y, (0,))))),),
        made_of=("add", "reduce_sum", "square"),
        replacement=of_sums,
        checked=True,
        guard=guard,
        examples=(Example(fn=lambda x, y: jnp.exp(-jnp.sum((x[:, None] + y) ** 2, -1)), arguments=("6 4", "5 4")),),
        counterexamples=(
            Example(fn=lambda x, y: jnp.exp(-jnp.sum((x[:, None] * y) ** 2, -1)), arguments=("6 4", "5 4")),
            Example(fn=lambda x, y: jnp.exp(-jnp.sum(x[:, None] ** 2 + y, -1)), arguments=("6 4", "5 4")),
        ),
    )
)
