"""Library calls that share the threads of a pool take turns in what exla makes of a program."""

import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from exla.ir.emit import emit
from exla.ir.program import canonical
from exla.ir.turns import turns_in


def solved(a, b):
    """Independent factorisations and solves of the same matrices, one of them in a loop."""
    square = a @ a.swapaxes(-1, -2) + 4 * jnp.eye(a.shape[-1])

    def step(total, k):
        return total + jnp.linalg.cholesky(square * k) @ b + jnp.linalg.cholesky(square + k) @ b, None

    looped, _ = jax.lax.scan(step, jnp.zeros_like(b), jnp.arange(1.0, 3.0))
    lower = jnp.linalg.cholesky(square)
    first, second = (jax.lax.linalg.triangular_solve(lower, x, left_side=True, lower=True) for x in (b, jnp.cos(b)))
    return looped, first + second


def program_of(fn, *shapes, dtype=jnp.float32):
    return canonical(jax.make_jaxpr(fn)(*(jax.ShapeDtypeStruct(shape, dtype) for shape in shapes)), "cpu")


def test_each_call_waits_for_the_one_before_it_in_its_body():
    program = program_of(solved, (500, 6, 6), (500, 6, 2))
    calls = {}
    for jaxpr in (program.jaxpr, *(e.params["jaxpr"].jaxpr for e in program.eqns if e.primitive.name == "scan")):
        calls[jaxpr] = [e for e in jaxpr.eqns if e.primitive.name in {"cholesky", "triangular_solve", "scan"}]
    pairs = {b.outvars[0]: a.outvars[0] for made in calls.values() for a, b in zip(made, made[1:], strict=False)}
    assert turns_in(program) == pairs and sorted(map(len, calls.values())) == [2, 4]


@pytest.mark.parametrize(
    ("shapes", "why"), [(((50, 6, 6), (50, 6, 2)), "small"), (((1, 200, 200), (1, 200, 2)), "of one matrix")]
)
def test_calls_that_do_all_by_themselves_do_not_wait(shapes, why):
    assert turns_in(program_of(solved, *shapes)) == {}, why


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.complex64])
def test_values_stay_as_they_are_and_each_call_reads_what_the_one_before_it_made(dtype):
    generator = np.random.default_rng(0)
    a, b = (generator.standard_normal(shape).astype(dtype) for shape in ((500, 6, 6), (500, 6, 2)))
    program = program_of(solved, a.shape, b.shape, dtype=dtype)
    plain, made = (jax.jit(emit(program, {}, in_blocks=in_blocks)) for in_blocks in (False, True))
    for got, wanted in zip(made(a, b), plain(a, b), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=2e-5)
    waits = [jax.make_jaxpr(f)(a, b).pretty_print().count("population_count") for f in (plain, made)]
    assert waits == [0, 4]


def test_a_split_program_of_several_calls_does_not_hang():
    """Under `jax.jit` the same two loops, and two calls in the body of one, wait for each other for ever."""
    program = """
        import jax, jax.numpy as jnp, numpy as np, exla

        def weighed(a, x, y):
            lower = jnp.linalg.cholesky(a)
            solve = lambda v: jax.lax.linalg.triangular_solve(lower, v, left_side=True, lower=True)
            pairs = jnp.exp(-jnp.abs(x[:, None, :, 0] - y[None, :, :, 0])).sum((1, 2))
            return jnp.sum(solve(x) ** 2, (1, 2)) * pairs, jnp.sum(solve(y) ** 2, (1, 2)), jnp.linalg.cholesky(2 * a)

        n = 2000
        k = np.random.default_rng(0)
        x, y = (jnp.asarray(k.standard_normal((n, 12, 2)), jnp.float32) for _ in range(2))
        a = jnp.asarray(np.eye(12) * 3 + 0.1, jnp.float32) * jnp.ones((n, 1, 1))
        run = exla.jit(weighed, memory_limit="14MiB", records="off")
        assert not run.plan(a, x, y).untouched
        for _ in range(200):
            jax.block_until_ready(run(a, x, y))
        print("done")
    """
    made = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=300, check=False
    )
    assert made.stdout.strip() == "done", made.stderr
