"""Sums over many chunks: no less accurate than one sum, however many they are and wherever the sum is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from exla.ir import sums
from exla.ir.emit import emit
from exla.ir.memory import Held
from exla.ir.program import canonical
from exla.passes.split.apply import split_program
from exla.passes.split.combine import MANY
from exla.passes.split.decide import enumerate_splits, growths
from exla.passes.unless import EXPANSIONS

ROWS = 20_011
TIMES = (np.random.default_rng(0).normal(size=ROWS) + 1000).astype(np.float32)
WEIGHTS = np.arange(1, 4).astype(np.float32) / 7


def scanned(rows, w):
    def step(total, v):
        return total + jnp.sum(rows * v, axis=0), jnp.sum(rows, axis=0) * v

    return jax.lax.scan(step, 0 * w, w)


SUMS = {
    "sum": lambda t, w: jnp.sum(t[:, None] * w, axis=0),
    "contraction": lambda t, w: (t[:, None] * w).T @ (t[:, None] + w),
    "complex": lambda t, w: jnp.sum(t[:, None] * (w + 2j), axis=0),
    "cumulative": lambda t, w: jnp.cumsum(t[:, None] * w, axis=0)[-5:],
    "cumulative_from_the_end": lambda t, w: jax.lax.cumsum(t[:, None] * w, reverse=True)[:5],
    "in_a_loop_from_the_end": lambda t, w: jnp.sum(jax.lax.cumsum(t[:, None] * w, reverse=True) * w, axis=0),
    "carried_by_a_scan": lambda t, w: scanned(t[:, None] * w, w)[0],
    "on_every_turn_of_a_scan": lambda t, w: scanned(t[:, None] * w, w)[1],
    "of_exponentials": lambda t, w: jnp.sum(jax.nn.softmax(t[:, None] * w / 100, axis=0) * t[:, None], axis=0),
    "of_squares": lambda t, w: jnp.var(t[:, None] * w, axis=0),
    "of_squares_that_drift": lambda t, w: jnp.var((t[:, None] + jnp.arange(len(t))[:, None] / 1000) * w, axis=0),
}


def splits_of(fn, chunks):
    """The programs in which the rows are cut, in every way."""
    program = canonical(jax.make_jaxpr(fn)(TIMES, WEIGHTS))
    held = [Held(program=program, path=(), var=v, bytes=1) for e in program.eqns for v in e.outvars]
    seeds = enumerate_splits(program, held, growths((1,)), values=100)
    regions = [s.region for s in seeds if s.region.size == ROWS]
    assert regions
    return [split_program(r, max(chunk, r.least_chunk)) for r in regions for chunk in chunks]


@pytest.mark.parametrize("name", SUMS)
def test_many_chunks_are_summed_as_accurately_as_few(name):
    fn = SUMS[name]
    with jax.enable_x64(True):
        expected = np.asarray(fn(jnp.asarray(TIMES, float), jnp.asarray(WEIGHTS, float)))
    for program in splits_of(fn, (1, 7)):
        (got,) = jax.jit(emit(program, EXPANSIONS))(TIMES, WEIGHTS)
        np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.parametrize(("first", "last"), [(np.inf, 1), (1, np.inf), (np.inf, -np.inf), (np.nan, 1), (3e38, 3e38)])
def test_infinities_and_nans_come_out_of_many_chunks(first, last):
    def fn(t, w):
        return jnp.sum(t[:, None] * w, axis=0)

    t = TIMES.copy()
    t[0], t[-1] = first, last
    t[1] = 3e38 if first == 3e38 else 1
    for program in splits_of(fn, (1, 7)):
        (got,) = jax.jit(emit(program, EXPANSIONS))(t, WEIGHTS * 7)
        np.testing.assert_array_equal(got, fn(t, WEIGHTS * 7))


@pytest.mark.parametrize("name", ["sum", "carried_by_a_scan", "on_every_turn_of_a_scan"])
def test_what_a_sum_loses_is_kept_for_many_chunks_alone(name):
    def state_of(chunk):
        (program,) = splits_of(SUMS[name], (chunk,))[:1]
        (loop,) = (e.params["loop"] for e in program.eqns if e.primitive.name == "exla_split")
        return [output.kept for output in loop.outputs]

    few = -(-ROWS // MANY)
    assert (state_of(few), state_of(few - 20)) == ([1], [2])


def test_an_addition_loses_nothing():
    big, small = np.float32(2**24), np.ones(1000, np.float32)

    def fn(more):
        return jax.lax.fori_loop(0, 1000, lambda i, s: sums.add(*s, more[i]), (big, np.float32(0)))

    total, lost = jax.jit(fn)(small)
    assert float(total) + float(lost) == 2**24 + 1000
