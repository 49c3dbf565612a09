"""Better-conditioned spellings, which change values by more than the order of sums: used only where asked for."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from exla.ir.rewrites import REPLACE_RULES, Admitted, Example, Match, ReplaceRule
from exla.rules.guards import floating
from exla.rules.sensitivity import is_extreme_of


def _unshifted(match: Match) -> str | Admitted:
    """Decline what has its maximum subtracted already."""
    x = match.bound["x"]
    position = match.program.producers.get(x)
    eqn = None if position is None else match.program.eqns[position]
    if eqn is not None and eqn.primitive.name == "sub" and is_extreme_of(match.program, eqn.invars[1], eqn.invars[0]):
        return "its maximum is subtracted already"
    return floating(match)


def _near_identity(generator: Any) -> tuple[Any, ...]:
    return (generator.normal(size=(5, 5)) / 8 + 2 * jnp.eye(5), generator.normal(size=5))


REPLACE_RULES.register("inverse_times_vector")(
    ReplaceRule(
        rewrite="inv(A) @ b -> solve(A, b)",
        source="Higham, Accuracy and Stability of Numerical Algorithms, section 14.1",
        arguments={"a": "n n", "b": "n"},
        patterns=(lambda a, b: jnp.linalg.inv(a) @ b,),
        made_of=("dot_general", "lu", "triangular_solve"),
        replacement=lambda a, b: jnp.linalg.solve(a, b),
        guard=floating,
        opt_in=True,
        tolerance=1e4,
        examples=(Example(fn=lambda a, b: jnp.linalg.inv(a) @ b, draw=_near_identity),),
        counterexamples=(
            Example(fn=lambda a, b: jnp.linalg.inv(a).T @ b, draw=_near_identity),
            Example(fn=lambda a, b: jnp.linalg.inv(a) * b, draw=_near_identity),
        ),
    )
)
REPLACE_RULES.register("log_of_determinant")(
    ReplaceRule(
        rewrite="log(det(A)) -> slogdet(A), NaN where the determinant is negative",
        source="numpy.linalg.slogdet",
        arguments={"a": "n n"},
        patterns=(lambda a: jnp.log(jnp.linalg.det(a)),),
        made_of=("log", "lu"),
        replacement=lambda a: (lambda s: jnp.where(s[0] < 0, jnp.nan, s[1]))(jnp.linalg.slogdet(a)),
        guard=floating,
        opt_in=True,
        tolerance=1e4,
        examples=(Example(fn=lambda a, b: jnp.log(jnp.linalg.det(a)), draw=_near_identity),),
        counterexamples=(Example(fn=lambda a, b: jnp.log(-jnp.linalg.det(a)), draw=_near_identity),),
    )
)
REPLACE_RULES.register("log_of_sum_of_exponentials")(
    ReplaceRule(
        rewrite="log(sum(exp(x))) -> logsumexp(x)",
        source="Blanchard, Higham and Higham, Accurately computing the log-sum-exp and softmax functions, 2021",
        arguments={"x": "n m"},
        patterns=(lambda x: jnp.log(jnp.sum(jnp.exp(x), axis=-1)),),
        made_of=("exp", "log", "reduce_sum"),
        replacement=lambda x: jax.nn.logsumexp(x, axis=-1),
        guard=_unshifted,
        opt_in=True,
        examples=(Example(fn=lambda x: jnp.log(jnp.sum(jnp.exp(2 * x), axis=1)), arguments=("6 5",)),),
        counterexamples=(Example(fn=lambda x: jnp.log(jnp.max(jnp.exp(x), axis=1)), arguments=("6 5",)),),
    )
)
REPLACE_RULES.register("softmax_by_hand")(
    ReplaceRule(
        rewrite="exp(x) / sum(exp(x)) -> softmax(x)",
        source="Blanchard, Higham and Higham, Accurately computing the log-sum-exp and softmax functions, 2021",
        arguments={"x": "n m"},
        patterns=(lambda x: jnp.exp(x) / jnp.sum(jnp.exp(x), axis=-1, keepdims=True),),
        made_of=("div", "exp", "reduce_sum"),
        replacement=lambda x: jax.nn.softmax(x, axis=-1),
        guard=_unshifted,
        opt_in=True,
        examples=(
            Example(fn=lambda x: jnp.exp(x) / jnp.sum(jnp.exp(x), axis=1, keepdims=True), arguments=("6 5",)),
            Example(fn=lambda x: (lambda e: e / e.sum(-1, keepdims=True))(jnp.exp(x)), arguments=("6 5",)),
        ),
        counterexamples=(
            Example(fn=lambda x: jnp.exp(x) / jnp.sum(jnp.exp(2 * x), axis=1, keepdims=True), arguments=("6 5",)),
            Example(fn=lambda x: jnp.exp(x) / jnp.sum(jnp.exp(x), axis=1), arguments=("6 6",)),
        ),
    )
)
