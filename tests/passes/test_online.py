"""Dependent reductions in one loop: softmax, log-sum-exp, variances, and what only looks like them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import exla
from exla.ir.emit import emit
from exla.ir.memory import Held
from exla.ir.program import canonical
from exla.passes.split.apply import split_program
from exla.passes.split.decide import enumerate_splits, growths
from exla.passes.unless import EXPANSIONS

pytestmark = pytest.mark.usefixtures("compiled_quickly")

GROWTHS = [g for g in growths((1,)) if not g.again]
SCORES = 3 * np.random.default_rng(0).normal(size=(5, 7))
VALUES = np.random.default_rng(1).normal(size=(7, 3))
FUTURE = np.tril(np.ones((5, 7)), 1)[:, ::-1] > 0
INF = np.inf


def set_row(s, value):
    return s.at[2].set(value)


def shifted_by_maximum(s):
    return jnp.exp(s - jnp.max(s, axis=1, keepdims=True))


def about_mean(s):
    return s - jnp.mean(s, axis=1, keepdims=True)


ONLINE = {
    "softmax": lambda s, v: jax.nn.softmax(s) @ v,
    "softmax_of_columns": lambda s, v: jnp.sum(jax.nn.softmax(s, axis=0) * s, axis=0),
    "softmax_where": lambda s, v: jax.nn.softmax(s, where=s > 0) @ v,
    "softmax_of_what_is_masked_first": lambda s, v: jax.nn.softmax(jnp.where(FUTURE, s, -INF)) @ v,
    "softmax_of_a_masked_row": lambda s, v: jax.nn.softmax(set_row(s, -INF)) @ v,
    "softmax_far_from_zero": lambda s, v: jax.nn.softmax(300 * s - 1000) @ v,
    "softmax_of_a_batch": lambda s, v: jax.vmap(lambda a: jax.nn.softmax(a * s) @ (v + a))(jnp.arange(2.0)),
    "softmax_divided_by_a_deviation": lambda s, v: jax.nn.softmax(s) @ v / jnp.std(s, axis=1, keepdims=True),
    "gradient_of_a_softmax": lambda s, v: jax.grad(lambda s: jnp.sum(jax.nn.softmax(s) @ v) ** 2)(s),
    "softmax_and_itself": lambda s, v: (jax.nn.softmax(s) @ v, jax.nn.softmax(s)),
    "logsumexp": lambda s, v: jax.nn.logsumexp(s, axis=1),
    "logsumexp_of_a_masked_row": lambda s, v: jax.nn.logsumexp(set_row(s, -INF), axis=1),
    "logsumexp_with_an_infinity": lambda s, v: jax.nn.logsumexp(s.at[2, 3].set(INF), axis=1),
    "logsumexp_with_a_nan": lambda s, v: jax.nn.logsumexp(s.at[2, 3].set(jnp.nan), axis=1),
    "logsumexp_by_hand": lambda s, v: jnp.log(jnp.sum(shifted_by_maximum(s), axis=1)) + jnp.max(s, axis=1),
    "logsumexp_by_hand_of_a_masked_row": lambda s, v: jnp.sum(shifted_by_maximum(set_row(s, -INF)), axis=1),
    "log_softmax": lambda s, v: jnp.sum(jax.nn.log_softmax(s), axis=1),
    "variance": lambda s, v: jnp.var(s, axis=1),
    "variance_of_an_infinity": lambda s, v: jnp.var(set_row(s, INF), axis=1),
    "deviation_of_columns": lambda s, v: jnp.std(s, axis=0),
    "variance_of_everything": lambda s, v: jnp.var(s),
    "half_precision": lambda s, v: jnp.sum(shifted_by_maximum(s.astype(jnp.bfloat16)), axis=1),  # summed in float32
    "variance_far_from_zero": lambda s, v: jnp.var(s + 1e7, axis=1),
}
NOT_ONLINE = {
    "summed_in_half_precision": lambda s, v: shifted_by_maximum(s.astype(jnp.bfloat16)) @ v.astype(jnp.bfloat16),
    "exponential_about_a_mean": lambda s, v: jnp.sum(jnp.exp(about_mean(s)), axis=1),
    "multiplied_by_a_maximum": lambda s, v: jnp.sum(s * jnp.max(s, axis=1, keepdims=True), axis=1),
    "third_moment": lambda s, v: jnp.sum(about_mean(s) ** 3, axis=1),
    "weighted_squares": lambda s, v: jnp.sum(v[:, 0] * about_mean(s) ** 2, axis=1),
    "squares_about_a_maximum": lambda s, v: jnp.sum((s - jnp.max(s, axis=1, keepdims=True)) ** 2, axis=1),
    "maximum_of_a_softmax": lambda s, v: jnp.max(shifted_by_maximum(s) * v[:, 0], axis=1),
    "exponential_of_the_wrong_sign": lambda s, v: jnp.sum(jnp.exp(jnp.max(s, axis=1, keepdims=True) - s), axis=1),
    "one_plus_the_exponential": lambda s, v: jnp.sum(1 + shifted_by_maximum(s), axis=1),
    "sine_of_the_exponential": lambda s, v: jnp.sum(jnp.sin(shifted_by_maximum(s)), axis=1),
    "about_the_mean_of_others": lambda s, v: jnp.sum((s - jnp.mean(2 * s, axis=1, keepdims=True) - 1) ** 2, axis=1),
    "about_a_sum": lambda s, v: jnp.sum((s - jnp.sum(s, axis=1, keepdims=True)) ** 2, axis=1),
}


def seeds_of(fn, s, v):
    program = canonical(jax.make_jaxpr(fn)(s, v))
    held = [Held(program=program, path=(), var=x, bytes=1) for e in program.eqns for x in e.outvars]
    return program, list(enumerate_splits(program, held, GROWTHS, values=100))


@pytest.mark.parametrize("name", [*ONLINE, *NOT_ONLINE])
def test_any_chunks_give_the_unsplit_values(x64, name):
    fn = {**ONLINE, **NOT_ONLINE}[name]
    s, v = jax.device_put((SCORES, VALUES))
    program, seeds = seeds_of(fn, s, v)
    assert any(seed.region.repairs for seed in seeds) == (name in ONLINE)
    tolerance = {"half_precision": 2e-2, "summed_in_half_precision": 2e-2, "variance_far_from_zero": 1e-7}.get(
        name, 1e-9
    )
    splits = [
        split_program(seed.region, chunk)
        for seed in seeds
        for chunk in sorted({1, 3} & set(range(seed.region.least_chunk, seed.region.size)))
    ]
    expected = jax.tree.leaves(fn(s, v))
    for results in jax.jit(lambda s, v: [emit(p, EXPANSIONS)(*p.consts, s, v) for p in splits])(s, v):
        for a, b in zip(results, expected, strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a.astype(float), b.astype(float), rtol=tolerance, atol=1e-10)


@pytest.mark.parametrize("name", ["softmax", "logsumexp", "variance", "softmax_divided_by_a_deviation"])
def test_one_loop_is_enough(x64, name):
    _, seeds = seeds_of(ONLINE[name], jnp.asarray(SCORES), jnp.asarray(VALUES))
    assert {len(seed.region.levels) for seed in seeds if seed.region.repairs} == {1}
    waiting = [s for s in seeds if s.decision.growth == GROWTHS[0] and s.region.size == 7]
    assert max(len(seed.region.levels) for seed in waiting) > 1


def test_attention_over_many_keys_is_one_loop_when_that_is_predicted_faster():
    def attend(q, k, v):
        return jax.nn.softmax(q @ k.T) @ v

    q, k, v = (0.2 * np.random.default_rng(n).normal(size=(n, 16)).astype(np.float32) for n in (8, 50_000, 50_000))
    f = exla.jit(attend, memory_limit=sum(a.nbytes for a in (q, k, v)) + 2**19)
    plan = f.plan(q, k, v)
    loops = [e.params["loop"] for e in plan.program.eqns if e.primitive.name == "exla_split"]
    assert len(loops) == 1 and loops[0].size == 50_000
    wide = [a.astype(np.float64) for a in (q, k, v)]
    scores = wide[0] @ wide[1].T
    weights = np.exp(scores - scores.max(1, keepdims=True))
    np.testing.assert_allclose(f(q, k, v), weights @ wide[2] / weights.sum(1, keepdims=True), rtol=1e-4, atol=1e-6)


def test_exact_numerics_never_goes_online(x64):
    program, _ = seeds_of(ONLINE["softmax"], jnp.asarray(SCORES), jnp.asarray(VALUES))
    assert not any(g.online for g in growths((1,), exact=True))
    assert program.eqns
