"""On an attached GPU or TPU: the allocator's peak against the count, and values. Skipped where there is none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import exla
from exla.overrun import SLACK_BYTES, most_handed_out
from exla.targets.base import find_target

pytestmark = pytest.mark.skipif(
    jax.default_backend() == "cpu", reason="no GPU or TPU is attached, or JAX_PLATFORMS=cpu"
)

N = 20_000


def kernel_product(x, y, v):
    return jnp.exp(-jnp.sum((x[:, None] - y[None]) ** 2, axis=-1)) @ v


def points():
    generator = np.random.default_rng(0)
    return tuple(jnp.asarray(generator.normal(size=s), jnp.float32) for s in ((N, 3), (N, 3), (N,)))


def test_the_attached_device_is_the_default_target():
    target = find_target(None)
    assert target.attached() and target.usable_bytes() > 1 << 30 and target.sharding() is None


def test_the_allocator_never_sees_more_than_was_counted():
    arguments = points()
    f = exla.jit(kernel_product, memory_limit="64MiB", records="off")
    plan = f.plan(*arguments)
    result = np.asarray(f(*arguments))
    stats = jax.devices()[0].memory_stats() or {}
    most = most_handed_out(plan.compiled_bytes, stats) + SLACK_BYTES
    assert plan.compiled_bytes <= 64 << 20 and stats.get("peak_bytes_in_use", 0) <= most
    x, y, v = (np.asarray(a, np.float64) for a in arguments)
    want = np.exp(-np.sum((x[:50, None] - y[None]) ** 2, axis=-1)) @ v
    plain = np.asarray(jax.jit(kernel_product)(*arguments))  # GPUs multiply in TF32 unless told otherwise
    error, plain_error = (np.max(np.abs(r[:50] - want)) / np.max(np.abs(want)) for r in (result, plain))
    assert error <= max(1e-3, 2 * plain_error), (error, plain_error)


def test_a_plan_made_without_the_device_runs_on_it(tmp_path):
    target = find_target(None)
    compiled = exla.compile(kernel_product, points(), target=target.name, memory_limit="64MiB", records="off")
    exla.save(compiled, tmp_path / "plan.json")
    loaded = exla.load(tmp_path / "plan.json", kernel_product, points())
    np.testing.assert_allclose(loaded(*points()), compiled(*points()), rtol=1e-5)
