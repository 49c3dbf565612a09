"""Products with a diagonal matrix, and diagonals of products: neither needs the matrix.

`A + diag(v)` and `A + s * eye(n)` have no rule: the compiler computes the diagonal inside the addition and stores none.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from exla.ir.rewrites import REPLACE_RULES, Example, ReplaceRule
from exla.rules.guards import floating
from exla.rules.poison import not_finite, poisoned

SOURCE = "Golub and Van Loan, Matrix Computations, 4th edition, section 1.2"


def rows_scaled(v: Any, a: Any) -> Any:
    """rewrite: diag(v) @ A -> v[:, None] * A."""
    bad = not_finite(a)
    return poisoned(v[:, None] * a, jnp.sum(bad, axis=0) - bad)


def columns_scaled(v: Any, a: Any) -> Any:
    """rewrite: A @ diag(v) -> A * v."""
    bad = not_finite(a)
    return poisoned(a * v, jnp.sum(bad, axis=1, keepdims=True) - bad)


REPLACE_RULES.register("diagonal_times_matrix")(
    ReplaceRule(
        rewrite="diag(v) @ A -> v[:, None] * A",
        source=SOURCE,
        arguments={"v": "n", "a": "n m"},
        patterns=(lambda v, a: jnp.diag(v) @ a, lambda v, a: (v[:, None] * jnp.eye(v.shape[0])) @ a),
        made_of=("dot_general", "eq", "iota"),
        replacement=rows_scaled,
        guard=floating,
        examples=(
            Example(fn=lambda v, a: jnp.diag(v) @ a, arguments=("6", "6 4")),
            Example(fn=lambda v, a: (jnp.diag(v) @ a.T).T, arguments=("6", "4 6")),
        ),
        counterexamples=(
            Example(fn=lambda v, a: jnp.diag(v, 1)[:6] @ a, arguments=("6", "7 4")),
            Example(fn=lambda v, a: (jnp.diag(v) + 1) @ a, arguments=("6", "6 4")),
            Example(fn=lambda v, a: jnp.tri(6) * v @ a, arguments=("6", "6 4")),
        ),
    )
)
REPLACE_RULES.register("matrix_times_diagonal")(
    ReplaceRule(
        rewrite="A @ diag(v) -> A * v",
        source=SOURCE,
        arguments={"v": "n", "a": "m n"},
        patterns=(lambda v, a: a @ jnp.diag(v),),
        made_of=("dot_general", "eq", "iota"),
        replacement=columns_scaled,
        guard=floating,
        examples=(Example(fn=lambda v, a: a @ jnp.diag(v), arguments=("6", "4 6")),),
        counterexamples=(Example(fn=lambda v, a: a @ jnp.fliplr(jnp.diag(v)), arguments=("6", "4 6")),),
    )
)
REPLACE_RULES.register("trace_of_product")(
    ReplaceRule(
        rewrite="trace(A @ B) -> sum(A * B.T)",
        source=SOURCE,
        arguments={"a": "n k", "b": "k n"},
        patterns=(lambda a, b: jnp.trace(a @ b), lambda a, b: jnp.sum(jnp.diagonal(a @ b))),
        made_of=("dot_general", "iota", "reduce_sum"),
        replacement=lambda a, b: jnp.sum(jnp.sum(a * b.T, axis=1)),
        guard=floating,
        examples=(
            Example(fn=lambda a, b: jnp.trace(a @ b), arguments=("6 4", "4 6")),
            Example(fn=lambda a: jnp.trace(a.T @ a), arguments=("6 4",)),
        ),
        counterexamples=(
            Example(fn=lambda a, b: jnp.trace(a @ b, offset=1), arguments=("6 4", "4 6")),
            Example(fn=lambda a, b: jnp.sum(jnp.tril(a @ b)), arguments=("6 4", "4 6")),
        ),
    )
)
REPLACE_RULES.register("diagonal_of_product")(
    ReplaceRule(
        rewrite="diag(A @ B) -> sum(A * B.T, 1)",
        source=SOURCE,
        arguments={"a": "n k", "b": "k n"},
        patterns=(lambda a, b: jnp.diagonal(a @ b),),
        made_of=("dot_general", "gather", "iota"),
        replacement=lambda a, b: jnp.sum(a * b.T, axis=1),
        guard=floating,
        examples=(
            Example(fn=lambda a, b: jnp.diag(a @ b), arguments=("6 4", "4 6")),
            Example(fn=lambda a, q: jnp.diag(a @ q @ a.T), arguments=("6 4", "4 4")),
            Example(fn=lambda x: jnp.diagonal(x @ x.T), arguments=("6 4",)),
        ),
        counterexamples=(
            Example(fn=lambda a, b: jnp.diagonal(a @ b, 1), arguments=("6 4", "4 6")),
            Example(fn=lambda a, b: jnp.diag(a + b.T), arguments=("6 6", "6 6")),
        ),
    )
)
