"""One split made wherever a program holds the like: networks whose layers are written out."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from exla.ir.emit import emit
from exla.passes.unless import EXPANSIONS
from exla.search.repeated import repeated
from tests.search.test_space import space_of

GENERATOR = np.random.default_rng(0)
LAYERS, POINTS, WIDTH = 4, 120, 4
WEIGHTS = [GENERATOR.standard_normal((WIDTH, WIDTH), dtype=np.float32) / 3 for _ in range(LAYERS)]
X = GENERATOR.standard_normal((POINTS, WIDTH), dtype=np.float32)
PAIRS = POINTS * POINTS * WIDTH * 4


def layers(weights, x):
    """What is sorted is wanted whole, so that no loop goes on into the next layer along the pairs' second axis."""
    for w in weights:
        q = jnp.sort(x, axis=0) @ w
        x = x + jnp.sum(jnp.tanh(q[:, None] - x[None]), axis=1) / POINTS
    return x


def gradient(weights, x):
    return jax.grad(lambda weights: jnp.sum(layers(weights, x) ** 2))(weights)


def kinds(candidate):
    """What a candidate's splits cut, but for where that is."""
    return {(d.site.fingerprint, d.result, d.axis, d.growth, d.chunk) for d in candidate.splits}


@pytest.fixture
def made():
    return space_of(gradient, WEIGHTS, X, room=PAIRS, barred=lambda seed: seed.decision.axis != 1)


@pytest.fixture
def once(made):
    """One layer cut along the second axis of its pairs."""
    return made.cut(made.root, next(iter(made.offers(made.root))), 16)


def test_every_layer_is_cut_like_the_first_one(made, once):
    everywhere = repeated(made, once, made.goal)
    is_met = made.is_met(everywhere), made.is_met(once)
    assert is_met == (True, False) and len(everywhere.splits) == LAYERS and len(kinds(everywhere)) == 1
    assert made.build(everywhere.decisions).peak.bytes == everywhere.peak.bytes


def test_the_beam_takes_one_step_for_all_layers(made):
    best = made.ranked(made.root, most_splits=1)[0]
    is_met = made.is_met(best)
    assert is_met and len(best.splits) == LAYERS and len(kinds(best)) == 1


def test_no_more_layers_are_cut_than_have_to_be(made, once):
    """A goal that one layer less is within."""
    everywhere = repeated(made, once, made.goal)
    fewer = made.build(everywhere.decisions[:-1])
    goal = replace(made.goal, bytes=fewer.peak.bytes)
    assert repeated(made, once, goal).decisions == fewer.decisions


def test_a_layer_that_must_not_be_cut_is_passed_over(made, once):
    everywhere = repeated(made, once, made.goal)
    barred = everywhere.seeds[2].split(0)
    made.barred = lambda seed: seed.split(0) == barred
    fewer = repeated(made, once, made.goal)
    is_met = made.is_met(fewer)
    assert not is_met and len(fewer.splits) == LAYERS - 1 and barred not in [s.split(0) for s in fewer.seeds]


def test_nothing_is_like_an_argument():
    space = space_of(layers, WEIGHTS, X, room=PAIRS // 4)
    once = next(
        space.cut(space.root, s, 16)
        for s in space.offers(space.root)
        if s.decision.site.position < 0 and s.region.size > 16
    )
    assert repeated(space, once, space.goal) is once


@pytest.mark.parametrize("fn", [layers, gradient])
def test_what_is_cut_alike_has_the_values_of_the_program(fn):
    made = space_of(fn, WEIGHTS, X, room=PAIRS // 4 if fn is layers else PAIRS, barred=lambda s: s.decision.axis != 1)
    best = made.ranked(made.root)[0]
    assert len(best.splits) >= LAYERS
    got = jax.jit(emit(best.program, EXPANSIONS))(*best.program.consts, *WEIGHTS, X)
    with jax.enable_x64(True):
        wants = jax.tree.leaves(fn([w.astype(np.float64) for w in WEIGHTS], X.astype(np.float64)))
    for found, want in zip(got, wants, strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5 * np.abs(want).max())


def test_an_equation_with_fewer_results_is_not_like_one_with_more():
    """Found with random programs: a sort of two arrays, of which the second is cut, and one of a single array."""

    def largest(x, y):
        order = jax.lax.sort((x, y), dimension=1, num_keys=1)[1]
        return jnp.max(order, axis=0), jnp.max(jnp.sort(y, axis=1), axis=0)

    x, y = (GENERATOR.standard_normal((POINTS, 40), dtype=np.float32) for _ in range(2))
    made = space_of(largest, x, y, room=2000)
    seeds = [seed for seed in made.offers(made.root) if seed.decision.result == 1]
    assert seeds
    for seed in seeds:
        assert repeated(made, made.cut(made.root, seed, 8), replace(made.goal, bytes=1))
