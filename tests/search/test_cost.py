"""What the prediction knows of how a CPU's compiler adds numbers up."""

import jax
import jax.numpy as jnp
import pytest

from exla.ir.program import canonical
from exla.search.cost import predict_s
from exla.targets.machine import Machine


def seconds(*shape):
    x = jax.ShapeDtypeStruct(shape, jnp.float32)
    return predict_s(canonical(jax.make_jaxpr(lambda x: jnp.sum(jnp.square(x), axis=-1))(x), "cpu"), Machine())


@pytest.mark.parametrize(("length", "is_faster"), [(3, False), (8, False), (16, True), (32, True), (64, False)])
def test_eight_sums_of_some_length_are_added_as_vectors(length, is_faster):
    ratio = seconds(100_000, 8, length) / seconds(50_000, 16, length)
    assert ratio == pytest.approx(Machine().one_vector if is_faster else 1.0, rel=0.02)


@pytest.mark.parametrize(("length", "is_faster"), [(32, False), (8 * 97, True), (997, False)])
def test_a_reduction_in_blocks_has_a_price_of_its_own(length, is_faster):
    """Short ones are not written in blocks, nor are those of a prime length."""
    program = canonical(jax.make_jaxpr(lambda x: jnp.sum(x + 1, axis=-1))(jnp.ones((100, length))), "cpu")
    chained, blocked = (predict_s(program, Machine(blocks=blocks)) for blocks in (False, True))
    assert (blocked < chained) == is_faster and blocked <= chained
