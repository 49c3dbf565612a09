"""What a competent person writes today to save memory: `lax.map` over the rows, and a chunk size to guess.

One function per program of `benchmarks.plain`, from a chunk to a function of the program's arguments. The chunk is
`lax.map`'s `batch_size`: that many rows are in memory at once. SGPR sums over its long axis, so there the chunks are
accumulated in a `lax.scan`. None uses the expansion of a squared distance or an online softmax: what is compared is
the splitting.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import logsumexp

from benchmarks.plain import EPSILON, SOFTENING


def kernel_product(chunk: int):
    def chunked(x, y, v):
        def one(point):
            return jnp.exp(-jnp.sum((point - y) ** 2, axis=-1) / 2) @ v

        return lax.map(one, x, batch_size=chunk)

    return chunked


def nearest_neighbours(chunk: int, k: int = 10):
    def chunked(x, y):
        def one(point):
            negative, indices = lax.top_k(-jnp.sum((point - y) ** 2, axis=-1), k)
            return -negative, indices

        return lax.map(one, x, batch_size=chunk)

    return chunked


def nbody_forces(chunk: int):
    def chunked(positions, masses):
        def one(position):
            difference = positions - position
            squared = jnp.sum(difference**2, axis=-1) + SOFTENING**2
            return jnp.sum((masses * squared**-1.5)[:, None] * difference, axis=0)

        return lax.map(one, positions, batch_size=chunk)

    return chunked


def sinkhorn_half_step(chunk: int):
    def chunked(x, y, log_b, g):
        def one(point):
            cost = jnp.sum((point - y) ** 2, axis=-1)
            return -EPSILON * logsumexp((g - cost) / EPSILON + log_b)

        return lax.map(one, x, batch_size=chunk)

    return chunked


def attention(chunk: int):
    def chunked(query, key, value):
        def one(row):
            scores = jnp.einsum("hd,khd->hk", row, key) / jnp.sqrt(row.shape[-1])
            return jnp.einsum("hk,khd->hd", jax.nn.softmax(scores, axis=-1), value)

        return lax.map(one, query, batch_size=chunk)

    return chunked


def sgpr(chunk: int):
    """The long axis is summed over, so the chunks are accumulated; `chunk` must divide n."""

    def chunked(inducing, x, y):
        def add(sums, start):
            rows, targets = (lax.dynamic_slice_in_dim(array, start, chunk) for array in (x, y))
            k_uf = jnp.exp(-jnp.sum((inducing[:, None, :] - rows[None, :, :]) ** 2, axis=-1) / 2)
            return (sums[0] + k_uf @ k_uf.T, sums[1] + k_uf @ targets), None

        size = inducing.shape[0]
        zeros = (jnp.zeros((size, size), x.dtype), jnp.zeros((size,), x.dtype))
        return lax.scan(add, zeros, jnp.arange(0, x.shape[0], chunk))[0]

    return chunked


def cosine_top5(chunk: int):
    def chunked(queries, base):
        queries = queries / jnp.linalg.norm(queries, axis=1, keepdims=True)
        base = base / jnp.linalg.norm(base, axis=1, keepdims=True)
        return lax.map(lambda query: lax.top_k(base @ query, 5), queries, batch_size=chunk)

    return chunked
