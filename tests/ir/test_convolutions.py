"""Convolutions have the order of axes that XLA:CPU's library takes, also inside loops, and the values they had."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import exla
from exla import _compat
from exla.ir.emit import emit
from exla.ir.program import canonical
from exla.passes.unless import EXPANSIONS

pytestmark = pytest.mark.usefixtures("compiled_quickly")


def convolution(numbers, strides=None, padding="SAME", **options):
    strides = strides or (1,) * (len(numbers[0]) - 2)
    return lambda x, k: jax.lax.conv_general_dilated(x, k, strides, padding, dimension_numbers=numbers, **options)


CASES = {
    "NCHW": (convolution(("NCHW", "OIHW", "NCHW")), (2, 3, 7, 6), (4, 3, 3, 2)),
    "HWCN": (convolution(("HWCN", "IHWO", "CNHW")), (7, 6, 3, 2), (3, 3, 2, 4)),
    "WH": (convolution(("NWHC", "WHIO", "NHWC")), (2, 7, 6, 3), (3, 2, 3, 4)),
    "one axis": (convolution(("NCW", "WOI", "WCN")), (2, 3, 9), (4, 5, 3)),
    "volumes": (convolution(("NCDHW", "OIDHW", "NCDHW")), (2, 3, 4, 5, 6), (4, 3, 3, 2, 1)),
    "groups": (convolution(("NCHW", "OIHW", "NCHW"), feature_group_count=3), (2, 6, 7, 6), (9, 2, 3, 3)),
    "strides": (convolution(("NCHW", "OIHW", "NCHW"), strides=(2, 1)), (2, 3, 9, 6), (4, 3, 3, 2)),
    "padding": (convolution(("NCHW", "OIHW", "NCHW"), padding=((2, 0), (0, 3))), (2, 3, 9, 6), (4, 3, 3, 2)),
    "spread image": (
        convolution(("NCHW", "OIHW", "NCHW"), lhs_dilation=(1, 2), padding=((1, 1), (0, 2))),
        (2, 3, 5, 6),
        (4, 3, 3, 2),
    ),
    "wider result": (
        convolution(("NCHW", "OIHW", "NCHW"), preferred_element_type=jnp.float32),
        (2, 3, 5, 6),
        (4, 3, 3, 2),
    ),
    "empty": (convolution(("NCHW", "OIHW", "NCHW")), (0, 3, 5, 6), (4, 3, 3, 2)),
    "dilated": (convolution(("NCHW", "OIHW", "NCHW"), rhs_dilation=(2, 1)), (2, 3, 9, 6), (4, 3, 3, 2)),
}
DERIVATIVES = {"value": None, "of the image": 0, "of the kernel": 1}


def convolutions(jaxpr):
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "conv_general_dilated":
            yield eqn.params["dimension_numbers"]
        for body in _compat.bodies(eqn):
            yield from convolutions(body.jaxpr)


def is_ordered(numbers):
    places = len(numbers.lhs_spec) - 2
    image = (0, places + 1, *range(1, places + 1))
    return (*numbers,) == (image, (places + 1, places, *range(places)), image)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("of", DERIVATIVES)
def test_a_convolution_is_put_in_order(name, of):
    fn, *shapes = CASES[name]
    which = DERIVATIVES[of]
    if which is not None:
        inner = fn

        def fn(x, k):
            return jax.grad(lambda *both: jnp.sum(inner(*both) ** 2), which)(x, k)

    generator = np.random.default_rng(0)
    arguments = [generator.integers(-4, 5, shape).astype(np.float32) for shape in shapes]
    program = canonical(jax.make_jaxpr(fn)(*arguments), "cpu")
    found = list(convolutions(program.jaxpr))
    # The gradient of a kernel in groups has groups of the batch: that stays XLA's.
    assert (found or name == "empty") and all(
        is_ordered(n) for n in found[: 1 if name == "groups" and which == 1 else None]
    )
    np.testing.assert_array_equal(jax.jit(emit(program, EXPANSIONS))(*arguments)[0], jax.jit(fn)(*arguments))


def test_other_compilers_choose_for_themselves():
    fn, *shapes = CASES["NCHW"]
    program = canonical(jax.make_jaxpr(fn)(*(jnp.ones(s) for s in shapes)), "tpu")
    (numbers,) = convolutions(program.jaxpr)
    assert not is_ordered(numbers)


@pytest.mark.parametrize("dtype", [np.int32, np.complex64])
def test_what_is_for_no_library_stays_as_it_is(dtype):
    fn, *shapes = CASES["NCHW"]
    program = canonical(jax.make_jaxpr(fn)(*(jnp.ones(s, dtype) for s in shapes)), "cpu")
    assert not any(is_ordered(n) for n in convolutions(program.jaxpr))
    assert not any(eqn.primitive.name == "transpose" for eqn in program.eqns)


@pytest.mark.parametrize("looped", [False, True], ids=["split", "in a scan of the user's"])
def test_the_library_is_called_in_loops(looped):
    def loss(x, k):
        y = jax.lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=("NCHW", "OIHW", "NCHW"))
        return jnp.sum(jax.nn.relu(y).mean((2, 3)) ** 2)

    def fn(x, k):
        if not looped:
            return jax.grad(loss, 1)(x, k)
        steps = jax.lax.scan(
            lambda total, part: (total + jax.grad(loss, 1)(part, k), None), k * 0, x.reshape(4, 4, *x.shape[1:])
        )
        return steps[0]

    generator = np.random.default_rng(0)
    arguments = [generator.normal(size=s).astype(np.float32) for s in ((16, 8, 32, 32), (16, 8, 3, 3))]
    compiled = exla.compile(fn, arguments, memory_limit="2MiB", records="off")
    labels = set(re.findall(r"dim_labels=([\w>-]+)", compiled.as_text()))
    assert labels == {"b01f_01io->b01f"}
    with jax.enable_x64(True):
        want = fn(*(jnp.asarray(a, jnp.float64) for a in arguments))
    np.testing.assert_allclose(compiled(*arguments), want, rtol=2e-4, atol=1e-3)
