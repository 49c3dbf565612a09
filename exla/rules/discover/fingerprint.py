"""Fingerprints: a graph evaluated over finite fields, where equal means equal.

Inputs are random elements of two prime fields at once, Z_q and Z_p with p = 2q + 1. Sums and products are taken in
both; no rounding, no overflow, and two different polynomials agree at a random point with a probability of about 1 in
a million, at all the points that are tried with one of about 1 in 10^24 (Schwartz and Zippel).

`exp` follows Mirage: e^x is g^x mod p, where x is the value in Z_q and g has the order q, so that e^(x+y) = e^x e^y
holds. The result is known in Z_p only and cannot be an exponent again. `log` is its inverse: the discrete logarithm mod
q, for which log(xy) = log(x) + log(y) and log(e^x) = x hold. It is known in Z_q only. The fields are small enough for
tables of both.

Values are arrays in which every axis has a place of its own, of size 1 where a value does not have it, so that
operations are plain broadcasting; each is evaluated at two assignments of sizes, so that a sum over j is not mistaken
for a multiplication by a number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np

from exla.rules.discover.terms import LETTERS, Term, axes_of, inputs_of

Q = 1_048_571
P = 2 * Q + 1
GENERATOR = 5
SAMPLES = 4
SIZES: tuple[Mapping[str, int], ...] = (
    dict(zip(LETTERS, (3, 2, 4, 5, 2, 3), strict=True)),
    dict(zip(LETTERS, (2, 5, 3, 2, 3, 2), strict=True)),
)

Arrays = tuple[np.ndarray, ...]


@dataclass(frozen=True, slots=True)
class Residues:
    """A value in both fields; None where it is not known there.

    Attributes:
      in_q, in_p: one array per assignment of sizes, of shape (SAMPLES, size of i or 1, size of j or 1, ...).
    """

    in_q: Arrays | None
    in_p: Arrays | None


@lru_cache(maxsize=1000)
def draw(axes: str, number: int, seed: int) -> Residues:
    """Random values of an input.

    Args:
      axes: its axes.
      number: which input it is.
      seed: the seed of the run.
    """
    in_q, in_p = [], []
    for which, sizes in enumerate(SIZES):
        shape = (SAMPLES, *(sizes[a] if a in axes else 1 for a in LETTERS))
        generator = np.random.default_rng([seed, number, which, *axes.encode()])
        in_q.append(generator.integers(0, Q, shape))
        in_p.append(generator.integers(0, P, shape))
    return Residues(tuple(in_q), tuple(in_p))


def apply(op: str, axes: str, operands: Sequence[Residues]) -> Residues | None:
    """One operation, or None where its result is known in neither field."""
    x = operands[0]
    if op == "exp":
        if x.in_q is None or x.in_p is None:
            return None
        return Residues(None, tuple(_powers()[a] for a in x.in_q))
    if op == "log":
        if x.in_p is None or x.in_q is not None:
            return None
        return Residues(tuple(_logarithms()[a] for a in x.in_p), None)
    in_q = _modular(op, axes, [o.in_q for o in operands], Q)
    in_p = _modular(op, axes, [o.in_p for o in operands], P)
    return None if in_q is None and in_p is None else Residues(in_q, in_p)


def digest(axes: str, value: Residues) -> bytes:
    """The fingerprint of a value: 16 bytes."""
    known = value.in_q if value.in_q is not None else value.in_p
    assert known is not None
    hashed = hashlib.blake2b(axes.encode() + (b"q" if value.in_q is not None else b"p"), digest_size=16)
    for array in known:
        hashed.update(array.tobytes())
    return hashed.digest()


def fingerprint(term: Term, seed: int) -> bytes | None:
    """The fingerprint of a term, or None where it cannot be evaluated."""
    known: dict[Term, Residues | None] = {t: draw(t[2], t[1], seed) for t in inputs_of(term)}

    def value(t: Term) -> Residues | None:
        if t not in known:
            operands = [value(o) for o in t[2:]]
            known[t] = None if None in operands else apply(t[0], t[1], operands)  # type: ignore[arg-type]
        return known[t]

    result = value(term)
    return None if result is None else digest(axes_of(term), result)


def _modular(op: str, axes: str, operands: Sequence[Arrays | None], modulus: int) -> Arrays | None:
    if any(o is None for o in operands):
        return None
    results = []
    for which, sizes in enumerate(SIZES):
        arrays: list[Any] = [o[which] for o in operands if o is not None]
        if op == "add":
            result = arrays[0] + arrays[1]
        elif op == "multiply":
            result = arrays[0] * arrays[1]
        elif op == "dot":
            result = _sum(arrays[0] * arrays[1], axes)
        elif op == "sum":
            result = _sum(arrays[0], axes)
        else:
            shape = [sizes[a] if a in axes else n for a, n in zip(LETTERS, arrays[0].shape[1:], strict=True)]
            results.append(np.ascontiguousarray(np.broadcast_to(arrays[0], (SAMPLES, *shape))))
            continue
        results.append(result % modulus)
    return tuple(results)


def _sum(array: Any, axes: str) -> Any:
    return np.add.reduce(array, axis=tuple(1 + LETTERS.index(a) for a in axes), keepdims=True)


@cache
def _powers() -> np.ndarray:
    """g^x mod p for every x mod q, g = GENERATOR^2."""
    return _geometric(GENERATOR**2, Q)


@cache
def _logarithms() -> np.ndarray:
    """The logarithm of every element of Z_p to the base g, mod q; that of 0 is 0."""
    table: np.ndarray = np.zeros(P, np.int64)
    table[_geometric(GENERATOR, P - 1)] = np.arange(P - 1) * pow(2, -1, Q) % Q
    return table


def _geometric(base: int, count: int) -> np.ndarray:
    """base^0, base^1, ..., mod p."""
    powers: np.ndarray = np.ones(1, np.int64)
    while len(powers) < count:
        powers = np.concatenate([powers, powers * pow(base, len(powers), P) % P])
    return powers[:count]
