"""One-hot matrices: a product with one is a gather, with its transpose a scatter-add."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from exla.ir.rewrites import REPLACE_RULES, Admitted, Example, Match, ReplaceRule
from exla.rules.poison import not_finite, poisoned

SOURCE = "Shazeer et al., Mesh-TensorFlow, section on embeddings; jax.nn.one_hot"


def guard(match: Match) -> str | Admitted:
    """Decline what is not a table of float32 or float64 and integers that choose from it."""
    kinds = sorted(str(d) for d in match.dtypes.values())
    return Admitted() if kinds in (["float32", "int32"], ["float64", "int32"]) else f"its types are {kinds}"


def _taken(table: Any, index: Any) -> Any:
    """Rows of a table by index; zeros where the index is outside."""
    inside = (index >= 0) & (index < table.shape[0])
    rows = table.at[jnp.clip(index, 0, table.shape[0] - 1)].get(mode="promise_in_bounds")
    return jnp.where(inside[:, None], rows, 0)


def _one_hot(index: Any, values: Any) -> Any:
    return jax.nn.one_hot(index, values.shape[1], dtype=values.dtype)


def looked_up(index: Any, table: Any) -> Any:
    """rewrite: one_hot(i) @ A -> A[i]."""
    bad = not_finite(table)
    return poisoned(_taken(table, index), jnp.sum(bad, axis=0) - _taken(bad, index))


def added_up(index: Any, values: Any, sizes: Any) -> Any:
    """rewrite: one_hot(i).T @ B -> zeros.at[i].add(B)."""
    bad = not_finite(values)
    count = sizes["c"]
    into = jnp.where((index >= 0) & (index < count), index, count)
    total = jnp.zeros((count, values.shape[1]), values.dtype).at[into].add(values, mode="drop")
    own = jnp.zeros((count, values.shape[1]), bad.dtype).at[into].add(bad, mode="drop")
    return poisoned(total, jnp.sum(bad, axis=0) - own)


def picked(index: Any, values: Any) -> Any:
    """rewrite: sum(one_hot(i) * B, 1) -> B[arange, i]."""
    count = values.shape[1]
    inside = (index >= 0) & (index < count)
    at = jnp.clip(index, 0, count - 1)[:, None]

    def take(x: Any) -> Any:
        return jnp.where(inside, jnp.take_along_axis(x, at, axis=1)[:, 0], 0)

    bad = not_finite(values)
    return poisoned(take(values), jnp.sum(bad, axis=1) - take(bad))


REPLACE_RULES.register("one_hot_times_table")(
    ReplaceRule(
        rewrite="one_hot(i) @ A -> A[i]",
        source=SOURCE,
        arguments={"index": "n:int32", "table": "c m"},
        patterns=(lambda index, table: jax.nn.one_hot(index, table.shape[0], dtype=table.dtype) @ table,),
        made_of=("dot_general", "eq", "iota"),
        replacement=looked_up,
        guard=guard,
        examples=(
            Example(fn=lambda i, a: jax.nn.one_hot(i, 5) @ a, arguments=("6:int32", "5 4")),
            Example(fn=lambda i, a: jax.nn.one_hot(i, 5) @ a, arguments=("2 6:int32", "5 4")),
        ),
        counterexamples=(
            Example(fn=lambda i, a: (jnp.arange(5) <= i[:, None]).astype("float32") @ a, arguments=("6:int32", "5 4")),
            Example(fn=lambda i, a: (1 - jax.nn.one_hot(i, 5)) @ a, arguments=("6:int32", "5 4")),
        ),
    )
)
REPLACE_RULES.register("one_hot_transposed_times")(
    ReplaceRule(
        rewrite="one_hot(i).T @ B -> zeros.at[i].add(B)",
        source=SOURCE,
        arguments={"index": "n:int32", "values": "n m"},
        sizes=("c",),
        patterns=(lambda index, values, sizes: jax.nn.one_hot(index, sizes["c"], dtype=values.dtype).T @ values,),
        made_of=("dot_general", "eq", "iota"),
        replacement=added_up,
        guard=guard,
        examples=(Example(fn=lambda i, b: jax.nn.one_hot(i, 5).T @ b, arguments=("6:int32", "6 4")),),
        counterexamples=(
            Example(fn=lambda i, b: jax.nn.one_hot(i, 5).T @ b.astype("int32"), arguments=("6:int32", "6 4")),
        ),
    )
)
REPLACE_RULES.register("one_hot_picks")(
    ReplaceRule(
        rewrite="sum(one_hot(i) * B, 1) -> take_along_axis(B, i)",
        source=SOURCE,
        arguments={"index": "n:int32", "values": "n c"},
        patterns=(lambda index, values: jnp.sum(_one_hot(index, values) * values, axis=-1),),
        made_of=("eq", "iota", "mul", "reduce_sum"),
        replacement=picked,
        guard=guard,
        examples=(
            Example(
                fn=lambda i, b: -jnp.mean(jnp.sum(jax.nn.one_hot(i, 5) * jax.nn.log_softmax(b), -1)),
                arguments=("6:int32", "6 5"),
            ),
        ),
        counterexamples=(
            Example(fn=lambda i, b: jnp.max(jax.nn.one_hot(i, 5) * b, -1), arguments=("6:int32", "6 5")),
            Example(fn=lambda i, b: jnp.sum(jax.nn.one_hot(i, 6) * b, 0), arguments=("6:int32", "6 6")),
        ),
    )
)
REPLACE_RULES.register("one_hot_picks_and_sums")(
    ReplaceRule(
        rewrite="sum(one_hot(i) * B) -> sum(take_along_axis(B, i))",
        source=SOURCE,
        arguments={"index": "n:int32", "values": "n c"},
        patterns=(lambda index, values: jnp.sum(_one_hot(index, values) * values),),
        made_of=("eq", "iota", "mul", "reduce_sum"),
        replacement=lambda index, values: jnp.sum(picked(index, values)),
        guard=guard,
        examples=(
            Example(
                fn=lambda i, b: -jnp.sum(jax.nn.one_hot(i, 5) * jax.nn.log_softmax(b)), arguments=("6:int32", "6 5")
            ),
        ),
        counterexamples=(Example(fn=lambda i, b: jnp.prod(jax.nn.one_hot(i, 5) * b), arguments=("6:int32", "6 5")),),
    )
)
