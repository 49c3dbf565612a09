"""Factors that are run through in order: cumulative operations, scans and their gradients, scatters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import exla
from exla.passes.decisions import Split
from tests.zoo.test_zoo import in_float64

pytestmark = pytest.mark.usefixtures("compiled_quickly")

KIB = 1024


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def below(count, *shape, seed=0):
    return np.random.default_rng(seed).integers(0, count, shape)


def running_maximum(x, y):
    return jnp.sum(lax.cummax(jnp.sin(x[:, None] * y), axis=0) * y, axis=0)


def running_sum_of_a_softmax(x, y):
    weights = jax.nn.softmax(x[:, None] * y, axis=0)
    return jnp.max(jnp.cumsum(weights, axis=0) - lax.cumsum(weights, axis=0, reverse=True), axis=1)


def messages(x, senders, receivers):
    sent = jnp.tanh(x[senders] * x[receivers])
    return jax.ops.segment_sum(sent, receivers, num_segments=x.shape[0])


def extremes(x, senders, receivers):
    sent = jnp.sin(x[senders] + x[receivers])
    return (
        jax.ops.segment_max(sent, receivers, num_segments=x.shape[0]),
        jnp.full(x.shape, 3.0, x.dtype).at[receivers].min(sent),
    )


def histogram(x, y):
    return jnp.zeros(50, jnp.int32).at[(jnp.abs(jnp.sin(x[:, None] * y)) * 49).astype(int)].add(1)


def recurrent_loss(weights, inputs, rows):
    def step(hidden, row):
        hidden = jnp.tanh(hidden @ weights + row @ inputs)
        return hidden, hidden

    _, states = lax.scan(step, jnp.zeros((rows.shape[1], weights.shape[0]), rows.dtype), rows)
    return jnp.mean(states**2)


def filtered(x, y):
    def step(level, row):
        level = level * 0.9 + row
        return level, jnp.sin(level[:, None] * y)

    return jnp.sum(lax.scan(step, jnp.zeros(x.shape[1], x.dtype), x)[1], axis=0)


def smoothed(x):
    """Forwards, then backwards over what came out, as a Kalman smoother goes."""
    forth = lax.scan(lambda c, a: (c * 0.9 + a, c * jnp.cos(a)), jnp.zeros(x.shape[1:], x.dtype), x)[1]
    back = lax.scan(lambda c, a: (c * 0.8 + a, c + jnp.sin(a)), jnp.zeros(x.shape[1:], x.dtype), forth, reverse=True)[1]
    return jnp.sum(back**2, axis=0)


def layers(weights, rows):
    """A stack of layers in a scan, whose weights' gradients are summed over the examples of a batch."""

    def layer(x, w):
        scores = jax.nn.softmax(jnp.einsum("bsd,btd->bst", x @ w[0], x))
        return x + jnp.tanh(scores @ x @ w[1]), jnp.mean(x)

    x, means = lax.scan(layer, rows, weights)
    return jnp.mean(x**2) + jnp.sum(means)


def stacked_recurrences(weights, rows):
    def layer(rows, w):
        def step(h, row):
            h = jnp.tanh(h @ w + row)
            return h, h

        return lax.scan(step, jnp.zeros_like(rows[0]), rows)[1], None

    return jnp.mean(lax.scan(layer, rows, weights)[0] ** 2)


def filters(transition, series):
    """The likelihoods of many series under one linear model, whose covariance they share."""

    def one(ys):
        def step(carry, y):
            mean, covariance = carry
            mean = transition @ mean
            covariance = transition @ covariance @ transition.T + jnp.eye(4, dtype=y.dtype)
            scale, error = covariance[0, 0] + 0.5, y - mean[0]
            gain = covariance[:, 0] / scale
            updated = mean + gain * error, covariance - jnp.outer(gain, covariance[0])
            return updated, jnp.log(scale) + error**2 / scale

        first = jnp.zeros(4, ys.dtype), jnp.eye(4, dtype=ys.dtype)
        return jnp.sum(lax.scan(step, first, ys)[1])

    return jnp.mean(jax.vmap(one)(series))


EDGES = (normal(300, 16), below(300, 20_000), below(300, 20_000, seed=1))


def walks(starts, x):
    """Each step computes so much of one shape that nothing else is among what is held at its peak."""

    def walk(w):
        def step(w, _):
            return w * (1 + 1e-3 * jnp.mean(jax.nn.softplus(x @ w))), None

        return lax.scan(step, w, length=5)[0].mean()

    return jax.vmap(walk)(starts)


CASES = {
    "running_maximum": (running_maximum, (normal(3000), normal(100, seed=1))),
    "running_sum_of_a_softmax": (running_sum_of_a_softmax, (normal(3001), normal(100, seed=1))),
    "messages": (messages, EDGES),
    "gradient_of_messages": (jax.grad(lambda x, s, r: jnp.sum(messages(x, s, r) ** 2)), EDGES),
    "extremes": (extremes, EDGES),
    "histogram": (histogram, (normal(3000), normal(100, seed=1))),
    "gradient_of_a_recurrent_loss": (
        jax.grad(recurrent_loss, argnums=(0, 1)),
        (0.1 * normal(32, 32), normal(4, 32, seed=1), normal(1003, 8, 4, seed=2)),
    ),
    "gradient_of_layers": (jax.value_and_grad(layers), (0.1 * normal(5, 2, 16, 16), normal(24, 40, 16, seed=1))),
    "gradient_of_stacked_recurrences": (
        jax.grad(stacked_recurrences, argnums=(0, 1)),
        (0.2 * normal(3, 16, 16), normal(30, 256, 16, seed=1)),
    ),
    "gradient_of_filters": (jax.value_and_grad(filters), (0.3 * normal(4, 4), normal(2000, 40, seed=1))),
    "walks": (walks, (normal(3000, 16), normal(100, 16, seed=1))),
    "filtered": (filtered, (normal(1000, 20), normal(40, seed=1))),
    "smoothed": (smoothed, (normal(9000, 20),)),
}
EXACT = ("messages", "extremes", "histogram")
"""Those whose chunks go on in the order of the whole, in the operations of the whole: equal bit for bit."""


def temporaries(fn, arguments):
    stats = jax.jit(fn).lower(*arguments).compile().memory_analysis()
    return stats.temp_size_in_bytes, stats.argument_size_in_bytes + stats.output_size_in_bytes


@pytest.mark.parametrize("name", CASES)
def test_a_tenth_of_the_temporaries_is_enough(name):
    fn, arguments = CASES[name]
    arguments = tuple(map(jnp.asarray, arguments))
    whole, fixed = temporaries(fn, arguments)
    f = exla.jit(fn, memory_limit=fixed + max(whole // 10, 64 * KIB))
    plan = f.plan(*arguments)
    assert any(isinstance(d, Split) for d in plan.decisions)
    got, plain = f(*arguments), jax.jit(fn)(*arguments)
    if name in EXACT:
        jax.tree.map(np.testing.assert_array_equal, got, plain)
    want = plain if name == "histogram" else in_float64(fn, arguments)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4 * np.max(np.abs(b)))


def test_random_bits_and_keys_of_every_example_stay_what_they_are():
    """Chains that each draw from keys of their own, and dropout in the layers of a scan."""

    def chain(key, x):
        def step(carry, _):
            x, key = carry
            key, mine = jax.random.split(key)
            x = 0.9 * x + jax.random.normal(mine, x.shape)
            return (x, key), x

        return lax.scan(step, (x, key), None, length=20)[1]

    def fn(key, x, w):
        draws, drops = jax.random.split(key)
        ends = jax.vmap(chain)(jax.random.split(draws, len(x)), x)

        def layer(x, key):
            return jnp.where(jax.random.bernoulli(key, 0.9, x.shape), jnp.tanh(x @ w), 0.0), None

        return jnp.max(ends, axis=0), jnp.sum(lax.scan(layer, x, jax.random.split(drops, 6))[0] ** 2, axis=1)

    arguments = (jax.random.key(3), jnp.asarray(normal(2000, 30)), jnp.asarray(normal(30, 30, seed=1)))
    whole, fixed = temporaries(fn, arguments)
    f = exla.jit(fn, memory_limit=fixed + whole // 10)
    assert any(isinstance(d, Split) for d in f.plan(*arguments).decisions)
    for a, b in zip(f(*arguments), jax.jit(fn)(*arguments), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_a_counter_stays_weakly_typed_where_a_scan_is_cut():
    def fn(x):
        def step(carry, _):
            x, count = carry
            y = jnp.sin(x * 1.1)
            return (y, count + 1), y

        (x, count), rows = lax.scan(step, (x, 0), None, length=50)
        return count, jnp.var(rows, axis=0)

    x = jnp.ones((4096, 8))
    whole, fixed = temporaries(fn, (x,))
    f = exla.jit(fn, memory_limit=fixed + whole // 4)
    assert not f.plan(x).untouched
    assert [r.weak_type for r in f(x)] == [r.weak_type for r in jax.jit(fn)(x)] == [True, False]


def test_the_backward_pass_restarts_the_forward_pass_from_saved_states():
    fn, arguments = CASES["gradient_of_a_recurrent_loss"]
    whole, fixed = temporaries(fn, arguments)
    plan = exla.jit(fn, memory_limit=fixed + whole // 10).plan(*arguments)
    loops = [e.params["loop"] for e in plan.program.eqns if e.primitive.name == "exla_split"]
    assert [loop.reverse for loop in loops] == [False, True]
    assert loops[0].carries[0].saved == loops[0].trips + (loops[0].tail is not None)
    assert sum(e.primitive.name == "scan" for e in loops[1].body.eqns) == 2
