"""Programs that fit any ordinary memory cap: `benchmarks.untouched` checks that exla leaves them alone.

`FITTING` maps a name to (function, arguments), where `arguments()` makes the same arrays each time. They differ in
what they are made of (gradients, loops, custom calls, convolutions, random bits, scatters), not in what they are for.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def _arrays(*shapes: tuple[int, ...]) -> tuple[jax.Array, ...]:
    keys = jax.random.split(jax.random.key(0), len(shapes))
    return tuple(jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True))


def mlp_step(parameters, inputs, targets):
    """One step of gradient descent on a two-layer perceptron."""

    def loss(parameters):
        hidden = jax.nn.relu(inputs @ parameters["w1"] + parameters["b1"])
        return jnp.mean((hidden @ parameters["w2"] + parameters["b2"] - targets) ** 2)

    value, gradient = jax.value_and_grad(loss)(parameters)
    return value, jax.tree.map(lambda weight, slope: weight - 1e-2 * slope, parameters, gradient)


def _mlp_arguments():
    w1, b1, w2, b2, inputs, targets = _arrays((128, 256), (256,), (256, 10), (10,), (512, 128), (512, 10))
    return {"w1": w1, "b1": b1, "w2": w2, "b2": b2}, inputs, targets


def small_attention(query, key, value):
    """Causal attention over 256 positions."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / jnp.sqrt(query.shape[-1])
    causal = jnp.tril(jnp.ones(scores.shape[-2:], dtype=bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, value)


def low_pass(signal):
    """A low-pass filter in the frequency domain."""
    spectrum = jnp.fft.rfft(signal, axis=-1)
    return jnp.fft.irfft(jnp.where(jnp.arange(spectrum.shape[-1]) < 100, spectrum, 0), axis=-1)


def recurrent(weights, state, inputs):
    """A recurrent network over 200 steps, and its gradient."""

    def loss(weights):
        def step(state, row):
            state = jnp.tanh(state @ weights + row)
            return state, jnp.mean(state)

        return jnp.sum(lax.scan(step, state, inputs)[1])

    return jax.grad(loss)(weights)


def cholesky_solve(matrix, right):
    """Solves a positive definite system and takes its log determinant."""
    size = matrix.shape[0]
    factor = jnp.linalg.cholesky(matrix @ matrix.T + size * jnp.eye(size))
    return jax.scipy.linalg.cho_solve((factor, True), right), 2 * jnp.sum(jnp.log(jnp.diag(factor)))


def convolutions(kernels, images):
    """The forward pass of a small convolutional network."""
    for kernel in kernels:
        images = lax.conv_general_dilated(images, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        images = lax.reduce_window(jax.nn.relu(images), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return jnp.mean(images, axis=(1, 2))


def layer_norm(values, scale, offset):
    """Layer normalisation and a GELU."""
    centred = values - jnp.mean(values, axis=-1, keepdims=True)
    variance = jnp.mean(centred**2, axis=-1, keepdims=True)
    return jax.nn.gelu(centred * lax.rsqrt(variance + 1e-5) * scale + offset)


def dropout(key, values):
    """Dropout and added noise: random bits must stay the same bits."""
    keep_key, noise_key = jax.random.split(key)
    kept = jnp.where(jax.random.bernoulli(keep_key, 0.9, values.shape), values / 0.9, 0)
    return kept + 0.1 * jax.random.normal(noise_key, values.shape)


def quantiles(values):
    """Sorting, ranks and quantiles of each row."""
    return jnp.quantile(values, jnp.array([0.05, 0.5, 0.95]), axis=1), jnp.argsort(values, axis=1)


def decompositions(matrix):
    """Singular values, and eigenvectors of the Gram matrix."""
    return jnp.linalg.svd(matrix, compute_uv=False), jnp.linalg.eigh(matrix.T @ matrix)[0]


def einsum_chain(a, b, c, d):
    """A chain of contractions."""
    return jnp.einsum("ij,jk,kl,lm->im", a, b, c, d, optimize="optimal")


def embedding_update(table, tokens, gradients):
    """Looks rows of a table up and adds to them, some of them more than once."""
    return jnp.mean(table[tokens], axis=1), table.at[tokens].add(gradients)


def pairwise_distances(points):
    """The pattern that exla exists for, but small: it fits, so it must stay as it is."""
    return jnp.sum((points[:, None, :] - points[None, :, :]) ** 2, axis=-1)


def bisect(function_values, low, high):
    """A while loop, a conditional and integer arithmetic."""

    def step(state):
        low, high, count = state
        middle = (low + high) / 2
        above = jnp.sum(jnp.where(function_values > middle, 1, 0)) > function_values.size // 2
        return *lax.cond(above, lambda: (middle, high), lambda: (low, middle)), count + 1

    return lax.while_loop(lambda state: state[2] < 40, step, (low, high, 0))


def _embedding_arguments():
    table, gradients = _arrays((10_000, 64), (256, 20, 64))
    return table, jax.random.randint(jax.random.key(1), (256, 20), 0, 10_000), gradients


FITTING: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "mlp-step": (mlp_step, _mlp_arguments),
    "attention": (small_attention, lambda: _arrays(*[(4, 256, 4, 32)] * 3)),
    "fft": (low_pass, lambda: _arrays((64, 4096))),
    "rnn": (recurrent, lambda: _arrays((64, 64), (16, 64), (200, 16, 64))),
    "cholesky": (cholesky_solve, lambda: _arrays((256, 256), (256, 8))),
    "convolutions": (convolutions, lambda: (_arrays((3, 3, 3, 16), (3, 3, 16, 32)), *_arrays((8, 32, 32, 3)))),
    "layer-norm": (layer_norm, lambda: _arrays((256, 512), (512,), (512,))),
    "dropout": (dropout, lambda: (jax.random.key(2), *_arrays((512, 512)))),
    "quantiles": (quantiles, lambda: _arrays((64, 1000))),
    "decompositions": (decompositions, lambda: _arrays((200, 100))),
    "einsum-chain": (einsum_chain, lambda: _arrays((200, 50), (50, 300), (300, 20), (20, 400))),
    "embedding": (embedding_update, _embedding_arguments),
    "distances": (pairwise_distances, lambda: _arrays((500, 3))),
    "bisect": (bisect, lambda: (*_arrays((10_000,)), jnp.float32(-4), jnp.float32(4))),
}
