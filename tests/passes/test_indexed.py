"""Axes that indices point into: every chunk takes the updates that land in it, or what it has of what is looked up."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import exla
from exla.passes.decisions import Sink, Split
from tests.passes.test_carried import below, normal, temporaries
from tests.zoo.test_zoo import in_float64

pytestmark = pytest.mark.usefixtures("compiled_quickly")


def contrastive(images, texts):
    """The loss of CLIP by labels: the same logits are cut along both axes, and gradients scattered into both."""
    logits = 10 * images @ texts.T
    labels = jnp.arange(images.shape[0])
    by_labels = optax.softmax_cross_entropy_with_integer_labels
    return jnp.mean(by_labels(logits, labels)) + jnp.mean(by_labels(logits.T, labels))


def diagonals(images, texts):
    logits = images @ texts.T
    return jnp.sum(jnp.exp(logits)) - jnp.sum(jnp.diagonal(logits)) - jnp.sum(jnp.tanh(jnp.diagonal(logits.T)))


def adjacent(weights, x, senders, receivers):
    """A sparse matrix that is made dense."""
    return jnp.zeros((len(x), len(x)), x.dtype).at[receivers, senders].add(weights) @ x


def looked_up(x, y, columns, rows):
    """Single elements of a kernel matrix, whose rows are summed too."""
    kernel = jnp.exp(-jnp.square(x[:, None] - y[None]))
    return jnp.sum(kernel, axis=0), kernel[rows, columns], kernel.at[:, columns].get(mode="fill", fill_value=-1.0)


def layers(x, weights, picks):
    """Rows of a wide layer that is never there as a whole."""
    return jnp.tanh(jnp.sin(x @ weights)[picks] @ weights.T)


PAIRS = (0.1 * normal(700, 16), 0.1 * normal(700, 16, seed=1))
GRAPH = (normal(3000), normal(700, 8, seed=1), below(700, 3000), below(700, 3000, seed=1))
CASES = {
    "contrastive": (jax.value_and_grad(contrastive, argnums=(0, 1)), PAIRS),
    "diagonals": (jax.value_and_grad(diagonals, argnums=(0, 1)), PAIRS),
    "adjacent": (adjacent, GRAPH),
    "gradient_of_adjacent": (jax.grad(lambda *a: jnp.sum(jnp.tanh(adjacent(*a))), argnums=(0, 1)), GRAPH),
    "looked_up": (looked_up, (normal(900), normal(800, seed=1), below(1000, 20), below(900, 20, seed=1))),
    "layers": (layers, (normal(5000, 16), normal(16, 200, seed=1), below(5000, 40))),
}


@pytest.mark.parametrize("name", CASES)
def test_a_tenth_of_the_temporaries_is_enough(name):
    fn, arguments = CASES[name]
    arguments = tuple(map(jnp.asarray, arguments))
    whole, fixed = temporaries(fn, arguments)
    f = exla.jit(fn, memory_limit=fixed + whole // 10)
    # Where what is looked up is computed alone, and obeys so, nothing is split besides.
    assert any(isinstance(d, Sink if name == "layers" else Split) for d in f.plan(*arguments).decisions)
    got, want = f(*arguments), in_float64(fn, arguments)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.max(np.abs(b)))
