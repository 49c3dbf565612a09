"""The first few of a sorted axis need no sort; integers are declined, for the smallest of them has no negative."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jax import lax

from exla.ir.rewrites import REPLACE_RULES, Example, ReplaceRule
from exla.rules.guards import floating

SOURCE = "jax.lax.top_k; its ties go to the lowest index, as those of a stable sort do"


def _ordinary(x: Any) -> Any:
    """Rows without NaN, which a sort puts last and a top-k first, and without -0, which only a top-k tells from 0."""
    return ~jnp.any(jnp.isnan(x) | ((x == 0) & jnp.signbit(x)), axis=-1, keepdims=True)


def smallest(x: Any, sizes: Mapping[str, int]) -> tuple[Any, Any]:
    """rewrite: sort(x)[:k] -> -top_k(-x, k)."""
    return _ordinary(x), -lax.top_k(-x, sizes["k"])[0]


def order_of_smallest(x: Any, sizes: Mapping[str, int]) -> tuple[Any, Any]:
    """rewrite: argsort(x)[:k] -> indices of top_k(-x, k)."""
    return _ordinary(x), lax.top_k(-x, sizes["k"])[1]


REPLACE_RULES.register("first_of_sorted")(
    ReplaceRule(
        rewrite="sort(x)[..., :k] -> -top_k(-x, k)",
        source=SOURCE,
        arguments={"x": "n m"},
        sizes=("k",),
        patterns=(lambda x, sizes: jnp.sort(x)[..., : sizes["k"]],),
        made_of=("slice", "sort"),
        replacement=smallest,
        checked=True,
        guard=floating,
        exact=True,
        tolerance=0.0,
        examples=(
            Example(fn=lambda x: jnp.sort(x)[..., :3], arguments=("6 40",)),
            Example(fn=lambda x: jnp.sort(x, axis=1)[:, :3], arguments=("4 40 5",)),
        ),
        counterexamples=(
            Example(fn=lambda x: jnp.sort(x)[..., 3:], arguments=("6 40",)),
            Example(fn=lambda x: jnp.sort(x, axis=0)[..., :3], arguments=("6 40",)),
            Example(fn=lambda x: jnp.sort(x)[..., :30:10], arguments=("6 40",)),
        ),
    )
)
REPLACE_RULES.register("first_of_argsorted")(
    ReplaceRule(
        rewrite="argsort(x)[..., :k] -> indices of top_k(-x, k)",
        source=SOURCE,
        arguments={"x": "n m"},
        sizes=("k",),
        patterns=(lambda x, sizes: jnp.argsort(x)[..., : sizes["k"]],),
        made_of=("iota", "slice", "sort"),
        replacement=order_of_smallest,
        checked=True,
        guard=floating,
        exact=True,
        tolerance=0.0,
        examples=(Example(fn=lambda x: jnp.argsort(x)[..., :3], arguments=("6 40",)),),
        counterexamples=(
            Example(fn=lambda x: jnp.argsort(x)[..., -3:], arguments=("6 40",)),
            Example(fn=lambda x: jnp.argsort(-x)[..., 1:3], arguments=("6 40",)),
        ),
    )
)
