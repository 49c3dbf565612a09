"""What GPUs' compiler computes again, and what it stores."""

import jax
import jax.numpy as jnp
import pytest

from exla.call import read
from exla.ir.weighed import LAUNCH_S, Rates
from exla.search.cost import projected
from exla.targets.base import TARGETS

N, F32 = 8000, 4


def distances(x):
    return jnp.sqrt(jnp.sum((x[:, None] - x[None]) ** 2, axis=-1) + 1)


def two_sums(x):
    found = distances(x)
    return jnp.sum(found, axis=1), jnp.max(found, axis=1)


def three_sums(x):
    found = distances(x)
    return jnp.sum(found, axis=1), jnp.max(found, axis=1), jnp.min(found, axis=1)


def one_with_more(x):
    found = distances(x)
    return jnp.sum(found, axis=1), jnp.sum(jnp.exp(-found), axis=1)


def before_the_root(x):
    squares = jnp.sum((x[:, None] - x[None]) ** 2, axis=-1)
    return jnp.sum(squares, axis=1), jnp.sum(jnp.exp(-jnp.sqrt(squares + 1)), axis=1)


def nearest(x):
    found = jnp.exp(distances(x))
    return jnp.argmin(found, axis=1), jnp.min(found, axis=1)


def stored_bytes(fn, target):
    found = TARGETS.get(target)
    traced = jax.make_jaxpr(fn)(jax.ShapeDtypeStruct((N, 3), jnp.float32))
    return projected(read(traced, found.platform), found.machine()).temporary_bytes


@pytest.mark.parametrize(
    ("fn", "target", "is_stored"),
    [
        (two_sums, "gpu:h100", False),
        (three_sums, "gpu:h100", True),
        (one_with_more, "gpu:h100", True),
        (before_the_root, "gpu:h100", False),
        (nearest, "gpu:h100", False),  # one reduction, with two results
        (three_sums, "gpu:a100-40", False),  # whose compiler knows no price of a root
        (one_with_more, "gpu:l4", False),  # whose memory is slow
    ],
)
def test_a_value_is_stored_where_computing_it_again_takes_longer(fn, target, is_stored):
    """As the compilers of these cards do it."""
    taken = stored_bytes(fn, target)
    assert taken > N * N * F32 if is_stored else taken < N * N


def test_a_kernel_takes_the_longer_one_of_arithmetic_and_traffic_and_a_little_of_the_other():
    rates = Rates(flops=2.0, bytes_per_s=1.0, capability=9.0)
    assert rates.takes_s(8, 0) == pytest.approx(4 + LAUNCH_S)
    assert rates.takes_s(8, 2) == pytest.approx(4 + 0.05 * 2 + LAUNCH_S)


@pytest.mark.parametrize(("count", "is_stored"), [(200, True), (3000, False)])
def test_what_is_read_by_a_chain_too_long_to_be_looked_at_is_not_weighed(count, is_stored):
    def chained(x):
        found = below = distances(x)
        for _ in range(count):
            below = below * found + 1
        return jnp.sum(found, axis=1), jnp.sum(below, axis=1)

    assert (stored_bytes(chained, "gpu:h100") > N * N * F32) == is_stored
