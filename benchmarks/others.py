"""The programs of `benchmarks.plain` as users of other libraries write them to save memory.

`OTHERS[library][program]` makes, from the program's arrays and one of the library's own settings, a function without
arguments that computes the program and returns what the program does, in arrays of the library's (`as_numpy`). The
settings of a library are what its user has to guess: rows of a chunk, mebibytes of working memory, or nothing. A
library that is not installed raises `ModuleNotFoundError` here; none is needed by exla.

Nothing is converted or copied to the device inside the timed function, except what a library does on its own. FAISS
builds its index there, which for exact search is a copy.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.plain import EPSILON, SOFTENING

Run = Callable[[], Any]
Make = Callable[[Sequence[np.ndarray], int | None], Run]
NEIGHBOURS = 10
SIMILAR = 5


def on_torch(arrays: Sequence[np.ndarray]) -> list[Any]:
    """The arrays as tensors, on the GPU if PyTorch has one."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    return [torch.from_numpy(np.ascontiguousarray(array)).to(device) for array in arrays]


def _finished(outputs: Any) -> Any:
    """The outputs, once they are there."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return outputs


def as_numpy(outputs: Any) -> Any:
    """Tensors as arrays; what is an array already is left."""
    if isinstance(outputs, tuple | list):
        return tuple(map(as_numpy, outputs))
    return outputs.cpu().numpy() if hasattr(outputs, "cpu") else outputs


# PyTorch's chunker: `torch.func.vmap(row, chunk_size=...)`


def _chunked(row: Callable[..., Any]) -> Make:
    """A function of one row and of the other arguments, over the rows of the first argument in chunks."""

    def make(arrays: Sequence[np.ndarray], chunk: int | None) -> Run:
        import torch

        first, *rest = on_torch(arrays)
        over = torch.func.vmap(lambda one: row(torch, one, *rest), chunk_size=chunk)

        def run() -> Any:
            with torch.no_grad():
                return _finished(over(first))

        return run

    return make


def _kernel_row(torch: Any, point, y, v):
    return torch.exp(-((point - y) ** 2).sum(-1) / 2) @ v


def _neighbours_row(torch: Any, point, y):
    return tuple(torch.topk(((point - y) ** 2).sum(-1), NEIGHBOURS, largest=False))


def _forces(arrays: Sequence[np.ndarray], chunk: int | None) -> Run:
    positions, masses = arrays
    return _chunked(_forces_row)([positions, positions, masses], chunk)


def _forces_row(torch: Any, position, positions, masses):
    difference = positions - position
    squared = (difference**2).sum(-1) + SOFTENING**2
    return ((masses * squared**-1.5)[:, None] * difference).sum(0)


def _sinkhorn_row(torch: Any, point, y, log_b, g):
    cost = ((point - y) ** 2).sum(-1)
    return -EPSILON * torch.logsumexp((g - cost) / EPSILON + log_b, 0)


def _attention_row(torch: Any, query, key, value):
    scores = torch.einsum("hd,khd->hk", query, key) / query.shape[-1] ** 0.5
    return torch.einsum("hk,khd->hd", torch.softmax(scores, -1), value)


def _sgpr(arrays: Sequence[np.ndarray], chunk: int | None) -> Run:
    """The long axis is summed over, which `vmap` does not do: a loop by hand."""
    import torch

    inducing, x, y = on_torch(arrays)

    def run() -> Any:
        with torch.no_grad():
            square = torch.zeros((len(inducing), len(inducing)), device=x.device)
            product = torch.zeros(len(inducing), device=x.device)
            for rows, targets in zip(x.split(chunk or len(x)), y.split(chunk or len(x)), strict=True):
                k_uf = torch.exp(-((inducing[:, None, :] - rows[None, :, :]) ** 2).sum(-1) / 2)
                square += k_uf @ k_uf.T
                product += k_uf @ targets
            return _finished((square, product))

    return run


def _cosine(arrays: Sequence[np.ndarray], chunk: int | None) -> Run:
    import torch

    queries, base = on_torch(arrays)

    def run() -> Any:
        with torch.no_grad():
            unit, units = (a / torch.linalg.norm(a, dim=1, keepdim=True) for a in (queries, base))
            best = torch.func.vmap(lambda query: tuple(torch.topk(units @ query, SIMILAR)), chunk_size=chunk)
            return _finished(best(unit))

    return run


# PyTorch's own attention, which keeps no scores


def _own_attention(arrays: Sequence[np.ndarray], chunk: int | None) -> Run:
    import torch

    query, key, value = (tensor.transpose(0, 1)[None] for tensor in on_torch(arrays))

    def run() -> Any:
        with torch.no_grad():
            attended = torch.nn.functional.scaled_dot_product_attention(query, key, value)
            return _finished(attended[0].transpose(0, 1))

    return run


# KeOps: the matrix is symbolic, and each entry is computed where it is reduced


def _keops(formula: Callable[..., Any]) -> Make:
    """A formula of PyTorch tensors and of KeOps' `LazyTensor`."""

    def make(arrays: Sequence[np.ndarray], chunk: int | None) -> Run:
        from pykeops.torch import LazyTensor

        tensors = on_torch(arrays)
        return lambda: _finished(formula(LazyTensor, *tensors))

    return make


def _keops_kernel(lazy: Any, x, y, v):
    return ((-((lazy(x[:, None, :]) - lazy(y[None, :, :])) ** 2).sum(-1) / 2).exp() @ v[:, None])[:, 0]


def _keops_neighbours(lazy: Any, x, y):
    return tuple((lazy(x[:, None, :]) - lazy(y[None, :, :])).sqnorm2().Kmin_argKmin(NEIGHBOURS, dim=1))


def _keops_forces(lazy: Any, positions, masses):
    difference = lazy(positions[None, :, :]) - lazy(positions[:, None, :])
    weight = lazy(masses[None, :, None]) * (difference.sqnorm2() + SOFTENING**2) ** -1.5
    return (weight * difference).sum(dim=1)


def _keops_sinkhorn(lazy: Any, x, y, log_b, g):
    cost = (lazy(x[:, None, :]) - lazy(y[None, :, :])).sqnorm2()
    exponent = (lazy(g[None, :, None]) - cost) / EPSILON + lazy(log_b[None, :, None])
    return -EPSILON * exponent.logsumexp(dim=1)[:, 0]


def _keops_attention(lazy: Any, query, key, value):
    query, key, value = (tensor.transpose(0, 1).contiguous() for tensor in (query, key, value))
    scores = (lazy(query[:, :, None, :]) | lazy(key[:, None, :, :])) / query.shape[-1] ** 0.5
    return scores.sumsoftmaxweight(lazy(value[:, None, :, :]), dim=2).transpose(0, 1)


def _keops_cosine(lazy: Any, queries, base):
    queries, base = (a / (a**2).sum(1, keepdim=True).sqrt() for a in (queries, base))
    unlike, indices = (-(lazy(queries[:, None, :]) | lazy(base[None, :, :]))).Kmin_argKmin(SIMILAR, dim=1)
    return -unlike, indices


# FAISS: exact search with a flat index


def _faiss_neighbours(arrays: Sequence[np.ndarray], chunk: int | None) -> Run:
    import faiss

    x, y = arrays

    def run() -> Any:
        index = faiss.IndexFlatL2(y.shape[1])
        index.add(y)
        return index.search(x, NEIGHBOURS)

    return run


def _faiss_cosine(arrays: Sequence[np.ndarray], chunk: int | None) -> Run:
    import faiss

    def run() -> Any:
        queries, base = (a / np.linalg.norm(a, axis=1, keepdims=True) for a in arrays)
        index = faiss.IndexFlatIP(base.shape[1])
        index.add(base)
        return index.search(queries, SIMILAR)

    return run


# scikit-learn: distances in chunks of so many mebibytes of working memory, and a function of each


def _reduced(reduce: Callable[..., np.ndarray]) -> Make:
    def make(arrays: Sequence[np.ndarray], mebibytes: int | None) -> Run:
        from sklearn.metrics import pairwise_distances_chunked

        x, y, *rest = arrays

        def run() -> Any:
            parts = pairwise_distances_chunked(
                x,
                y,
                metric="sqeuclidean",
                working_memory=mebibytes,
                reduce_func=lambda squared, _: reduce(squared, *rest),
            )
            return np.concatenate(list(parts))

        return run

    return make


def _reduce_kernel(squared, v):
    return np.exp(-squared / 2) @ v


def _reduce_sinkhorn(squared, log_b, g):
    from scipy.special import logsumexp

    return -np.float32(EPSILON) * logsumexp((g - squared) / np.float32(EPSILON) + log_b, axis=1)


def _nearest(metric: str, count: int, finish: Callable[[np.ndarray], np.ndarray]) -> Make:
    def make(arrays: Sequence[np.ndarray], mebibytes: int | None) -> Run:
        import sklearn
        from sklearn.neighbors import NearestNeighbors

        rows, among = arrays

        def run() -> Any:
            with sklearn.config_context(working_memory=mebibytes):
                found = NearestNeighbors(n_neighbors=count, algorithm="brute", metric=metric).fit(among)
                distances, indices = found.kneighbors(rows)
                return finish(distances), indices

        return run

    return make


_torch_kernel, _library_kernel = _chunked(_kernel_row), _keops(_keops_kernel)

OTHERS: Mapping[str, Mapping[str, Make]] = {
    "PyTorch": {
        "kernel-d3": _torch_kernel,
        "kernel-d16": _torch_kernel,
        "knn": _chunked(_neighbours_row),
        "nbody": _forces,
        "sinkhorn": _chunked(_sinkhorn_row),
        "attention": _chunked(_attention_row),
        "sgpr": _sgpr,
        "cosine": _cosine,
    },
    "PyTorch SDPA": {"attention": _own_attention},
    "KeOps": {
        "kernel-d3": _library_kernel,
        "kernel-d16": _library_kernel,
        "knn": _keops(_keops_neighbours),
        "nbody": _keops(_keops_forces),
        "sinkhorn": _keops(_keops_sinkhorn),
        "attention": _keops(_keops_attention),
        "cosine": _keops(_keops_cosine),
    },
    "FAISS": {"knn": _faiss_neighbours, "cosine": _faiss_cosine},
    "scikit-learn": {
        "kernel-d3": _reduced(_reduce_kernel),
        "kernel-d16": _reduced(_reduce_kernel),
        "knn": _nearest("sqeuclidean", NEIGHBOURS, lambda squared: squared),
        "sinkhorn": _reduced(_reduce_sinkhorn),
        "cosine": _nearest("cosine", SIMILAR, lambda distance: 1 - distance),
    },
}
"""Library -> program of `benchmarks.programs` -> what makes it run there; what a library cannot say is left out."""

GUESSED: Mapping[str, Callable[[Any], Sequence[int | None]]] = {
    "PyTorch": lambda benchmark: benchmark.chunks,
    "scikit-learn": lambda benchmark: (64, 256, 1024),
}
"""Library -> what a user of it would try for a program: rows of a chunk, mebibytes."""


def settings(library: str, benchmark: Any) -> Sequence[int | None]:
    """What a library's user would try; one None where there is nothing to set."""
    return GUESSED.get(library, lambda _: (None,))(benchmark)


@functools.cache
def is_installed(library: str) -> bool:
    """Whether a library can be imported here."""
    import importlib.util

    module = {"PyTorch": "torch", "PyTorch SDPA": "torch", "KeOps": "pykeops", "FAISS": "faiss"}.get(library, "sklearn")
    return importlib.util.find_spec(module) is not None
