"""Of a value that is read in one place, known when the program runs, that place alone is computed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import exla
from exla.errors import ReplayMiss
from exla.ir.emit import emit
from exla.ir.memory import Held
from exla.ir.program import canonical
from exla.passes.decisions import Sink
from exla.passes.sink import apply_sink, enumerate_sinks
from exla.passes.unless import EXPANSIONS

pytestmark = pytest.mark.usefixtures("compiled_quickly")

N = 40


def distances(x):
    return jnp.sqrt(jnp.sum((x[:, None] - x[None]) ** 2, axis=-1) + 1e-3)


def products(x):
    return jnp.exp(jnp.sin(x) @ jnp.cos(x).T / 8)


READS = {
    "a row": lambda k, i: k[i],
    "a column": lambda k, i: k[:, i],
    "one number": lambda k, i: k[i, N - 1 - i],
    "one number by its place in all": lambda k, i: k.ravel()[i * N + 3],
    "one number of another shape": lambda k, i: k.reshape(5, N, N // 5)[i % 5, i, i % 8],
    "one number of many axes": lambda k, i: k.reshape(2, 4, 5, 8, 5)[i % 2, 3, i % 5, -1, 2],
    "some rows": lambda k, i: jax.lax.dynamic_slice(k, (i, 0), (3, N)),
    "a corner": lambda k, i: jax.lax.dynamic_slice(k, (i, i), (3, 5)),
    "a row of what is transposed": lambda k, i: k.T[i],
}


def sunk(fn, *args):
    """A program with every part computed where it is read, and how many there were."""
    program, count = canonical(jax.make_jaxpr(fn)(*args)), 0
    while True:
        big = [v for eqn in program.eqns for v in eqn.outvars if v.aval.size >= N * N]
        held = [Held(program=program, path=(), var=v, bytes=1 << 40) for v in big]
        sink = next(enumerate_sinks(held, small_bytes=8 * N * N // 5), None)
        if sink is None:
            return program, count
        program, count = apply_sink(program, sink), count + 1


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("matrix", [distances, products])
def test_a_part_is_computed_alone(x64, matrix, read):
    """Also from beyond the end and before the beginning, where a slice is moved inside."""

    def fn(x, i):
        return READS[read](matrix(x), i)

    x = np.random.default_rng(0).normal(size=(N, 6))
    program, count = sunk(fn, x, 3)
    assert count == 1
    assert max(v.aval.size for eqn in program.eqns for v in eqn.outvars) < N * N
    run = jax.jit(emit(program, EXPANSIONS))
    for i in (0, 3, N - 1, N + 7, -2, -N - 5):
        np.testing.assert_allclose(run(x, i)[0], jax.jit(fn)(x, i), rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint32])
def test_places_may_be_counted_in_any_integers(x64, dtype):
    """A place beyond what 32 bits hold is one beyond the end; an axis may be longer than 8 bits count."""

    def fn(x, i):
        return jax.lax.dynamic_slice(distances(x), (i, i), (1, 300))

    x = np.random.default_rng(0).normal(size=(300, 3))
    program, count = sunk(fn, x, dtype(3))
    assert count == 1
    for i in (0, 100, np.iinfo(dtype).max, np.iinfo(dtype).min):
        got = jax.jit(emit(program, EXPANSIONS))(x, dtype(i))[0]
        np.testing.assert_allclose(got, jax.jit(fn)(x, dtype(i)), rtol=1e-12)


def test_what_reads_all_of_it_still_does(x64):
    def fn(x):
        k = distances(x)
        return k[jnp.argmax(k.sum(axis=0))], k.sum(axis=0)

    x = np.random.default_rng(0).normal(size=(N, 6))
    program, count = sunk(fn, x)
    assert count == 1 and any(v.aval.shape == (N, N) for eqn in program.eqns for v in eqn.outvars)
    for got, expected in zip(jax.jit(emit(program, EXPANSIONS))(x), fn(x), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-12)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, i: jnp.sort(distances(x), axis=0)[i],  # its rows need all of the matrix
        lambda x, i: jnp.cumsum(distances(x), axis=0)[i],
        lambda x, i: jax.lax.dynamic_slice(distances(x), (i, 0), (N - 1, N)),  # that is nearly all
    ],
    ids=["sorted", "summed up", "nearly all"],
)
def test_what_needs_all_of_it_stays(fn):
    assert sunk(fn, np.ones((N, 6), np.float32), 3)[1] == 0


def test_a_decision_about_what_cannot_be_computed_alone_is_a_miss():
    program = canonical(jax.make_jaxpr(lambda x, i: jnp.cumsum(distances(x), axis=0)[i])(np.ones((N, 6)), 3))
    position = next(i for i, e in enumerate(program.eqns) if e.primitive.name == "dynamic_slice")
    sink = Sink(path=(), site=program.site(position), operand=0, small_bytes=100)
    with pytest.raises(ReplayMiss, match="cannot be computed alone"):
        apply_sink(program, sink)


def farthest_points(x):
    """Each turn reads one row of all distances."""
    k = distances(x)

    def step(nearest, _):
        j = jnp.argmax(nearest)
        return jnp.minimum(nearest, k[j]), j

    return jax.lax.scan(step, jnp.full(len(x), 1e9, x.dtype), None, length=20)


def herding(x):
    """Reads columns in a loop, and all of it before."""
    k = distances(x)
    mean = k.mean(axis=1)

    def step(i, carry):
        total, chosen = carry
        j = jnp.argmax(mean - total / (i + 1))
        return total + k[:, j], chosen.at[i].set(j)

    return jax.lax.fori_loop(0, 20, step, (jnp.zeros(len(x), x.dtype), jnp.zeros(20, jnp.int32)))


def farthest_pair(x):
    k = distances(x)
    at = jnp.argmax(k)
    return at, k.ravel()[at]


@pytest.mark.parametrize("fn", [farthest_points, herding, farthest_pair])
def test_greedy_choices_run_without_the_matrix(fn):
    x = np.random.default_rng(0).normal(size=(700, 3)).astype(np.float32)
    f = exla.jit(fn, memory_limit=x.nbytes + 4 * 700 * 700 // 8)
    for got, expected in zip(f(x), jax.jit(fn)(x), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6)
    assert any(isinstance(d, Sink) for d in f.plan(x).decisions)
