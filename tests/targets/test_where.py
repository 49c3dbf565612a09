"""What a call is compiled for: the target that is named, whatever devices its arguments lie on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

import exla
from exla.targets.base import TARGETS
from tests.targets.installed import compiler_of
from tests.test_api import kernel_product

STRUCTS = tuple(jax.ShapeDtypeStruct(s, jnp.float32) for s in ((4000, 3), (4000, 3), (4000,)))
ABROAD = ("tpu:v5e", "gpu:h200")


def here(structs, count=3):
    """Arguments, the first `count` of them committed to the device that is there."""
    arrays = [np.ones(s.shape, s.dtype) for s in structs]
    return tuple(jax.device_put(x, jax.devices()[0]) if k < count else x for k, x in enumerate(arrays))


@pytest.mark.parametrize("name", ABROAD)
@pytest.mark.parametrize("count", [1, 3])
def test_arguments_that_lie_on_this_machine_are_compiled_for_the_target_that_is_named(name, count):
    compiler_of(name)
    expected = exla.compile(kernel_product, STRUCTS, target=name, memory_limit="8MiB", records="off")
    found = exla.compile(kernel_product, here(STRUCTS, count), target=name, memory_limit="8MiB", records="off")
    assert found.plan.compiled_bytes == expected.plan.compiled_bytes and found.plan.decisions == expected.plan.decisions
    (sharding,) = jax.tree.leaves(found.output_shardings)
    (device,) = sharding.device_set
    assert TARGETS.get(name).has(device)


def test_where_no_target_is_named_devices_say_it():
    compiler_of("tpu:v5e")
    there = SingleDeviceSharding(TARGETS.get("tpu:v5e").device())
    structs = [jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=there) for s in STRUCTS]
    found = exla.compile(kernel_product, structs, memory_limit="8MiB", records="off")
    assert found.planned.target.name == "tpu:v5e" and found.plan.compiled_bytes <= 8 << 20


def over(name, axes=("rows",)):
    return Mesh(np.array([TARGETS.get(name).device()]), axes)


@pytest.mark.parametrize(("named", "placed"), [("tpu:v6e", "tpu:v5e"), ("cpu", "tpu:v5e"), ("gpu:h200", "tpu:v5e")])
def test_a_call_that_is_placed_on_other_devices_than_those_of_the_target_is_refused(named, placed):
    compiler_of(placed)
    there = NamedSharding(over(placed), PartitionSpec("rows"))
    with pytest.raises(exla.ExlaError, match=r"placed on tpu \(TPU v5 lite\), and is to be compiled for " + named):
        exla.jit(kernel_product, target=named, in_shardings=there).plan(*STRUCTS)


def test_a_device_that_is_named_is_that_of_the_target_or_an_error():
    compiler_of("tpu:v5e")
    with pytest.raises(exla.ExlaError, match=r"placed on cpu \(cpu\), and is to be compiled for tpu:v5e"):
        exla.jit(kernel_product, target="tpu:v5e", in_shardings=SingleDeviceSharding(jax.devices()[0])).plan(*STRUCTS)
    f = exla.jit(kernel_product, target="cpu", in_shardings=SingleDeviceSharding(jax.devices()[0]))
    assert f.plan(*STRUCTS).untouched
