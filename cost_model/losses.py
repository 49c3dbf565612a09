"""Losses that train a model to rank: from scores and places of candidates of one program to one number.

A score is lower for what is predicted to be faster; a place is 0 for the fastest and 1 for the slowest, and a delay
is log2 of how many times the fastest's time it takes (`cost_model/batch.py`). All take scores, places and delays of
shape (g, c) with a mask of what is real, and return the mean over programs that have something to rank.
"""

from __future__ import annotations

from typing import Protocol

import jax
import jax.numpy as jnp
import optax

from exla.registry import Registry


class Loss(Protocol):
    def __call__(self, scores: jax.Array, rank: jax.Array, delay: jax.Array, mask: jax.Array) -> jax.Array: ...


LOSSES: Registry[Loss] = Registry("loss")
MARGIN = 1.0
BEND = 1.0
SHARP = 8.0
"""How much a difference of one in scores counts in `expected_delay`: an eighth of an octave is told apart."""
MOST_DELAY = 3.0
"""Delays count as no more than this in `expected_delay`: what is eight times slower is as bad as it gets."""


@LOSSES.register("pairwise_hinge")
def pairwise_hinge(scores: jax.Array, rank: jax.Array, delay: jax.Array, mask: jax.Array) -> jax.Array:
    """Mean over pairs of different places of max(0, 1 - (score of the slower - score of the faster))."""
    difference = scores[:, :, None] - scores[:, None, :]
    slower = (rank[:, :, None] > rank[:, None, :]) & mask[:, :, None] & mask[:, None, :]
    hinge = jnp.where(slower, jax.nn.relu(MARGIN - difference), 0).sum((1, 2))
    pairs = slower.sum((1, 2))
    return _mean_over_programs(hinge / jnp.maximum(pairs, 1), pairs > 0)


@LOSSES.register("list_mle")
def list_mle(scores: jax.Array, rank: jax.Array, delay: jax.Array, mask: jax.Array) -> jax.Array:
    """Negative log likelihood of the true order, fastest first, under Plackett and Luce, for each candidate.

    Source: Xia et al., "Listwise approach to learning to rank", 2008. Ties are taken in the order given.
    """
    order = jnp.argsort(jnp.where(mask, rank, jnp.inf), axis=1, stable=True)
    utility = jnp.where(jnp.take_along_axis(mask, order, 1), -jnp.take_along_axis(scores, order, 1), -jnp.inf)
    later = jax.lax.cumlogsumexp(utility, axis=1, reverse=True)
    terms = jnp.where(jnp.isfinite(utility), later - utility, 0)
    count = mask.sum(1)
    return _mean_over_programs(terms.sum(1) / jnp.maximum(count, 1), count > 1)


@LOSSES.register("rank_mse")
def rank_mse(scores: jax.Array, rank: jax.Array, delay: jax.Array, mask: jax.Array) -> jax.Array:
    """Mean of (score - place)²."""
    count = mask.sum(1)
    total = jnp.where(mask, (scores - rank) ** 2, 0).sum(1)
    return _mean_over_programs(total / jnp.maximum(count, 1), count > 1)


@LOSSES.register("delay_huber")
def delay_huber(scores: jax.Array, rank: jax.Array, delay: jax.Array, mask: jax.Array) -> jax.Array:
    """How far scores are from delays, but for what all candidates of a program are off by: squares up to `BEND`.

    Scores become logarithms of times. What is within the noise of a measurement costs next to nothing, which the order
    of two such candidates does in the other losses.

    Source: Huber, "Robust estimation of a location parameter", 1964.
    """
    count = mask.sum(1)
    off = jnp.where(mask, scores - delay, 0)
    off = jnp.where(mask, off - (off.sum(1) / jnp.maximum(count, 1))[:, None], 0)
    total = optax.losses.huber_loss(off, delta=BEND).sum(1)
    return _mean_over_programs(total / jnp.maximum(count, 1), count > 1)


@LOSSES.register("expected_delay")
def expected_delay(scores: jax.Array, rank: jax.Array, delay: jax.Array, mask: jax.Array) -> jax.Array:
    """The mean delay of a candidate that is drawn with probabilities softmax(-SHARP score): a smooth first pick.

    Only what is near the first place counts; how the slow ones are ordered costs nothing.

    Source: the top-one probabilities of Cao et al., "Learning to rank: from pairwise approach to listwise approach",
    2007, with the delay itself for their cross entropy.
    """
    drawn = jax.nn.softmax(-SHARP * jnp.where(mask, scores, 0), axis=1, where=mask)
    total = jnp.where(mask, drawn * jnp.minimum(delay, MOST_DELAY), 0).sum(1)
    return _mean_over_programs(total, mask.sum(1) > 1)


def _mean_over_programs(values: jax.Array, real: jax.Array) -> jax.Array:
    return jnp.where(real, values, 0).sum() / jnp.maximum(real.sum(), 1)
