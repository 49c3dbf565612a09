"""Convolutions have the order of axes that XLA:CPU's library takes, also inside loops, and the values they had."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import exla
from exla import _compat
from exla.ir.convolutions import calls_library
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


LIGHT = {
    "in the library's order": (convolution(("NHWC", "HWIO", "NHWC")), (2, 7, 6, 3), (3, 2, 3, 4)),
    "a volume": (convolution(("NDHWC", "DHWIO", "NDHWC")), (2, 4, 5, 6, 3), (3, 3, 2, 3, 4)),
    "one feature": (convolution(("NCHW", "OIHW", "NCHW")), (2, 1, 7, 6), (1, 1, 3, 2)),
    "a signal": (convolution(("NCW", "OIW", "NCW")), (2, 1, 40), (4, 1, 9)),
    "each channel": (convolution(("NCHW", "OIHW", "NCHW"), feature_group_count=6), (2, 6, 7, 6), (12, 1, 3, 3)),
}


@pytest.mark.parametrize("name", LIGHT)
@pytest.mark.parametrize("of", DERIVATIVES)
def test_a_convolution_of_few_features_is_written_in_another_order_where_bits_may_change(name, of):
    inner, *shapes = LIGHT[name]
    which = DERIVATIVES[of]
    fn = inner if which is None else jax.grad(lambda *both: jnp.sum(inner(*both) ** 2), which)
    generator = np.random.default_rng(0)
    arguments = [generator.integers(-4, 5, shape).astype(np.float32) for shape in shapes]
    program = canonical(jax.make_jaxpr(fn)(*arguments), "cpu")
    run = emit(program, EXPANSIONS, in_blocks=True)
    found = list(convolutions(jax.make_jaxpr(run)(*arguments).jaxpr))
    assert found and not any(map(is_ordered, found))
    np.testing.assert_array_equal(jax.jit(run)(*arguments)[0], jax.jit(fn)(*arguments))


@pytest.mark.parametrize(("outputs", "ordered"), [(6, False), (18, True)])
@pytest.mark.parametrize("numbers", [("NHWC", "HWIO", "NHWC"), ("HNCW", "IOWH", "CHWN")], ids=" ".join)
def test_groups_of_the_batch_are_written_as_groups_of_features(numbers, outputs, ordered):
    """Three of them; of few features each in the order of plain loops, of more in that of the library."""
    fn = convolution(numbers, batch_group_count=3)
    sizes = {"N": 12, "C": 3, "H": 7, "W": 6, "I": 3, "O": outputs}
    generator = np.random.default_rng(0)
    x = generator.integers(-4, 5, [sizes[a] for a in numbers[0]]).astype(np.float32)
    k = generator.integers(-4, 5, [{**sizes, "H": 3, "W": 2}[a] for a in numbers[1]]).astype(np.float32)
    program = canonical(jax.make_jaxpr(fn)(x, k), "cpu")
    run = emit(program, EXPANSIONS, in_blocks=True)
    (eqn,) = [e for e in jax.make_jaxpr(run)(x, k).eqns if e.primitive.name == "conv_general_dilated"]
    assert (eqn.params["batch_group_count"], eqn.params["feature_group_count"]) == (1, 3)
    assert is_ordered(eqn.params["dimension_numbers"]) == ordered
    np.testing.assert_array_equal(jax.jit(run)(x, k)[0], jax.jit(fn)(x, k))


def test_several_outputs_of_large_windows_are_left_to_the_library():
    fn = convolution(("NCHW", "OIHW", "NCHW"))
    cases = [(1, 2, 20, False), (1, 3, 20, True), (1, 4, 9, False), (1, 8, 9, True), (2, 4, 9, True), (1, 8, 5, False)]
    for inputs, outputs, window, wanted in cases:
        shapes = ((2, inputs, 64, 64), (outputs, inputs, window, window))
        structs = [jax.ShapeDtypeStruct(s, np.float32) for s in shapes]
        program = canonical(jax.make_jaxpr(fn)(*structs), "cpu")
        run = emit(program, EXPANSIONS, in_blocks=True)
        (numbers,) = convolutions(jax.make_jaxpr(run)(*structs).jaxpr)
        assert is_ordered(numbers) == wanted


def test_exact_convolutions_are_left_to_the_library_in_loops_too():
    """As XLA does outside of loops, so that a program has the same bits whether it is split or not."""

    def fn(x):
        filtered = jax.vmap(lambda row: jnp.convolve(row, jnp.linspace(-0.3, 0.9, 7), "same"))(x)
        return jnp.max(jnp.tanh(filtered), axis=1)

    x = jax.ShapeDtypeStruct((400, 1000), np.float32)
    compiled = exla.compile(fn, (x,), memory_limit=4 * 400 * 1000 + (1 << 20), numerics="exact", records="off")
    assert not compiled.plan.untouched
    assert set(re.findall(r"dim_labels=([\w>-]+)", compiled.as_text())) == {"b0f_0io->b0f"}


def test_a_split_convolution_of_few_features_is_compiled_to_plain_loops_which_need_no_scratch():
    def fn(x):
        return jnp.sum(
            jnp.tanh(jax.vmap(lambda row: jnp.convolve(row, jnp.array([1.0, -2.0, 1.0]), "same"))(x)), axis=1
        )

    x = np.random.default_rng(0).normal(size=(600, 1000)).astype(np.float32)
    compiled = exla.compile(fn, (x,), memory_limit=x.nbytes + (1 << 20), records="off")
    assert "b0f_0io->b0f" not in compiled.as_text() and " convolution(" in compiled.as_text()
    assert compiled.plan.unaccounted_bytes == 0
    np.testing.assert_allclose(compiled(x), jax.jit(fn)(x), rtol=1e-5, atol=1e-4)


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


SWAPPED = {  # the image, the kernel, how it is padded and spread, and whether XLA takes one for the other
    "as large": ((4, 16, 9, 9), (16, 16, 9, 9), 1, (1, 1), False),
    "of a spread image": ((4, 16, 9, 9), (16, 16, 18, 18), 2, (2, 2), True),
    "larger": ((4, 16, 9, 9), (16, 16, 12, 12), 1, (6, 6), True),
    "longer and narrower": ((4, 16, 9, 9), (16, 16, 18, 3), 1, (9, 9), False),
}


@pytest.mark.parametrize("name", SWAPPED)
def test_where_the_window_is_larger_than_the_image_xla_calls_no_library(name):
    """As XLA itself compiles it, and so no scratch is projected."""
    image, kernel, spread, padding, wanted = SWAPPED[name]
    fn = convolution(("NCHW", "OIHW", "NCHW"), padding=(padding,) * 2, lhs_dilation=(spread,) * 2)
    structs = [jax.ShapeDtypeStruct(shape, np.float32) for shape in (image, kernel)]
    program = canonical(jax.make_jaxpr(fn)(*structs), "cpu")
    (eqn,) = [e for e in program.eqns if e.primitive.name == "conv_general_dilated"]
    assert calls_library(eqn, is_outside=True, is_written=True) != wanted
    text = jax.jit(fn).lower(*structs).compile().as_text()
    assert ("b01f_01io->b01f" in text) != wanted
