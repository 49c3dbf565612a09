"""Optimal transport."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import logsumexp

EPSILON = 0.1


def cost_matrix(x, y):
    return jnp.sum((x[:, None, :] - y[None, :, :]) ** 2, axis=-1)


def sinkhorn_half_step(x, y, log_b, g):
    """One log-domain update of a potential (Peyré and Cuturi, *Computational Optimal Transport*, 2019, 4.4)."""
    return -EPSILON * logsumexp((g[None, :] - cost_matrix(x, y)) / EPSILON + log_b[None, :], axis=1)


def sinkhorn_fori(x, y):
    """Five Sinkhorn iterations on a stored kernel (Cuturi, NIPS 2013, algorithm 1; POT's ot.sinkhorn)."""
    kernel = jnp.exp(-cost_matrix(x, y))
    a, b = jnp.full(len(x), 1 / len(x), x.dtype), jnp.full(len(y), 1 / len(y), x.dtype)

    def iteration(_, scalings):
        u, v = scalings
        u = a / (kernel @ v)
        return u, b / (kernel.T @ u)

    return lax.fori_loop(0, 5, iteration, (jnp.ones_like(a), jnp.ones_like(b)))


def barycentric_map(x, y, f, g):
    """Barycentric projection of an entropic plan (Ferradans et al., 2014; POT's SinkhornTransport.transform)."""
    weights = jax.nn.softmax((f[:, None] + g[None, :] - cost_matrix(x, y)) / EPSILON, axis=1)
    return weights @ y


def sliced_wasserstein(x, y, directions):
    """Sliced 2-Wasserstein distance (Bonneel et al., 2015; POT's sliced_wasserstein_distance)."""
    directions = directions / jnp.linalg.norm(directions, axis=0)
    return jnp.sqrt(jnp.mean((jnp.sort(x @ directions, axis=0) - jnp.sort(y @ directions, axis=0)) ** 2))
