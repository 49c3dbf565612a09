"""Reductions of one loop."""

import jax
import jax.numpy as jnp
import pytest

from exla.call import read
from exla.ir.beside import MOST_OF_COLUMN, MOST_OF_ROW, _partial_results
from exla.ir.siblings import are_siblings
from exla.search.cost import projected
from exla.targets.base import TARGETS

F32 = 4


def program_of(fn, *shapes, platform="tpu"):
    return read(jax.make_jaxpr(fn)(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)), platform)


def sums(x):
    return jnp.sum(jnp.cos(x), axis=1), jnp.sum(jnp.sin(x), axis=1)


def softmax_sum(x):
    return jnp.sum(jnp.exp(x - jnp.max(x, axis=1, keepdims=True)), axis=1)


def crossed(x):
    return jnp.sum(jnp.cos(x), axis=1), jnp.sum(jnp.sin(x), axis=0)


@pytest.mark.parametrize(("fn", "expected"), [(sums, True), (softmax_sum, False), (crossed, False)])
def test_siblings_reduce_the_same_indices_and_wait_for_none_of_each_other(fn, expected):
    program = program_of(fn, (300, 200))
    positions = [i for i, eqn in enumerate(program.eqns) if eqn.primitive.name.startswith("reduce")]
    assert len(positions) == 2
    assert are_siblings(program, positions) == expected


@pytest.mark.parametrize("target", ["tpu:v5e", "gpu:h200"])
def test_what_siblings_read_is_not_stored(target):
    def phases(x, y):
        found = jnp.sqrt(jnp.sum((x[:, None] - y[None]) ** 2, axis=-1) + 1)
        return jnp.sum(jnp.cos(found), axis=1), jnp.sum(jnp.sin(found), axis=1)

    found = TARGETS.get(target)
    program = program_of(phases, (8000, 3), (8000, 3), platform=found.platform)
    stored = projected(program, found.machine(), searching=True).temporary_bytes
    assert stored < 1.1 * 8000 * 8000 * F32


@pytest.mark.parametrize(
    ("count", "most", "parts"),
    [(9_173_149, MOST_OF_ROW, 2119), (11_899, MOST_OF_COLUMN, 73), (11_903, MOST_OF_COLUMN, 64)],
)
def test_a_long_reduction_leaves_as_many_partial_results_as_the_compiler_was_seen_to(count, most, parts):
    assert _partial_results(count, most) == parts


def test_a_reduction_of_very_many_is_cut_into_what_one_block_reduces():
    assert _partial_results(60_915_088**2, MOST_OF_ROW) == 237_618_336_709
