"""The eight programs on which exla is measured, as a user would write them: plain JAX, unaware of exla.

Each one broadcasts and then reduces, so the answer is small and the array in between is not. `benchmarks.by_hand` has
the same functions in chunks, `benchmarks.checks` their checks, and `benchmarks.programs` puts the three together at
their natural sizes.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import logsumexp

SOFTENING = 1e-2
EPSILON = 0.1


def kernel_product(x, y, v):
    """Gaussian kernel matrix times a vector (Charlier et al., *Kernel Operations on the GPU*, KeOps, JMLR 2021).

    Args:
      x: (n, d). y: (m, d). v: (m,).

    Returns:
      (n,), sum_j exp(-|x_i - y_j|^2 / 2) v_j.
    """
    squared = jnp.sum((x[:, None, :] - y[None, :, :]) ** 2, axis=-1)
    return jnp.exp(-squared / 2) @ v


def nearest_neighbours(x, y, k=10):
    """The k nearest of y for each of x, by brute force (the exact search of KeOps' and FAISS' benchmarks).

    Args:
      x: (n, d). y: (m, d).

    Returns:
      squared distances (n, k), ascending, and indices into y (n, k).
    """
    squared = jnp.sum((x[:, None, :] - y[None, :, :]) ** 2, axis=-1)
    negative, indices = lax.top_k(-squared, k)
    return -negative, indices


def nbody_forces(positions, masses):
    """Accelerations under softened gravity (Plummer softening; Aarseth, *Gravitational N-Body Simulations*, 2003).

    Args:
      positions: (n, 3). masses: (n,).

    Returns:
      (n, 3), sum_j m_j (r_j - r_i) / (|r_j - r_i|^2 + s^2)^(3/2).
    """
    difference = positions[None, :, :] - positions[:, None, :]
    squared = jnp.sum(difference**2, axis=-1) + SOFTENING**2
    weight = masses[None, :] * squared**-1.5
    return jnp.sum(weight[:, :, None] * difference, axis=1)


def sinkhorn_half_step(x, y, log_b, g):
    """One log-domain Sinkhorn update of a potential (Peyré and Cuturi, *Computational Optimal Transport*, 2019, 4.4).

    Args:
      x: (n, d). y: (m, d). log_b: (m,) log weights of y. g: (m,) the other potential.

    Returns:
      (n,), -eps * logsumexp_j((g_j - |x_i - y_j|^2) / eps + log b_j).
    """
    cost = jnp.sum((x[:, None, :] - y[None, :, :]) ** 2, axis=-1)
    return -EPSILON * logsumexp((g[None, :] - cost) / EPSILON + log_b[None, :], axis=1)


def attention(query, key, value):
    """Softmax attention as in *Attention Is All You Need* (Vaswani et al., 2017, sec. 3.2), without a mask.

    Args:
      query, key, value: (S, H, D).

    Returns:
      (S, H, D).
    """
    scores = jnp.einsum("qhd,khd->hqk", query, key) / jnp.sqrt(query.shape[-1])
    return jnp.einsum("hqk,khd->qhd", jax.nn.softmax(scores, axis=-1), value)


def sgpr(inducing, x, y):
    """The two products of sparse Gaussian process regression (Titsias, AISTATS 2009; GPflow's SGPR).

    Args:
      inducing: (M, d). x: (n, d). y: (n,).

    Returns:
      K_uf K_uf^T (M, M) and K_uf y (M,), for a squared-exponential kernel of unit length scale.
    """
    k_uf = jnp.exp(-jnp.sum((inducing[:, None, :] - x[None, :, :]) ** 2, axis=-1) / 2)
    return k_uf @ k_uf.T, k_uf @ y


def cosine_top5(queries, base):
    """The five most similar base vectors of each query (the exact baseline of ANN-benchmarks, Aumüller et al., 2020).

    Args:
      queries: (q, d). base: (b, d).

    Returns:
      similarities (q, 5), descending, and indices into base (q, 5).
    """
    queries = queries / jnp.linalg.norm(queries, axis=1, keepdims=True)
    base = base / jnp.linalg.norm(base, axis=1, keepdims=True)
    return lax.top_k(queries @ base.T, 5)
