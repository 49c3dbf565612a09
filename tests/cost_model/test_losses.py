"""Losses by hand, in numpy, and where they must not look."""

import itertools

import jax
import numpy as np
import pytest

from exla.cost_model.losses import LOSSES

SCORES = np.array([[0.2, 1.7, -0.3, 0.4]], np.float32)
RANK = np.array([[0.0, 1.0, 0.5, 0.5]], np.float32)
DELAY = np.array([[0.0, 2.5, 0.75, 0.75]], np.float32)
REAL = np.ones((1, 4), bool)


def hinge(scores, rank, delay):
    pairs = [(i, j) for i, j in itertools.permutations(range(len(rank)), 2) if rank[i] > rank[j]]
    return np.mean([max(0, 1 - (scores[i] - scores[j])) for i, j in pairs])


def list_mle(scores, rank, delay):
    order = np.argsort(rank, kind="stable")
    terms = [np.log(np.exp(-scores[order[k:]]).sum()) + scores[order[k]] for k in range(len(rank))]
    return np.mean(terms)


def mse(scores, rank, delay):
    return np.mean((scores - rank) ** 2)


def huber(scores, rank, delay):
    off = scores - delay
    off = np.abs(off - off.mean())
    return np.mean(np.where(off < 1, off**2 / 2, off - 0.5))


def expected_delay(scores, rank, delay):
    drawn = np.exp(-8 * (scores - scores.min()))
    return (drawn * np.minimum(delay, 3)).sum() / drawn.sum()


BY_HAND = {
    "pairwise_hinge": hinge,
    "list_mle": list_mle,
    "rank_mse": mse,
    "delay_huber": huber,
    "expected_delay": expected_delay,
}
each_loss = pytest.mark.parametrize("name", list(LOSSES))


@each_loss
def test_the_value_is_the_one_computed_by_hand(name):
    by_hand = BY_HAND[name](SCORES[0], RANK[0], DELAY[0])
    np.testing.assert_allclose(LOSSES.get(name)(SCORES, RANK, DELAY, REAL), by_hand, rtol=1e-5)


def test_hinge_of_a_case_on_paper():
    scores, rank = np.array([[0.0, 0.5]], np.float32), np.array([[0.0, 1.0]], np.float32)
    assert LOSSES.get("pairwise_hinge")(scores, rank, 2 * rank, np.ones((1, 2), bool)) == 0.5
    assert LOSSES.get("pairwise_hinge")(scores[:, ::-1], rank, 2 * rank, np.ones((1, 2), bool)) == 1.5


@each_loss
def test_what_is_masked_changes_neither_value_nor_gradient(name):
    mask = np.array([[True, True, True, False], [False] * 4])
    for garbage in (0.0, 1e30, -1e30):
        scores = np.array([[0.2, 1.7, -0.3, garbage], [garbage] * 4], np.float32)
        rank = np.array([[0.0, 1.0, 0.5, 0.7], [0, 0, 0, 0]], np.float32)
        delay = np.array([[0.0, 2.5, 0.75, 3.0], [0, 0, 0, 0]], np.float32)
        value, gradient = jax.jit(jax.value_and_grad(LOSSES.get(name)))(scores, rank, delay, mask)
        np.testing.assert_allclose(value, BY_HAND[name](SCORES[0, :3], RANK[0, :3], DELAY[0, :3]), rtol=1e-5)
        assert np.isfinite(gradient).all() and not gradient[~mask].any()


@each_loss
def test_the_mean_is_over_programs(name):
    scores, rank = np.concatenate([SCORES, -SCORES]), np.concatenate([RANK, RANK])
    delay = np.concatenate([DELAY, 2 * DELAY])
    each = [LOSSES.get(name)(*(x[None] for x in one), REAL) for one in zip(scores, rank, delay, strict=True)]
    np.testing.assert_allclose(LOSSES.get(name)(scores, rank, delay, np.ones((2, 4), bool)), np.mean(each), rtol=1e-6)


@each_loss
def test_the_gradient_pulls_the_fastest_down_and_the_slowest_up(name):
    gradient = jax.jit(jax.grad(LOSSES.get(name)))(np.full((1, 4), 0.5, np.float32), RANK, DELAY, REAL)
    assert gradient[0, 0] > 0 > gradient[0, 1]


def test_the_expected_delay_is_that_of_the_first_pick_where_scores_are_far_apart_and_has_a_bound():
    apart = np.array([[9.0, 0.0, 4.0, 6.0]], np.float32)
    expected = LOSSES.get("expected_delay")
    np.testing.assert_allclose(expected(apart, RANK, DELAY, REAL), DELAY[0, 1], rtol=1e-6)
    np.testing.assert_allclose(expected(apart, RANK, 10 * DELAY, REAL), 3.0, rtol=1e-6)
