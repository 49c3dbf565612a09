"""Metrics of rankings against cases by hand, scipy, and all pairs one by one."""

import builtins
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kendalltau

from exla.cost_model.metrics import (
    kendall_tau,
    noise_floor,
    ordered_pair_accuracy,
    share_of_best_by_k,
    slowdown,
    tau_allowed,
    tile_top_k_error,
)
from exla.errors import MetricError, MissingExtraError

SCORES, RUNTIMES = [0.9, 0.1, 0.5, 0.4], [120, 300, 180, 200]  # by score: 300, 200, 180, 120
few = st.integers(0, 5)
rankings = st.lists(st.tuples(few, few.map(lambda x: x + 1)), min_size=1, max_size=14)


def by_hand(scores, runtimes):
    """OPA, pair by pair."""
    pairs = [(a, b) for a, b in itertools.combinations(range(len(scores)), 2) if runtimes[a] != runtimes[b]]
    right = sum(
        0.5 if scores[a] == scores[b] else (scores[a] < scores[b]) == (runtimes[a] < runtimes[b]) for a, b in pairs
    )
    return right / len(pairs) if pairs else math.nan


def test_cases_by_hand():
    assert kendall_tau([0.1, 0.9, 0.5], [120, 300, 180]) == 1.0
    assert kendall_tau(SCORES, RUNTIMES) == pytest.approx(-1.0)
    assert kendall_tau([1, 2, 3, 4], [10, 30, 20, 40]) == pytest.approx(4 / 6)
    assert ordered_pair_accuracy([1, 2, 3, 4], [10, 30, 20, 40]) == 5 / 6
    assert ordered_pair_accuracy([1, 1, 3, 4], [10, 30, 20, 40]) == 4.5 / 6
    assert ordered_pair_accuracy([1, 2, 3], [10, 10, 5]) == 0.0
    assert [slowdown(SCORES, RUNTIMES, k) for k in (1, 2, 3, 4, 9)] == pytest.approx([1.5, 2 / 3, 0.5, 0.0, 0.0])
    assert share_of_best_by_k(SCORES, RUNTIMES).tolist() == [120 / 300, 120 / 200, 120 / 180, 1.0]
    assert share_of_best_by_k(SCORES, RUNTIMES, [2, 10]).tolist() == [0.6, 1.0]
    assert tile_top_k_error([SCORES, [0, 1]], [RUNTIMES, [3, 2]], k=1) == pytest.approx((1.5 + 0.5) / 2)
    assert tile_top_k_error([SCORES, [0, 1]], [RUNTIMES, [3, 2]]) == 0.0


@settings(max_examples=80, deadline=None)
@given(rankings)
def test_tau_is_that_of_scipy_and_opa_that_of_all_pairs(pairs):
    scores, runtimes = (list(x) for x in zip(*pairs, strict=True))
    assert ordered_pair_accuracy(scores, runtimes) == pytest.approx(by_hand(scores, runtimes), nan_ok=True)
    if len(set(runtimes)) > 1 and len(set(scores)) > 1:
        assert kendall_tau(scores, runtimes) == pytest.approx(kendalltau(scores, runtimes).statistic)


@settings(max_examples=50, deadline=None)
@given(rankings, st.integers(1, 16))
def test_slowdown_and_the_share_of_the_best_are_two_views_of_one_search(pairs, k):
    scores, runtimes = (list(x) for x in zip(*pairs, strict=True))
    first = sorted(range(len(scores)), key=lambda i: (scores[i], i))[:k]
    expected = min(runtimes[i] for i in first) / min(runtimes) - 1
    assert slowdown(scores, runtimes, k) == pytest.approx(expected)
    curve = share_of_best_by_k(scores, runtimes)
    assert 1 / (1 + slowdown(scores, runtimes, k)) == pytest.approx(curve[min(k, len(curve)) - 1])
    assert (np.diff(curve) >= 0).all() and curve[-1] == 1.0


def test_a_ranking_and_its_reverse_add_up():
    random = np.random.default_rng(0)
    scores, runtimes = random.normal(size=300), random.integers(1, 200, 300)
    assert kendall_tau(-scores, runtimes) == pytest.approx(-kendall_tau(scores, runtimes))
    assert ordered_pair_accuracy(-scores, runtimes) == pytest.approx(1 - ordered_pair_accuracy(scores, runtimes))


def test_a_whole_file_of_configurations_needs_no_matrix_of_pairs(monkeypatch):
    random = np.random.default_rng(0)
    scores, runtimes = random.integers(0, 9_000, 24_000), random.integers(10**8, 10**9, 24_000)
    largest = [0]
    original = np.argsort

    def watched(values, **options):
        largest[0] = max(largest[0], np.size(values))
        return original(values, **options)

    monkeypatch.setattr(np, "argsort", watched)
    found = ordered_pair_accuracy(scores, runtimes)
    assert largest[0] == 24_000
    pairs = 24_000 * 23_999 // 2
    tied = sum(n * (n - 1) // 2 for n in np.unique(scores, return_counts=True)[1].tolist())
    tau = kendall_tau(scores, runtimes)
    assert found == pytest.approx((tau * math.sqrt((pairs - tied) * pairs) / pairs + 1) / 2, abs=1e-6)


def test_runtimes_that_float32_and_float64_would_tie_are_ordered():
    runtimes = np.array([2**60 + 1, 2**60, 2**60 + 2])
    scores = [1, 0, 2]
    assert kendall_tau(scores, runtimes) == pytest.approx(1.0)
    assert ordered_pair_accuracy(scores, runtimes) == 1.0
    assert ordered_pair_accuracy(scores, runtimes.astype(np.float32)) != 1.0
    assert slowdown([1, 0, 2], runtimes, 1) == 0.0 < slowdown([0, 1, 2], runtimes, 1)


def test_constant_scores_order_nothing():
    assert kendall_tau([3.0] * 4, RUNTIMES) == 0.0
    assert ordered_pair_accuracy([3.0] * 4, RUNTIMES) == 0.5
    assert slowdown([3.0] * 4, RUNTIMES, 1) == 0.0, "the file's order decides, here the best is first"
    assert slowdown([3.0] * 4, RUNTIMES[::-1], 1) == pytest.approx(200 / 120 - 1)


@pytest.mark.parametrize("runtimes", [[7], [7, 7, 7]], ids=["one", "equal"])
def test_where_there_is_nothing_to_order_there_is_no_tau(runtimes):
    scores = list(range(len(runtimes)))
    assert math.isnan(kendall_tau(scores, runtimes)) and math.isnan(ordered_pair_accuracy(scores, runtimes))
    assert slowdown(scores, runtimes, 1) == 0.0 and share_of_best_by_k(scores, runtimes).tolist() == [1.0] * len(
        runtimes
    )


def test_infinity_is_a_score():
    assert kendall_tau([0.0, math.inf, -math.inf], [2, 3, 1]) == 1.0
    assert ordered_pair_accuracy([0.0, math.inf, -math.inf], [2, 3, 1]) == 1.0


WRONG = {
    "NaN score": ([0.1, math.nan], [1, 2], "score of configuration 1 is NaN"),
    "NaN runtime": ([0.1, 0.2], [math.nan, 2.0], "runtime of configuration 0 is NaN"),
    "placeholder": ([0.1, 0.2], [1, 0], "runtime of configuration 1 is 0; .*withheld"),
    "negative": ([0.1, 0.2], [-1.0, 1.0], "runtime of configuration 0 is -1.0"),
    "infinite": ([0.1, 0.2], [math.inf, 1.0], "runtime of configuration 0 is inf"),
    "lengths": ([0.1], [1, 2], r"scores \(1,\) and runtimes \(2,\)"),
    "axes": ([[0.1]], [[1]], "arrays of one axis"),
    "nothing": ([], [], "at least one"),
    "words": (["a"], [1], "scores are <U1"),
}


@pytest.mark.parametrize("metric", [kendall_tau, ordered_pair_accuracy, slowdown, share_of_best_by_k])
@pytest.mark.parametrize("scores, runtimes, message", WRONG.values(), ids=WRONG)
def test_what_is_no_ranking_is_an_error(metric, scores, runtimes, message):
    with pytest.raises(MetricError, match=message):
        metric(scores, runtimes)


def test_k_is_a_number_of_tries():
    for k in (0, -1, 0.5):
        with pytest.raises(MetricError, match="at least 1"):
            slowdown(SCORES, RUNTIMES, k)
    with pytest.raises(MetricError, match="1 kernels have scores and 2 runtimes"):
        tile_top_k_error([SCORES], [RUNTIMES, RUNTIMES])
    with pytest.raises(MetricError, match="0 kernels"):
        tile_top_k_error([], [])


def test_the_noise_floor_by_hand():
    found = noise_floor([5, 5, 7, 7, 7, 9], [100, 110, 200, 200, 300, 400])
    assert (found.num_configs, found.num_groups, found.num_repeated) == (6, 2, 5)
    assert found.median_spread == pytest.approx(0.3) and found.largest_spread == 0.5


def test_noise_that_changes_no_order_leaves_all_to_be_predicted():
    assert noise_floor([0, 0, 1, 2, 3], [100, 101, 200, 400, 800]).kendall_tau == pytest.approx(1.0, abs=0.1)
    assert noise_floor([0, 0, 1, 2], [5, 5, 7, 9]).kendall_tau == pytest.approx(5 / math.sqrt(5 * 5))


def test_noise_as_large_as_what_differs_leaves_little():
    random = np.random.default_rng(1)
    group = np.repeat(np.arange(300), 2)
    small = random.normal(size=300) * 0.01
    noise = random.normal(size=600)
    floors = [noise_floor(group, np.exp(5 + small[group] + s * noise)).kendall_tau for s in (0.0001, 0.003, 0.3)]
    assert floors[0] > 0.95 and floors[0] > floors[1] > floors[2]


@pytest.mark.parametrize("repeats", [2, 3, 8])
def test_the_floor_is_what_a_model_that_knows_the_truth_gets(repeats):
    random = np.random.default_rng(2)
    group = np.repeat(np.arange(600), repeats)
    true = random.normal(size=600)[group]
    labels = np.exp(10 + true + 0.1 * random.normal(size=len(group)))
    assert noise_floor(group, labels).kendall_tau == pytest.approx(kendall_tau(true, labels), abs=0.008)


def test_without_repeats_nothing_is_known_of_noise():
    found = noise_floor([1, 2, 3], [3, 2, 1])
    assert found.num_groups == 0 and found.kendall_tau is None and found.median_spread is None
    assert noise_floor([1, 1], [3, 2]).kendall_tau == 0.0, "one configuration has no order"


def test_the_floor_is_the_same_every_time():
    arguments = [1, 1, 2, 2, 3], [30, 33, 31, 35, 34]
    assert noise_floor(*arguments) == noise_floor(*arguments)


@pytest.mark.parametrize("size", [0.01, 0.3, 3.0])
@pytest.mark.parametrize("two_modes", [False, True])
def test_what_noise_allows_is_what_a_model_that_knows_the_truth_gets(size, two_modes):
    random = np.random.default_rng(3)
    true = random.normal(size=3000)
    group = np.concatenate([np.arange(3000), random.integers(0, 3000, 1500)])
    noise = random.integers(0, 2, len(group)) + 0.05 * random.normal(size=len(group)) if two_modes else None
    noise = random.normal(size=len(group)) if noise is None else noise
    measured = np.exp(10 + true[group] + size * noise)
    expected = kendall_tau(true, measured[:3000])
    assert tau_allowed(np.exp(true), group, measured) == pytest.approx(expected, abs=0.02)


def test_noise_alone_allows_nothing_though_the_floor_takes_it_for_truth():
    random = np.random.default_rng(4)
    group = np.concatenate([np.arange(3000), np.arange(1000)])
    measured = np.exp(0.1 * random.normal(size=4000))
    assert tau_allowed(np.ones(3000), group, measured) == 0.0
    assert noise_floor(group, measured).kendall_tau > 0.3


def test_what_noise_allows_by_hand():
    # Repeats differ by a factor of 2, up or down: a gap of 1.5 says nothing, one of 4 all, and one of 2 half.
    runtimes, group = [10, 20, 30], [0, 0, 1]
    assert tau_allowed([10, 15], group, runtimes) == 0.0
    assert tau_allowed([10, 40], group, runtimes) == 1.0
    assert tau_allowed([10, 20], group, runtimes) == pytest.approx(0.5)
    # Of 5 measurements with repeats, each as weighty: 4 in 5 differences are less than a factor of 4.
    assert tau_allowed([10, 40], [0, 0, 1, 1, 1], [10, 20, 10, 10, 80]) == pytest.approx(0.6)
    assert math.isnan(tau_allowed([10, 20], [0, 1, 2], runtimes)), "nothing was measured twice"
    assert math.isnan(tau_allowed([10], group, runtimes))
    with pytest.raises(MetricError, match="the runtime of configuration 1 is 0"):
        tau_allowed([10, 0], group, runtimes)


def test_without_scipy_the_extra_is_named(monkeypatch):
    original = builtins.__import__

    def without(name, *arguments, **options):
        if name.split(".")[0] == "scipy":
            raise ImportError(name)
        return original(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r'Kendall\'s tau needs scipy: pip install "exla\[train\]"'):
        kendall_tau(SCORES, RUNTIMES)
    assert ordered_pair_accuracy(SCORES, RUNTIMES) == 0.0
