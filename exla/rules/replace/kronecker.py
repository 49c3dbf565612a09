"""A Kronecker product times a vector needs two small products."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from exla.ir.rewrites import REPLACE_RULES, Example, ReplaceRule
from exla.rules.guards import floating


def kronecker_times(a: Any, b: Any, v: Any) -> Any:
    """rewrite: kron(A, B) @ v -> (A @ V @ B.T).ravel(), with V the vector as a matrix."""
    matrix = v.reshape(a.shape[1], b.shape[1])
    return (a @ matrix @ b.T).reshape(-1)


REPLACE_RULES.register("kronecker_times_vector")(
    ReplaceRule(
        rewrite="kron(A, B) @ v -> A @ V @ B.T",
        source="Van Loan, The ubiquitous Kronecker product, 2000, equation 2",
        arguments={"a": "i j", "b": "k l", "v": "j*l"},
        patterns=(lambda a, b, v: jnp.kron(a, b) @ v,),
        made_of=("dot_general", "mul"),
        replacement=kronecker_times,
        guard=floating,
        reassociates=True,
        examples=(Example(fn=lambda a, b, v: jnp.kron(a, b) @ v, arguments=("3 4", "5 2", "8")),),
        counterexamples=(
            Example(fn=lambda a, b, v: jnp.kron(a, b).T @ v, arguments=("3 4", "5 2", "15")),
            Example(fn=lambda a, b, v: (jnp.kron(a, b) + 1) @ v, arguments=("3 4", "5 2", "8")),
        ),
    )
)
