"""Values of programs, compared on arguments that are made up.

    compare(reference.run, candidate.run, avals, Allowed(tolerance=1e-3, most_different=0.0)) -> Verdict

Two kinds of arguments, since a program may do other things with each: "signed" numbers between -1 and 1 with indices
that differ, and "positive" ones between 1/4 and 1 with indices of 0, of which logarithms, roots and factorisations are
numbers.

Floating point results may differ by a part of the largest of their array, and half of them by no more than that part
of themselves: else an array of small numbers beside a large one could be anything. A program may make much of a
rounding of its arguments. Where results differ by more, the reference is therefore asked what it makes itself of
arguments that are off by one unit of their precision, and eight times that is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from exla import _compat

KINDS = ("signed", "positive")
SHAKEN = 8.0
"""Times what the reference makes of a rounding of its arguments that results may differ by."""

Run = Callable[[Sequence[Any]], Sequence[Any]]


@dataclass(frozen=True, kw_only=True)
class Allowed:
    """What values may differ by.

    Attributes:
      tolerance: of floating point results; see above.
      most_different: the share of other results that may differ.
      kinds: of arguments that are tried.
    """

    tolerance: float
    most_different: float = 0.0
    kinds: Sequence[str] = KINDS


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How two programs compare.

    Attributes:
      agree: whether their values are the same, as far as they have to be.
      error: the largest difference of floating point numbers on the arguments that were tried last, as a part of the
        largest of their array, or of most of them as a part of themselves where that is what they differ by; inf where
        NaNs differ.
    """

    agree: bool
    error: float


def compare(reference: Run, candidate: Run, avals: Sequence[Any], allowed: Allowed) -> Verdict:
    """Compare what two programs make of the same arguments.

    Args:
      reference: the program that is right.
      candidate: the other.
      avals: types of the arguments.
      allowed: what the values may differ by.
    """
    verdict = Verdict(agree=True, error=0.0)
    for kind in allowed.kinds:
        arguments = made_up(avals, kind)
        want, got = _values(reference, arguments), _values(candidate, arguments)
        apart = [_Apart.of(*pair) for pair in zip(want, got, strict=True)]
        agree = all(one.within(allowed) for one in apart)
        if not agree and all(w.shape == g.shape for w, g in zip(want, got, strict=True)):
            shaken = _values(reference, [_shaken(a) for a in arguments])
            moved = [_Apart.of(*pair) for pair in zip(want, shaken, strict=True)]
            agree = all(one.within(allowed, other) for one, other in zip(apart, moved, strict=True))
        verdict = Verdict(agree=agree, error=max((one.error(allowed) for one in apart), default=0.0))
        if not agree:
            break
    return verdict


@dataclass(frozen=True, kw_only=True)
class _Apart:
    """How far one result is from another.

    Attributes:
      largest, share: as of `difference`.
      typical: as of `typical_difference`.
    """

    largest: float
    share: float
    typical: float

    @classmethod
    def of(cls, want: np.ndarray, got: np.ndarray) -> _Apart:
        largest, share = difference([want], [got])
        return cls(largest=largest, share=share, typical=typical_difference(want, got))

    def within(self, allowed: Allowed, moved: _Apart | None = None) -> bool:
        """Whether that is allowed; `moved` is how far it is from what arguments make of it that are off a little.

        A result that is rounding alone is as far off where most of it happens to stay.
        """
        largest = SHAKEN * moved.largest if moved else 0.0
        typical = max(largest, SHAKEN * moved.typical) if moved else 0.0
        share = SHAKEN * moved.share if moved else 0.0
        return (
            self.largest <= max(allowed.tolerance, largest)
            and self.typical <= max(allowed.tolerance, typical)
            and self.share <= max(allowed.most_different, share)
        )

    def error(self, allowed: Allowed) -> float:
        return self.largest if self.largest > allowed.tolerance else max(self.largest, self.typical)


def _values(run: Run, arguments: Sequence[Any]) -> list[np.ndarray]:
    return [np.asarray(x) for x in run(arguments)]


def made_up(avals: Sequence[Any], kind: str = "positive") -> list[Any]:
    """Arguments of these types, the same in every process.

    Integers that are not zero are less than the smallest axis of any argument, so that they are indices of each.
    """
    generator = np.random.default_rng(0)
    smallest = min((size for a in avals for size in a.shape if size > 1), default=2)
    return [jax.device_put(_argument(a, kind == "signed", min(smallest, 100), generator)) for a in avals]


def _argument(aval: Any, is_signed: bool, below: int, generator: np.random.Generator) -> Any:
    if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return _compat.key_like(aval)
    least = -1.0 if is_signed else 0.25
    if jax.dtypes.issubdtype(aval.dtype, np.floating):
        return generator.uniform(least, 1, aval.shape).astype(aval.dtype)
    if jax.dtypes.issubdtype(aval.dtype, np.complexfloating):
        real, imaginary = generator.uniform(least, 1, (2, *aval.shape))
        return (real + 1j * imaginary).astype(aval.dtype)
    if not is_signed:
        return np.zeros(aval.shape, aval.dtype)
    return generator.integers(0, 2 if aval.dtype == bool else below, aval.shape).astype(aval.dtype)


def _shaken(argument: Any) -> Any:
    """Numbers that are off by one unit of their precision, up or down; anything else as it is."""
    if not jax.dtypes.issubdtype(argument.dtype, np.inexact):
        return argument
    values = np.asarray(argument)
    signs = np.where(np.random.default_rng(1).integers(0, 2, values.shape) == 1, 1.0, -1.0)
    eps = float(jax.numpy.finfo(argument.dtype).eps)
    wide = np.complex128 if np.iscomplexobj(values) else np.float64
    return jax.device_put((values.astype(wide) * (1 + eps * signs)).astype(values.dtype))


def difference(reference: Sequence[Any], values: Sequence[Any]) -> tuple[float, float]:
    """How far two lists of results differ.

    Returns:
      The largest difference of floating point numbers, as a part of the largest value of their array, inf where NaNs
      differ; and the largest share of other elements that differ.
    """
    worst = share = 0.0
    for want, got in zip(reference, values, strict=True):
        if want.shape != got.shape or want.dtype != got.dtype:
            return math.inf, 1.0
        if not jax.dtypes.issubdtype(want.dtype, np.inexact):
            share = max(share, float(np.mean(want != got)) if want.size else 0.0)
            continue
        want, got = _wide(want), _wide(got)
        finite = np.isfinite(want)
        if not np.array_equal(finite, np.isfinite(got)) or not np.array_equal(
            want[~finite], got[~finite], equal_nan=True
        ):
            return math.inf, share
        scale = float(np.max(np.abs(want[finite]), initial=0.0))
        largest = float(np.max(np.abs(want[finite] - got[finite]), initial=0.0))
        worst = max(worst, largest / scale if scale > 0 else (math.inf if largest > 0 else 0.0))
    return worst, share


def typical_difference(want: np.ndarray, got: np.ndarray) -> float:
    """By how much of themselves half of the floating point numbers differ that are neither 0 nor infinite."""
    if want.shape != got.shape or not jax.dtypes.issubdtype(want.dtype, np.inexact):
        return 0.0
    want, got = _wide(want), _wide(got)
    some = np.isfinite(want) & np.isfinite(got) & (want != 0)
    apart = np.abs(want[some] - got[some]) / np.abs(want[some])
    return float(np.partition(apart, (apart.size - 1) // 2)[(apart.size - 1) // 2]) if apart.size else 0.0


def _wide(values: np.ndarray) -> np.ndarray:
    is_complex = jax.dtypes.issubdtype(values.dtype, np.complexfloating)
    return values.astype(np.complex128 if is_complex else np.float64)
