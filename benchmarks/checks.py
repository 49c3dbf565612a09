"""Checks of the programs' values: a random sample of rows, computed again by float64 NumPy.

One function per program of `benchmarks.plain`, from (arguments, outputs) to the largest relative error. The sample
is fixed, so that two runs check the same rows.
"""

from typing import Any

import jax
import numpy as np

from benchmarks.plain import EPSILON, SOFTENING
from exla.search.values import difference

SAMPLE_ROWS = 32


def error_of(got: Any, wanted: Any) -> float:
    """The largest error of a program's results; of integers, the part that is wrong."""
    values, wide = jax.tree.leaves(got), jax.tree.leaves(wanted)
    return max(difference([w.astype(g.dtype) for g, w in zip(values, wide, strict=True)], values))


def relative_error(got: Any, want: np.ndarray) -> float:
    """Largest |got - want| / max(|want|, median |want|); infinite when anything that should be finite is not.

    The median keeps an entry that happens to cancel to nothing from dominating.
    """
    got = np.asarray(got, dtype=np.float64)
    if got.shape != want.shape or not (np.isfinite(got) & np.isfinite(want)).all():
        return float("inf")
    scale = np.maximum(np.abs(want), np.median(np.abs(want)))
    return float(np.max(np.abs(got - want) / scale))


def _sample(size: int) -> np.ndarray:
    return np.random.default_rng(0).choice(size, SAMPLE_ROWS, replace=False)


def _float64(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    return tuple(np.asarray(array, dtype=np.float64) for array in arrays)


def _squared_distances(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.stack([np.sum((row - y) ** 2, axis=1) for row in x])


def _at(values: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """values[row, indices[row]], or NaN where a row names an index twice or one that does not exist."""
    if (indices < 0).any() or (indices >= values.shape[1]).any():
        return np.full(indices.shape, np.nan)
    if any(len(set(row)) < len(row) for row in indices.tolist()):
        return np.full(indices.shape, np.nan)
    return np.take_along_axis(values, indices, axis=1)


def kernel_product(arguments, outputs) -> float:
    x, y, v = _float64(*arguments)
    rows = _sample(len(x))
    return relative_error(np.asarray(outputs)[rows], np.exp(-_squared_distances(x[rows], y) / 2) @ v)


def nearest_neighbours(arguments, outputs) -> float:
    """Compares the distances, and the distances at the returned indices: equal distances may swap their indices."""
    x, y = _float64(*arguments)
    rows = _sample(len(x))
    squared = _squared_distances(x[rows], y)
    distances, indices = (np.asarray(output)[rows] for output in outputs)
    want = np.sort(squared, axis=1)[:, : indices.shape[1]]
    return max(relative_error(distances, want), relative_error(_at(squared, indices), want))


def nbody_forces(arguments, outputs) -> float:
    positions, masses = _float64(*arguments)
    rows = _sample(len(positions))
    difference = positions[None, :, :] - positions[rows][:, None, :]
    weight = masses * (np.sum(difference**2, axis=-1) + SOFTENING**2) ** -1.5
    return relative_error(np.asarray(outputs)[rows], np.einsum("ij,ijd->id", weight, difference))


def sinkhorn_half_step(arguments, outputs) -> float:
    x, y, log_b, g = _float64(*arguments)
    rows = _sample(len(x))
    exponent = (g - _squared_distances(x[rows], y)) / EPSILON + log_b
    largest = exponent.max(axis=1, keepdims=True)
    want = -EPSILON * (np.log(np.sum(np.exp(exponent - largest), axis=1)) + largest[:, 0])
    return relative_error(np.asarray(outputs)[rows], want)


def attention(arguments, outputs) -> float:
    query, key, value = _float64(*arguments)
    rows = _sample(len(query))
    scores = np.einsum("qhd,khd->hqk", query[rows], key) / np.sqrt(query.shape[-1])
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return relative_error(np.asarray(outputs)[rows], np.einsum("hqk,khd->qhd", weights, value))


def sgpr(arguments, outputs) -> float:
    inducing, x, y = _float64(*arguments)
    rows = _sample(len(inducing))
    rows, columns = rows[:8], rows
    k_rows, k_columns = (np.exp(-_squared_distances(inducing[index], x) / 2) for index in (rows, columns))
    matrix, vector = (np.asarray(output) for output in outputs)
    return max(
        relative_error(matrix[np.ix_(rows, columns)], k_rows @ k_columns.T),
        relative_error(vector[columns], k_columns @ y),
    )


def cosine_top5(arguments, outputs) -> float:
    queries, base = _float64(*arguments)
    rows = _sample(len(queries))
    queries = queries[rows] / np.linalg.norm(queries[rows], axis=1, keepdims=True)
    similar = queries @ (base / np.linalg.norm(base, axis=1, keepdims=True)).T
    values, indices = (np.asarray(output)[rows] for output in outputs)
    want = -np.sort(-similar, axis=1)[:, : indices.shape[1]]
    return max(relative_error(values, want), relative_error(_at(similar, indices), want))
