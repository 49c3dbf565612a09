"""Verification: what the fields suggest is tested exactly, and proved where it can be.

*Tested*: both sides are evaluated on random whole numbers in exact arithmetic, e^x being 2^x, at several sizes, 1 among
them, and compared for equality; with a logarithm in them to 12 digits. That is evidence and no proof.

*Proved for all shapes* (after PET's multilinearity argument): both sides are affine in every input, and no sum runs
over an axis along which one of its terms is constant. An entry of the result is then a sum of products of entries of
different inputs, and what stands before a product is a count that depends only on which of the positions in it
coincide, axis by axis: every operation treats the indices of an axis alike, and without sums over constants sizes do
not enter. All coincidences occur once an axis has as many indices as there are inputs with that axis, plus one for the
result. So if at these sizes both sides agree wherever each input is zero or one basis tensor, they agree at all sizes,
for all values, over every commutative ring. Floating-point rounding is outside the claim."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from exla.rules.discover.terms import LETTERS, Pair, Term, axes_of, inputs_of, subterms, to_graphs
from exla.rules.graphs import as_function

PROVED = "proved for all shapes"
TESTED = "tested"
ROUNDS = 6
MOST_CASES = 200_000
RELATIVE_TOLERANCE = 1e-12


def verify(pair: Pair, seed: int) -> str | None:
    """PROVED, TESTED, or None where the two sides differ.

    Args:
      pair: two terms.
      seed: of the random values.
    """
    if axes_of(pair[0]) != axes_of(pair[1]) or not is_equal_at_random(pair, seed):
        return None
    if not is_equal_in_jax(pair, seed):
        return None
    if not all(is_affine(term) for term in pair):
        return TESTED
    agree = agree_on_basis(pair)
    return TESTED if agree is None else PROVED if agree else None


def is_equal_at_random(pair: Pair, seed: int) -> bool:
    """Whether both sides are equal on random whole numbers, at several sizes."""
    operations = {t[0] for term in pair for t in subterms(term)}
    lowest = 0 if operations & {"exp", "log"} else -4
    inputs = inputs_of(pair[0])
    for trial in range(ROUNDS):
        generator = np.random.default_rng([seed, trial])
        sizes = {a: int(generator.integers(1, 4)) for a in LETTERS}
        arrays = {t: _random(generator, _shape(t[2], sizes), lowest) for t in inputs}
        first, second = (evaluate(term, arrays, sizes) for term in pair)
        if "log" in operations:
            if not np.allclose(first.astype(float), second.astype(float), rtol=RELATIVE_TOLERANCE, atol=1e-12):
                return False
        elif not np.array_equal(first, second):
            return False
    return True


def is_equal_in_jax(pair: Pair, seed: int) -> bool:
    """Whether the functions that the engine would use agree in float32, on small whole numbers."""
    graphs = to_graphs(pair)
    generator = np.random.default_rng([seed, ROUNDS])
    sizes = dict(zip(LETTERS, (2, 3, 4, 1, 2, 3), strict=True))
    arrays = [generator.integers(-2, 3, [sizes[a] for a in axes]).astype(np.float32) for axes in graphs[0].inputs]
    first, second = (np.asarray(as_function(graph)(*arrays)) for graph in graphs)
    return first.shape == second.shape and np.allclose(first, second, rtol=1e-5, atol=1e-5 * float(np.abs(first).max()))


def is_affine(term: Term) -> bool:
    """Whether each input occurs at most once in each product, and no sum runs over an axis of a constant."""
    degrees: dict[Term, dict[Term, int]] = {}
    depends: dict[Term, set[str]] = {}
    for t in subterms(term):
        if t[0] == "in":
            degrees[t], depends[t] = {t: 1}, set(t[2])
            continue
        below = [degrees[o] for o in t[2:]]
        along = [depends[o] for o in t[2:]]
        if t[0] in ("exp", "log"):
            return False
        together = sum if t[0] in ("multiply", "dot") else max
        degrees[t] = {n: together([d.get(n, 0) for d in below]) for d in below for n in d}
        depends[t] = set.intersection(*along) if t[0] == "add" else set.union(*along)
        if t[0] in ("sum", "dot"):
            if not set(t[1]) <= depends[t]:
                return False
            depends[t] = depends[t] - set(t[1])
        if max(degrees[t].values()) > 1:
            return False
    return True


def agree_on_basis(pair: Pair) -> bool | None:
    """Whether both sides agree wherever every input is zero or a basis tensor; None where these are too many."""
    inputs = inputs_of(pair[0])
    output = axes_of(pair[0])
    sizes = {a: sum(a in t[2] for t in inputs) + (a in output) for a in LETTERS}
    counts = [1 + math.prod(sizes[a] for a in t[2]) for t in inputs]
    if math.prod(counts) > MOST_CASES:
        return None
    cases = np.array(list(itertools.product(*(range(c) for c in counts))))
    arrays = {}
    for column, t in enumerate(inputs):
        basis: np.ndarray = np.eye(counts[column], dtype=np.int64)[:, 1:]
        arrays[t] = basis[cases[:, column]].reshape(len(cases), *_shape(t[2], sizes)[1:])
    first, second = (evaluate(term, arrays, sizes) for term in pair)
    return bool(np.array_equal(first, second))


def evaluate(term: Term, arrays: Mapping[Term, Any], sizes: Mapping[str, int]) -> Any:
    """The value of a term in exact arithmetic; e^x is 2^x.

    Args:
      term: the term.
      arrays: of every input, of shape (cases, size of i or 1, size of j or 1, ...).
      sizes: axis name -> size.
    """
    values = dict(arrays)
    for t in subterms(term):
        if t not in values:
            values[t] = _apply(t[0], t[1], [values[o] for o in t[2:]], sizes)
    return values[term]


def _apply(op: str, axes: str, operands: Sequence[Any], sizes: Mapping[str, int]) -> Any:
    places = tuple(1 + LETTERS.index(a) for a in axes)
    x = operands[0]
    if op == "add":
        return x + operands[1]
    if op in ("multiply", "dot"):
        product = x * operands[1]
        return product.sum(axis=places, keepdims=True) if op == "dot" else product
    if op == "sum":
        return x.sum(axis=places, keepdims=True)
    if op == "broadcast":
        return np.broadcast_to(x, [sizes[LETTERS[k - 1]] if k in places else n for k, n in enumerate(x.shape)])
    return np.vectorize((lambda v: 2**v) if op == "exp" else math.log2, otypes=[object])(x)


def _shape(axes: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return (1, *(sizes[a] if a in axes else 1 for a in LETTERS))


def _random(generator: np.random.Generator, shape: tuple[int, ...], lowest: int) -> Any:
    """Python's whole numbers, so that nothing overflows or is rounded."""
    return generator.integers(lowest, 5, shape).astype(object)
