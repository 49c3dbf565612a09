"""The projection against what the compiler counts, and what it says holds the peak."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import exla
from exla.ir import memory
from exla.ir.memory import Storing, project
from exla.ir.program import canonical
from exla.search.cost import projected
from exla.targets.base import find_target
from exla.targets.cpu import NO_YNN

F32 = 4


def program_of(fn, *shapes):
    return canonical(jax.make_jaxpr(fn)(*(jax.ShapeDtypeStruct(s, np.float32) for s in shapes)))


def test_arguments_outputs_and_temporaries_add_up():
    peak = project(program_of(lambda x: jnp.sort(x) @ jnp.ones((1000,)), (500, 1000)))
    assert peak.arguments_bytes == 500 * 1000 * F32 and peak.outputs_bytes == 500 * F32
    assert peak.bytes == peak.arguments_bytes + peak.temporary_bytes
    assert peak.temporary_bytes >= 500 * 1000 * F32


def test_elementwise_chains_are_not_held():
    peak = project(program_of(lambda x: jnp.sum(jnp.exp(jnp.sin(x) + 1), axis=2), (1000, 100, 10)))
    assert peak.temporary_bytes < 2 * 1000 * 100 * F32
    assert (
        project(program_of(lambda x: jnp.sum(jnp.exp(x) + 1), (1000, 1000)), Storing(fused=False)).temporary_bytes
        >= 4e6
    )


def test_what_is_reduced_along_a_long_axis_is_held():
    """XLA:CPU reduces more than 32 indices in several passes, and stores what it reduces."""
    short, long = (
        project(program_of(lambda x: jnp.max(jnp.exp(x), axis=1), (1000, size))).temporary_bytes for size in (32, 33)
    )
    assert short == 1000 * F32
    assert long == 1000 * 33 * F32 + 1000 * F32


def test_what_is_dead_is_not_held():
    def chain(x):
        for _ in range(6):
            x = jnp.sort(x)
        return jnp.sum(x)

    assert project(program_of(chain, (100, 1000))).temporary_bytes <= 2 * 100 * 1000 * F32 + 100


def test_the_largest_value_is_named_first():
    def outer(x, y):
        return jnp.sort(x[:, None] * y[None, :])[:, 0]

    held = project(program_of(outer, (300,), (500,))).held
    assert held[0].bytes == 300 * 500 * F32 and held[0].program.describe(held[0].var).startswith("f32[300,500]")
    assert [h.bytes for h in held] == sorted((h.bytes for h in held), reverse=True)


def kernel(x, y, v):
    return jnp.exp(-jnp.sum((x[:, None] - y[None]) ** 2, -1)) @ v


def softmax_rows(x, y):
    return jax.nn.softmax(x @ y, axis=-1) @ y.T


def nearest(x, y):
    return lax.top_k(-jnp.sum((x[:, None] - y[None]) ** 2, -1), 3)


def solve(x, y):
    return jnp.linalg.solve(x @ x.T + jnp.eye(x.shape[0]), y)


@pytest.mark.parametrize(
    ("fn", "shapes"),
    [
        (kernel, [(700, 5), (900, 5), (900,)]),
        (softmax_rows, [(700, 30), (30, 900)]),
        (nearest, [(700, 5), (900, 5)]),
        (solve, [(500, 400), (500, 20)]),
        (lambda x: jnp.fft.irfft(jnp.fft.rfft(x) * 2), [(300, 4096)]),
        (lambda x: lax.scan(lambda c, row: (c + row, c), jnp.zeros(1000), x), [(500, 1000)]),
        (lambda x: jnp.sort(x, axis=0), [(1000, 700)]),
    ],
    ids=["kernel", "softmax", "nearest", "solve", "fft", "scan", "sort"],
)
def test_the_projection_is_within_a_factor_of_the_compilers_count(fn, shapes):
    """It only ranks candidates, but one that is off by more would send the search the wrong way."""
    args = [jax.ShapeDtypeStruct(s, np.float32) for s in shapes]
    stats = jax.jit(fn).lower(*args).compile(compiler_options=dict(NO_YNN)).memory_analysis()
    counted = stats.argument_size_in_bytes + stats.output_size_in_bytes + stats.temp_size_in_bytes
    assert 0.5 <= project(program_of(fn, *shapes)).bytes / counted <= 2


DECOMPOSED = {
    **{
        f"svd {uv} {full}": lambda a, uv=uv, full=full: jnp.linalg.svd(a, compute_uv=uv, full_matrices=full)
        for uv in (False, True)
        for full in (False, True)
    },
    "eigvals": jnp.linalg.eigvals,
    "eig": jnp.linalg.eig,
}


@pytest.mark.parametrize("is_computed", [False, True])
@pytest.mark.parametrize("name", DECOMPOSED)
def test_what_decompositions_write_beside_their_results_is_foretold(name, is_computed):
    def fn(a):
        return DECOMPOSED[name](jnp.cos(a) if is_computed else a)

    a = jax.ShapeDtypeStruct((50, 40, 40) if "eig" in name else (50, 60, 40), np.float32)
    target = find_target("cpu")
    counted = jax.jit(fn).lower(a).compile().memory_analysis()
    whole = counted.argument_size_in_bytes + counted.output_size_in_bytes + counted.temp_size_in_bytes
    assert 0.97 < projected(canonical(jax.make_jaxpr(fn)(a), "cpu"), target.machine()).bytes / whole < 1.03


@pytest.mark.parametrize("name", ["svd", "eigvals", "eigh", "cholesky", "lu", "triangular"])
def test_matrices_of_an_argument_are_decomposed_in_chunks_without_a_copy_of_it(name):
    functions = {
        "svd": lambda a: jnp.linalg.svd(a, compute_uv=False)[0],
        "eigvals": lambda a: jnp.abs(jnp.linalg.eigvals(a)).max(),
        "eigh": lambda a: jnp.linalg.eigh(a, symmetrize_input=False)[1][0, 0],
        "cholesky": lambda a: jnp.linalg.cholesky(a, symmetrize_input=False)[-1, -1],
        "lu": lambda a: jax.scipy.linalg.lu_factor(a)[0][-1, -1],
        "triangular": lambda a: jax.scipy.linalg.solve_triangular(a, jnp.ones((20, 20)), lower=True)[-1, -1],
    }
    x = np.random.default_rng(0).standard_normal((300, 20, 20)).astype(np.float32) / 10
    a = x @ x.swapaxes(1, 2) + 2 * np.eye(20, dtype=np.float32)
    fn = jax.vmap(functions[name])
    f = exla.jit(fn, memory_limit=a.nbytes + a.nbytes // 4)
    assert f.plan(a).compiled_bytes <= a.nbytes + a.nbytes // 4
    np.testing.assert_allclose(np.abs(f(a)), np.abs(jax.jit(fn)(a)), rtol=1e-4)


@pytest.mark.parametrize("outputs", ["ab", "ba"])
def test_outputs_as_large_as_each_other_are_counted_alike_in_every_order(outputs):
    """What is read until 2 and what until 5 are stored in outputs that are computed at 3 and at 6."""
    unused = memory._unused(dict.fromkeys(outputs, 4), {"t": 4, "u": 4}, {"t": 2, "u": 5}, {"a": 3, "b": 6})
    assert unused == 0
