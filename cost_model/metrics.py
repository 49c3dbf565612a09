"""How good a ranking of configurations is.

Every function takes *scores* and *runtimes*, one of each for a configuration, and in both **lower is faster**: a score
is a predicted runtime on any scale. A perfect ranking has 1.0 by `kendall_tau` and `ordered_pair_accuracy`, and 0.0 by
`slowdown`.

    kendall_tau([0.1, 0.9, 0.5], [120, 300, 180])      # 1.0
    slowdown([0.9, 0.1, 0.5], [120, 300, 180], k=1)    # 1.5: the favourite takes 2.5 times as long as the best

Whole nanoseconds are compared as integers, never as floats: float32 makes ties of runtimes that differ. Where scores
tie and one has to be first, it is the configuration that comes first, so that a result depends on its arguments only;
a model that scores everything alike gets the order of the file, which means nothing. NaN is never a score.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from exla.errors import MetricError, MissingExtraError

_DRAWS = 8
"""How often labels are made up again for the noise floor."""
_PAIRS = 2**19
"""How many pairs of configurations are looked at for what noise allows."""


def kendall_tau(scores: ArrayLike, runtimes: ArrayLike) -> float:
    """Kendall's tau-b between scores and runtimes (scipy.stats.kendalltau), the measure of layout collections.

    Args:
      scores: (c,) predicted, lower is faster; infinity is a score, NaN is not.
      runtimes: (c,) int64 or float, positive.

    Returns:
      From -1 to 1. 0.0 if all scores are equal: no pair is ordered. NaN if all runtimes are equal, or there is one
      configuration: there is nothing to order, and an average should leave it out.

    Raises:
      MetricError: for NaN, runtimes that are not positive, or arrays that do not fit.
      MissingExtraError: without scipy.
    """
    try:
        from scipy import stats
    except ImportError as error:
        raise MissingExtraError("Kendall's tau", "scipy", "train") from error

    predicted, measured = (_ranks(x) for x in _checked(scores, runtimes))
    if not measured.any():
        return math.nan
    return float(stats.kendalltau(predicted, measured).statistic) if predicted.any() else 0.0


def ordered_pair_accuracy(scores: ArrayLike, runtimes: ArrayLike) -> float:
    """The share of pairs with different runtimes whose scores are in the same order (OPA).

    A pair whose scores tie counts half, so that constant scores get 0.5, as guessing does. Takes O(c log² c) time and
    O(c) memory.

    Args:
      scores: (c,) predicted, lower is faster.
      runtimes: (c,) int64 or float, positive.

    Returns:
      From 0 to 1; NaN if no two runtimes differ.

    Raises:
      MetricError: for NaN, runtimes that are not positive, or arrays that do not fit.
    """
    predicted, measured = (_ranks(x) for x in _checked(scores, runtimes))
    tied_measured = _tied_pairs(measured)
    pairs = len(measured) * (len(measured) - 1) // 2 - tied_measured
    if pairs == 0:
        return math.nan
    tied_both = _tied_pairs(measured * (int(predicted.max()) + 1) + predicted)
    tied_only_predicted = _tied_pairs(predicted) - tied_both
    wrong = _inversions(predicted[np.lexsort((predicted, measured))])
    return (pairs - wrong - tied_only_predicted / 2) / pairs


def slowdown(scores: ArrayLike, runtimes: ArrayLike, k: int = 1) -> float:
    """How much slower than the best is the best of the k that are predicted to be fastest.

    Args:
      scores: (c,) predicted, lower is faster; of those that tie, the first counts as faster.
      runtimes: (c,) int64 or float, positive.
      k: how many are tried; all if there are fewer.

    Returns:
      Best of the k / best of all - 1: 0.0 if the best is among them, 0.2 for 20 % slower.

    Raises:
      MetricError: for NaN, runtimes that are not positive, arrays that do not fit, or k below 1.
    """
    best_found, best = _best_found(scores, runtimes, [k])
    return float((best_found[0] - best) / best)


def tile_top_k_error(scores: Sequence[ArrayLike], runtimes: Sequence[ArrayLike], k: int = 5) -> float:
    """The mean `slowdown` over kernels, the measure of tile collections.

    Source: Phothilimthana et al., TpuGraphs, NeurIPS 2023 (top-K error); 1 minus it is Kaggle's score of a collection.

    Args:
      scores: for each kernel (c,) predicted, lower is faster.
      runtimes: for each kernel (c,) positive; of TpuGraphs files the `target`, runtime / normalizer.
      k: how many are tried of each.

    Raises:
      MetricError: as for `slowdown`; also if there are no kernels, or not as many of one as of the other.
    """
    if len(scores) != len(runtimes) or len(scores) == 0:
        raise MetricError(f"{len(scores)} kernels have scores and {len(runtimes)} runtimes; give both of each")
    return float(np.mean([slowdown(s, r, k) for s, r in zip(scores, runtimes, strict=True)]))


def share_of_best_by_k(scores: ArrayLike, runtimes: ArrayLike, ks: Sequence[int] | None = None) -> np.ndarray:
    """How much of the best speed is found by trying the k that are predicted to be fastest, as k grows.

    Args:
      scores: (c,) predicted, lower is faster; of those that tie, the first counts as faster.
      runtimes: (c,) int64 or float, positive.
      ks: numbers of tries; None = 1 to c.

    Returns:
      (len(ks),) float64, best of all / best of the k, above 0 and at most 1, which it reaches at c.

    Raises:
      MetricError: for NaN, runtimes that are not positive, arrays that do not fit, or a k below 1.
    """
    best_found, best = _best_found(scores, runtimes, ks)
    return best / best_found


@dataclass(frozen=True, kw_only=True)
class NoiseFloor:
    """How far the same configuration is from itself, and what that leaves to be predicted.

    Attributes:
      num_configs: how many measurements there are.
      num_groups: how many configurations were measured more than once.
      num_repeated: how many measurements are of these.
      median_spread: of these, largest / smallest runtime - 1, the median; None if there are none.
      largest_spread: the largest of them.
      kendall_tau: what a model gets that knows every true runtime, because labels are noisy. Taken for true is the
        geometric mean of a configuration's runtimes; labels are made up from these, each moved by a deviation that a
        repeated configuration has from its mean (bootstrap, fixed seed). It takes noise to be the same share of every
        runtime, and means for true, which makes it too high where noise is most of what differs. None if there are no
        repeats; 0.0 if there is one configuration.
    """

    num_configs: int
    num_groups: int
    num_repeated: int
    median_spread: float | None
    largest_spread: float | None
    kendall_tau: float | None


def noise_floor(configs_group_ids: ArrayLike, runtimes: ArrayLike) -> NoiseFloor:
    """What duplicate configurations say of the noise in the labels.

    Args:
      configs_group_ids: (c,) integers; equal ones are of the same configuration.
      runtimes: (c,) int64 or float, positive.

    Raises:
      MetricError: for NaN, runtimes that are not positive, or arrays that do not fit.
      MissingExtraError: without scipy, if there are repeats.
    """
    ids, measured = _checked(configs_group_ids, runtimes)
    _, group, counts = np.unique(ids, return_inverse=True, return_counts=True)
    group = group.reshape(-1)
    repeated = counts[group] > 1
    num_groups = int((counts > 1).sum())
    if num_groups == 0:
        return NoiseFloor(
            num_configs=len(measured),
            num_groups=0,
            num_repeated=0,
            median_spread=None,
            largest_spread=None,
            kendall_tau=None,
        )
    low, high = np.full(len(counts), np.inf), np.zeros(len(counts))
    np.minimum.at(low, group, measured)
    np.maximum.at(high, group, measured)
    spread = ((high - low) / low)[counts > 1]
    logs = np.log(measured.astype(np.float64))
    true = (np.bincount(group, logs) / counts)[group]
    deviation = np.where(repeated, logs - true, 0.0)
    # A deviation from the mean of k measurements is too small by this factor.
    deviation = (deviation * np.sqrt(counts / np.maximum(counts - 1, 1))[group])[repeated]
    random = np.random.default_rng(0)
    draws = [np.exp(true + random.choice(deviation, len(true))) for _ in range(_DRAWS if len(counts) > 1 else 0)]
    return NoiseFloor(
        num_configs=len(measured),
        num_groups=num_groups,
        num_repeated=int(repeated.sum()),
        median_spread=float(np.median(spread)),
        largest_spread=float(spread.max()),
        kendall_tau=float(np.mean([kendall_tau(true, labels) for labels in draws])) if draws else 0.0,
    )


def tau_allowed(expected: ArrayLike, configs_group_ids: ArrayLike, runtimes: ArrayLike) -> float:
    """The Kendall tau that any ranking can hope for with labels measured once, if `expected` are the true runtimes.

    Two measurements of one configuration differ by the noise of both, and so do those of two configurations, beside
    what truly differs. A pair's likelier order is right with the probability q that a difference of two repeats is less
    than the gap between the two, and the mean of 2 q - 1 over pairs is what no order exceeds but by luck. Unlike
    `noise_floor`, noisy labels are not taken for true; but an estimate of runtimes with errors of its own has gaps that
    are too wide, and the result is then too high.

    Args:
      expected: (k,) estimates of the true runtimes of the configurations that are ranked, positive.
      configs_group_ids: (c,) integers; equal ones are of the same configuration.
      runtimes: (c,) int64 or float, positive: what was measured. Noise is taken to be the same share of every runtime.

    Returns:
      From 0 to 1; pairs are drawn with a fixed seed (standard error below 0.0015). NaN for fewer than two
      configurations, or where none was measured twice.

    Raises:
      MetricError: for NaN, runtimes that are not positive, or arrays that do not fit.
    """
    true = np.log(_checked(expected, expected)[1].astype(np.float64))
    ids, measured = _checked(configs_group_ids, runtimes)
    between, weights = _between_repeats(ids, np.log(measured.astype(np.float64)))
    if len(true) < 2 or len(between) == 0:
        return math.nan
    random = np.random.default_rng(0)
    first = random.integers(0, len(true), _PAIRS)
    second = (first + random.integers(1, len(true), _PAIRS)) % len(true)
    gap = np.abs(true[first] - true[second])
    below = np.concatenate([[0.0], np.cumsum(weights) / weights.sum()])
    q = (below[np.searchsorted(between, gap, "left")] + below[np.searchsorted(between, gap, "right")]) / 2
    return float((2 * q - 1).mean())


def _between_repeats(ids: np.ndarray, logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ascending differences of any two measurements of one configuration, both ways, and weights of each.

    A measurement weighs the same, however many others there are of its configuration.
    """
    _, group = np.unique(ids, return_inverse=True)
    order = np.argsort(group.reshape(-1), kind="stable")
    found, weights = [np.empty(0)], [np.empty(0)]
    for values in np.split(logs[order], np.cumsum(np.bincount(group.reshape(-1)))[:-1]):
        if (k := len(values)) > 1:
            found.append((values[:, None] - values)[~np.eye(k, dtype=bool)])
            weights.append(np.full(k * (k - 1), 1 / (k - 1)))
    differences = np.concatenate(found)
    ascending = np.argsort(differences, kind="stable")
    return differences[ascending], np.concatenate(weights)[ascending]


def _checked(scores: ArrayLike, runtimes: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    predicted, measured = np.asarray(scores), np.asarray(runtimes)
    if predicted.shape != measured.shape or predicted.ndim != 1 or len(predicted) == 0:
        raise MetricError(
            f"scores {predicted.shape} and runtimes {measured.shape}: give one score and one runtime for each "
            "configuration, at least one, in arrays of one axis"
        )
    for name, values in (("score", predicted), ("runtime", measured)):
        if values.dtype.kind not in "biuf":
            raise MetricError(f"{name}s are {values.dtype}; they have to be real numbers")
        if np.isnan(values).any():
            raise MetricError(f"the {name} of configuration {int(np.argmax(np.isnan(values)))} is NaN")
    bad = ~((measured > 0) & np.isfinite(measured))
    if bad.any():
        at = int(np.argmax(bad))
        raise MetricError(
            f"the runtime of configuration {at} is {measured[at]}; a measurement that failed is left out, and those "
            "of test files (0) are withheld"
        )
    return predicted, measured


def _ranks(values: np.ndarray) -> np.ndarray:
    """Dense ranks from 0, equal for equal values."""
    return np.unique(values, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _tied_pairs(values: np.ndarray) -> int:
    counts = np.unique(values, return_counts=True)[1]
    return int((counts * (counts - 1) // 2).sum())


def _inversions(ranks: np.ndarray) -> int:
    """How many pairs i < j have ranks[i] > ranks[j].

    Bit by bit: two ranks that agree above a bit and differ in it are in the wrong order if the one with the bit set
    comes first.
    """
    total = 0
    for bit in range(int(ranks.max()).bit_length()):
        order = np.argsort(ranks >> (bit + 1), kind="stable")
        above = (ranks >> (bit + 1))[order]
        is_set = (ranks >> bit & 1)[order]
        before = np.cumsum(is_set) - is_set
        before -= before[np.searchsorted(above, above)]
        total += int(before[is_set == 0].sum())
    return total


def _best_found(
    scores: ArrayLike, runtimes: ArrayLike, ks: Sequence[int] | None
) -> tuple[np.ndarray, np.integer | np.floating]:
    predicted, measured = _checked(scores, runtimes)
    tries = np.arange(1, len(measured) + 1) if ks is None else np.asarray(ks)
    if tries.dtype.kind not in "iu" or (tries < 1).any():
        raise MetricError(f"k is {ks}; it has to be a whole number, at least 1")
    best = np.minimum.accumulate(measured[np.argsort(predicted, kind="stable")])
    return best[np.minimum(tries, len(best)) - 1], measured.min()
