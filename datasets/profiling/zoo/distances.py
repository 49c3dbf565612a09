"""Neighbours and distances between sets, by brute force."""

import jax
import jax.numpy as jnp
from jax import lax


def squared_distances(x, y):
    return jnp.sum((x[:, None, :] - y[None, :, :]) ** 2, axis=-1)


def nearest_neighbours(x, y):
    """The ten nearest of y for each of x (FAISS' IndexFlatL2; Johnson et al., 2017)."""
    negative, indices = lax.top_k(-squared_distances(x, y), 10)
    return -negative, indices


def chamfer(x, y):
    """Chamfer distance of two point clouds (Fan et al., *A Point Set Generation Network*, CVPR 2017, eq. 1)."""
    squared = squared_distances(x, y)
    return jnp.mean(jnp.min(squared, axis=1)) + jnp.mean(jnp.min(squared, axis=0))


def chamfer_gradient(x, y):
    """Gradient of the Chamfer distance in the first cloud (PyTorch3D's chamfer_distance, backward)."""
    return jax.grad(chamfer)(x, y)


def hausdorff(x, y):
    """Symmetric Hausdorff distance (Huttenlocher et al., PAMI 1993; SciPy's directed_hausdorff, both ways)."""
    distance = jnp.sqrt(squared_distances(x, y))
    return jnp.maximum(jnp.max(jnp.min(distance, axis=1)), jnp.max(jnp.min(distance, axis=0)))


def hamming(codes):
    """Pairwise Hamming distances: the mean and the nearest other (SciPy's pdist(metric='hamming'))."""
    different = jnp.sum(codes[:, None, :] != codes[None, :, :], axis=-1)
    others = jnp.where(jnp.eye(len(codes), dtype=bool), codes.shape[1] + 1, different)
    return jnp.mean(different / codes.shape[1], axis=1), jnp.min(others, axis=1)


def cosine_top5(queries, base):
    """The five most similar base vectors (the exact baseline of ANN-benchmarks, Aumüller et al., 2020)."""
    queries = queries / jnp.linalg.norm(queries, axis=1, keepdims=True)
    base = base / jnp.linalg.norm(base, axis=1, keepdims=True)
    return lax.top_k(queries @ base.T, 5)
