"""What is computed twice in the same way: kept where it is small and made of what is large."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np

import exla
from exla.ir.check import check
from exla.ir.emit import emit
from exla.ir.numbering import numbered, paired
from exla.ir.program import canonical

N = 60


def points(count=N):
    return np.random.default_rng(0).standard_normal((count, 3), dtype=np.float32)


def distances(x):
    return jnp.sqrt(jnp.sum((x[:, None] - x[None]) ** 2, axis=-1))


def smoothed(x, y):
    """Two passes, of which each finds the bandwidth of every point among all distances."""

    def once(y):
        d = distances(x)
        return jnp.exp(-d / -jax.lax.top_k(-d, 5)[0][:, -1:]) @ y

    return once(once(y))


def program_of(fn, *args):
    return check(canonical(jax.make_jaxpr(fn)(*args)))


def count(program, name):
    return sum(e.primitive.name == name for e in program.eqns)


def test_what_is_small_is_computed_once_and_what_is_large_for_each_that_reads_it():
    program = program_of(smoothed, points(), np.ones(N, np.float32))
    assert count(program, "top_k") == 1
    assert count(program, "sqrt") == count(program, "exp") == 2


def test_what_is_as_small_as_what_it_is_made_of_stays():
    made = program_of(lambda x: (jnp.sin(jnp.tanh(x)), jnp.cos(jnp.tanh(x))), points())
    assert count(made, "tanh") == 2
    halved = program_of(lambda x: (jnp.sin(jnp.sum(x, axis=1)), jnp.cos(jnp.sum(x, axis=1))), points())
    assert count(halved, "reduce_sum") == 2, "its operand is there anyway"


class DropVar:
    """As JAX names what a result that nobody reads is assigned to."""


def test_a_result_that_one_of_two_drops_has_no_other_name():
    first, again, dropped = object(), object(), DropVar()
    other = SimpleNamespace(outvars=[first, dropped])
    assert paired(SimpleNamespace(outvars=[again, object()]), other) == {again: first}
    assert paired(SimpleNamespace(outvars=[DropVar(), object()]), other) == {}


def test_each_of_two_results_may_be_read_of_one_of_two():
    x = points()
    program = program_of(lambda x: (jax.lax.top_k(distances(x), 2)[0], jax.lax.top_k(distances(x), 2)[1]), x)
    values, indices = emit(program, {})(x)
    expected = jax.lax.top_k(distances(x), 2)
    np.testing.assert_array_equal(indices, expected[1])
    np.testing.assert_allclose(values, expected[0], rtol=1e-6)


def test_what_differs_in_a_parameter_a_number_or_the_way_to_compute_it_is_another():
    def twice(x):
        with jax.default_matmul_precision("highest"):
            precise = jnp.sum(x @ x.T)
        return precise, jnp.sum(x @ x.T), jnp.sum(x - 1), jnp.sum(x - 2), jnp.sum(x - 1, axis=0)

    assert not numbered(program_of(twice, points()))[0].keys() & set(program_of(twice, points()).outvars)
    assert count(program_of(twice, points()), "reduce_sum") == 5


def test_what_a_checkpoint_computes_again_is_not_kept():
    def loss(x, wrap):
        def layer(x):
            return jnp.tanh(jax.nn.softmax(x @ x.T, axis=1) @ x)

        return jnp.sum(wrap(lambda x: layer(layer(x)))(x) ** 2)

    plain, again = (program_of(jax.grad(lambda x, w=w: loss(x, w)), points()) for w in (lambda f: f, jax.checkpoint))
    assert count(plain, "tanh") == 2 and count(again, "tanh") == 4


def test_numbers_that_are_drawn_differ():
    def drawn(x):
        return [jax.lax.rng_uniform(jnp.float32(0), jnp.max(distances(x)), (3,)) for _ in range(2)]

    program = program_of(drawn, points())
    assert count(program, "rng_uniform") == 2 and count(program, "reduce_max") == 1


def test_two_passes_under_a_cap_find_one_bandwidth():
    x, y = points(700), np.random.default_rng(1).standard_normal(700, dtype=np.float32)
    f = exla.jit(smoothed, memory_limit="400KiB", records="off")
    np.testing.assert_allclose(f(x, y), smoothed(x, y), rtol=2e-4, atol=2e-4)
