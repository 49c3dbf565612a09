"""One-hot matrices: a product with one is a gather, with its transpose a scatter-add."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from exla.ir.rewrites import REPLACE_RULES, Admitted, Example, Match, ReplaceRule
from exla.rules.poison import not_finite, poisoned
from exla.rules.primitives import at_columns, number, rows_added, rows_at, spread

SOURCE = "Shazeer et al., Mesh-TensorFlow, section on embeddings; jax.nn.one_hot"


def guard(match: Match) -> str | Admitted:
    """Decline what is not a table of float32 or float64 and integers that choose from it."""
    kinds = sorted(str(d) for d in match.dtypes.values())
    return Admitted() if kinds in (["float32", "int32"], ["float64", "int32"]) else f"its types are {kinds}"


def _inside(index: Any, count: int) -> Any:
    """Whether an index is one of so many."""
    return lax.bitwise_and(lax.ge(index, number(index, 0)), lax.lt(index, number(index, count)))


def _clipped(index: Any, count: int) -> Any:
    """The nearest of so many indices."""
    return lax.min(lax.max(index, number(index, 0)), number(index, count - 1))


def _one_hot(index: Any, count: int, dtype: Any) -> Any:
    """jax.nn.one_hot(index, count, dtype=dtype)"""
    index = lax.expand_dims(index, (1,))
    return lax.convert_element_type(lax.eq(index, lax.broadcasted_iota(index.dtype, (1, count), 1)), dtype)


def _times(a: Any, b: Any) -> Any:
    """a @ b"""
    return lax.dot_general(a, b, (((1,), (0,)), ((), ())), preferred_element_type=b.dtype)


def _transposed_times(index: Any, values: Any, sizes: Any) -> Any:
    return _times(lax.transpose(_one_hot(index, sizes["c"], values.dtype), (1, 0)), values)


def _taken(table: Any, index: Any) -> Any:
    """Rows of a table by index; zeros where the index is outside."""
    count = table.shape[0]
    rows = rows_at(table, _clipped(index, count))
    return lax.select(spread(_inside(index, count), rows.shape, (0,)), rows, lax.full_like(rows, 0))


def looked_up(index: Any, table: Any) -> Any:
    """rewrite: one_hot(i) @ A -> A[i]."""
    bad = not_finite(table)
    of_all = lax.expand_dims(lax.reduce_sum(bad, [0]), (0,))
    return poisoned(_taken(table, index), lax.sub(of_all, _taken(bad, index)))


def added_up(index: Any, values: Any, sizes: Any) -> Any:
    """rewrite: one_hot(i).T @ B -> zeros.at[i].add(B)."""
    bad = not_finite(values)
    count = sizes["c"]
    into = lax.select(_inside(index, count), index, lax.full_like(index, count))
    of_all = lax.expand_dims(lax.reduce_sum(bad, [0]), (0,))
    return poisoned(rows_added(values, into, count), lax.sub(of_all, rows_added(bad, into, count)))


def picked(index: Any, values: Any) -> Any:
    """rewrite: sum(one_hot(i) * B, 1) -> B[arange, i]."""
    count = values.shape[1]
    inside, at = _inside(index, count), lax.expand_dims(_clipped(index, count), (1,))

    def take(x: Any) -> Any:
        found = lax.squeeze(at_columns(x, at), [1])
        return lax.select(inside, found, lax.full_like(found, 0))

    bad = not_finite(values)
    return poisoned(take(values), lax.sub(lax.reduce_sum(bad, [1]), take(bad)))


def _picked(index: Any, values: Any) -> Any:
    return lax.mul(_one_hot(index, values.shape[1], values.dtype), values)


REPLACE_RULES.register("one_hot_times_table")(
    ReplaceRule(
        rewrite="one_hot(i) @ A -> A[i]",
        source=SOURCE,
        arguments={"index": "n:int32", "table": "c m"},
        patterns=(lambda index, table: _times(_one_hot(index, table.shape[0], table.dtype), table),),
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
        patterns=(_transposed_times,),
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
        patterns=(lambda index, values: lax.reduce_sum(_picked(index, values), [1]),),
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
        patterns=(lambda index, values: lax.reduce_sum(_picked(index, values), [0, 1]),),
        made_of=("eq", "iota", "mul", "reduce_sum"),
        replacement=lambda index, values: lax.reduce_sum(picked(index, values), [0]),
        guard=guard,
        examples=(
            Example(
                fn=lambda i, b: -jnp.sum(jax.nn.one_hot(i, 5) * jax.nn.log_softmax(b)), arguments=("6:int32", "6 5")
            ),
        ),
        counterexamples=(Example(fn=lambda i, b: jnp.prod(jax.nn.one_hot(i, 5) * b), arguments=("6:int32", "6 5")),),
    )
)
