"""A triangle of a triangle is that triangle.

`jnp.linalg.cholesky` and `jnp.linalg.lu` zero what lies on the other side of the diagonal, and their gradients do so
once more: both copies stay for the triangular solves that read one or the other.
"""

from __future__ import annotations

import jax.numpy as jnp

from exla.ir.rewrites import REPLACE_RULES, Example, ReplaceRule

for _name, _triangle in (("lower", jnp.tril), ("upper", jnp.triu)):
    REPLACE_RULES.register(f"{_name}_of_{_name}_triangle")(
        ReplaceRule(
            rewrite=f"{_triangle.__name__}({_triangle.__name__}(A)) -> {_triangle.__name__}(A)",
            source="a triangle is what its projection leaves alone",
            arguments={"a": "n n"},
            patterns=(lambda a, triangle=_triangle: triangle(triangle(a)),),
            made_of=("ge", "iota", "select_n"),
            replacement=lambda a, triangle=_triangle: triangle(a),
            exact=True,
            tolerance=0.0,
            examples=(
                Example(fn=lambda a, triangle=_triangle: triangle(triangle(a)), arguments=("6 6",)),
                Example(fn=lambda a, triangle=_triangle: triangle(triangle(a)), arguments=("3 6 6",)),
            ),
            counterexamples=(
                Example(fn=lambda a, triangle=_triangle: triangle(triangle(a), 1), arguments=("6 6",)),
                Example(fn=lambda a, triangle=_triangle: triangle(triangle(a).T), arguments=("6 6",)),
            ),
        )
    )
