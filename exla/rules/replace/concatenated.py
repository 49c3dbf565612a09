"""A product over what is concatenated is the sum of the products of the parts.

The Gram matrix of per-example gradients is one: all parameters' gradients are laid side by side, of every example, only
to be summed over. Of each part alone less is there at a time, and it can be cut where all of them together cannot.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from exla.ir.rewrites import REPLACE_RULES, Example, ReplaceRule
from exla.rules.guards import floating

MOST_PARTS = 6
"""Two layers' weights and biases are four."""


def _product(parts: int) -> Callable[..., Any]:
    def product(*both: Any) -> Any:
        return jnp.concatenate(both[:parts], axis=-1) @ jnp.concatenate(both[parts:], axis=-1).T

    return product


def _sum_of_products(parts: int) -> Callable[..., Any]:
    def total(*both: Any) -> Any:
        return functools.reduce(jnp.add, (a @ b.T for a, b in zip(both[:parts], both[parts:], strict=True)))

    return total


for _parts in range(2, MOST_PARTS + 1):
    _names = [f"{side}{k}" for side in "ab" for k in range(_parts)]
    _axes = [f"{rows} p{k}" for rows in "nm" for k in range(_parts)]
    _shapes = [f"{rows} {k + 2}" for rows in (6, 4) for k in range(_parts)]
    REPLACE_RULES.register(f"product_of_{_parts}_concatenated")(
        ReplaceRule(
            rewrite=f"[A1 ... A{_parts}] @ [B1 ... B{_parts}].T -> A1 @ B1.T + ... + A{_parts} @ B{_parts}.T",
            source="Golub and Van Loan, Matrix Computations, 4th edition, section 1.3",
            arguments=dict(zip(_names, _axes, strict=True)),
            patterns=(_product(_parts),),
            made_of=("concatenate", "dot_general"),
            replacement=_sum_of_products(_parts),
            guard=floating,
            eases=True,
            examples=(
                Example(fn=_product(_parts), arguments=tuple(_shapes)),
                Example(
                    fn=lambda *parts: (lambda j: j @ j.T)(jnp.concatenate(parts, axis=1)),
                    arguments=tuple(_shapes[:_parts]),
                ),
            ),
            counterexamples=(
                Example(
                    fn=lambda *parts: (lambda j: j.T @ j)(jnp.concatenate(parts, axis=1)),
                    arguments=tuple(_shapes[:_parts]),
                ),
            ),
        )
    )
