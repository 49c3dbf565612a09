"""Programs made up at random: broadcast, combine, reduce, contract, as kernels and attention do, in endless variety.

    generate(7).function(*generate(7).arguments(256))

A program of one seed is the same everywhere. Its family is how its pairs are made and what becomes of them, since that
decides what can be split and how.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

PAIRINGS: dict[str, Callable[..., Any]] = {
    "squared": lambda x, y: jnp.sum((x[:, None] - y[None]) ** 2, axis=-1),
    "absolute": lambda x, y: jnp.sum(jnp.abs(x[:, None] - y[None]), axis=-1),
    "largest": lambda x, y: jnp.max(jnp.abs(x[:, None] - y[None]), axis=-1),
    "product": lambda x, y: x @ y.T,
    "smallest": lambda x, y: jnp.sum(jnp.minimum(x[:, None], y[None]), axis=-1),
    "angle": lambda x, y: jnp.sum(jnp.tanh(x[:, None] * y[None]), axis=-1),
}
"""(n, d), (m, d) -> (n, m)."""
SHAPES: tuple[Callable[..., Any], ...] = (
    lambda k: jnp.exp(-k * 0.3),
    lambda k: 1 / (1 + k * k),
    lambda k: jnp.tanh(k),
    lambda k: jnp.sqrt(1 + jnp.abs(k)),
    lambda k: jax.nn.relu(1 - k),
    lambda k: jnp.log1p(jnp.abs(k)),
    lambda k: k * jax.nn.sigmoid(k),
)
"""(n, m) -> (n, m), element by element."""
NORMALISATIONS: dict[str, Callable[..., Any]] = {
    "raw": lambda k: k,
    "softmax": lambda k: jax.nn.softmax(k, axis=1),
    "centred": lambda k: k - jnp.mean(k, axis=1, keepdims=True),
    "shares": lambda k: k / (1 + jnp.sum(jnp.abs(k), axis=0, keepdims=True)),
}
"""(n, m) -> (n, m), along an axis."""
ENDS: dict[str, Callable[..., Any]] = {
    "contracted": lambda k, v: k @ v,
    "contracted_twice": lambda k, v: (k.T @ (k @ v)) / k.shape[0],
    "summed": lambda k, v: jnp.sum(k, axis=1),
    "two_sided": lambda k, v: (jnp.min(k, axis=1), jnp.max(k, axis=0)),
    "logsumexp": lambda k, v: jax.nn.logsumexp(k, axis=1),
    "extreme": lambda k, v: jnp.max(k, axis=1),
}
"""(n, m), (m, c) -> whatever is wanted."""


@dataclass(frozen=True, kw_only=True)
class Generated:
    """One program.

    Attributes:
      name: "generated_<seed>".
      family: how its pairs are made and what becomes of them.
      function: the program.
      arguments: size -> float32 NumPy arrays.
    """

    name: str
    family: str
    function: Callable[..., Any]
    arguments: Callable[[int], tuple[Any, ...]]


def generate(seed: int) -> Generated:
    """The program of a seed."""
    generator = np.random.default_rng([seed, 20_221_128])

    def one_of(names: Any) -> Any:
        return names[int(generator.integers(len(names)))]

    first, second = one_of(list(PAIRINGS)), one_of(list(PAIRINGS))
    normalisation, end = one_of(list(NORMALISATIONS)), one_of(list(ENDS))
    shapes = [one_of(SHAPES) for _ in range(int(generator.integers(1, 4)))]
    is_mixed, is_gradient = generator.random() < 0.35, generator.random() < 0.2
    aspect, features, columns = (
        one_of((1.0, 1.0, 0.25, 4.0)),
        one_of((2, 3, 8, 16, 32)),
        one_of((1, 4, 16, 64)),
    )

    def forward(x: Any, y: Any, v: Any) -> Any:
        k = PAIRINGS[first](x, y)
        for shape in shapes:
            k = shape(k)
        if is_mixed:
            k = k * PAIRINGS[second](x, y)
        return ENDS[end](NORMALISATIONS[normalisation](k), v)

    def gradient(x: Any, y: Any, v: Any) -> Any:
        def total(z: Any) -> Any:
            return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(forward(z, y, v)))

        return jax.grad(total)(x)

    def arguments(n: int) -> tuple[Any, ...]:
        numbers = np.random.default_rng(seed)
        m = max(int(n * aspect), 8)
        shapes_of = ((n, features), (m, features), (m, columns))
        return tuple(numbers.standard_normal(shape, dtype=np.float32) / 2 for shape in shapes_of)

    return Generated(
        name=f"generated_{seed}",
        family=f"generated_{first}_{end}",
        function=gradient if is_gradient else forward,
        arguments=arguments,
    )
