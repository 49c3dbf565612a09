"""What the numerical contract promises (docs/numerics.md)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import exla
from exla.passes.decisions import Split

pytestmark = pytest.mark.usefixtures("compiled_quickly")


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def row_sums(x, y):
    return jnp.sum(jnp.exp(-((x[:, None] - y) ** 2)), axis=1)


def softmax_rows(x, y):
    return jnp.max(jax.nn.softmax(jnp.sin(x[:, None] * y), axis=1), axis=1)


def farthest(x, y):
    gaps = jnp.abs(x[:, None] - y)
    return jnp.argmax(gaps, axis=0), jnp.max(gaps, axis=0), jax.lax.top_k(gaps.T, 3)


def sorted_rows(x, y):
    return jnp.sort(x[:, None] * y, axis=1)[:, 10] + jnp.cumsum(jnp.cos(x[:, None] * y), axis=1)[:, -1]


def counted(x, y):
    return jnp.sum((x[:, None] > y).astype(jnp.int32), axis=0), jnp.any(x[:, None] == y)


def filtered(x, y):
    return jax.lax.scan(lambda c, row: (c * 0.9 + row, jnp.max(jnp.sin(c))), jnp.zeros_like(y), x[:, None] * y)[1]


PROGRAMS = [row_sums, softmax_rows, farthest, sorted_rows, counted, filtered]


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda f: f.__name__)
def test_exact_results_do_not_depend_on_the_cap(fn):
    x, y = normal(1500), normal(400, seed=1)
    plain = jax.jit(fn, compiler_options={"xla_cpu_experimental_ynn_fusion_type": ""})(x, y)
    for cap in ("128KiB", "1MiB"):
        f = exla.jit(fn, memory_limit=cap, numerics="exact")
        assert any(isinstance(d, Split) for d in f.plan(x, y).decisions)
        jax.tree.map(np.testing.assert_array_equal, f(x, y), plain)


def test_exact_numerics_splits_no_sum_and_says_so():
    x, y = normal(3000), normal(400, seed=1)
    assert exla.jit(scanned_sums, memory_limit="64KiB").plan(x, y).decisions
    with pytest.raises(exla.MemoryLimitError, match="keeps the order of its reductions"):
        exla.jit(scanned_sums, memory_limit="64KiB", numerics="exact").plan(x, y)


def scanned_sums(x, y):
    return jnp.max(jnp.cumsum(jnp.cumsum(x[:, None] * y, axis=0), axis=1))
