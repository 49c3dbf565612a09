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
    assert ratio == pytest.approx(Machine().one_vector if is_faster else 1.0, rel=0.01)
