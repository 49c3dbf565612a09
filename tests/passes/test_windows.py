"""Halos: convolutions, stencils, differences and pooling are cut along the axes that their windows reach across."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import exla
from exla.ir.program import canonical
from exla.passes.decisions import Growth, Split
from exla.passes.split.grow import grow


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def conv(image, kernel):
    return lax.conv_general_dilated(image, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def network(image, first, second, third):
    hidden = jax.nn.relu(conv(jax.nn.relu(conv(image, first)), second))
    return jnp.mean(conv(hidden, third) ** 2, axis=(1, 2))


def pooled(image, kernel):
    hidden = jax.nn.relu(conv(image, kernel))
    return lax.reduce_window(hidden, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME").mean((1, 2))


def kernel_gradient(image, kernel):
    def loss(kernel):
        hidden = jnp.tanh(conv(image, kernel))
        return jnp.sum(lax.reduce_window(hidden, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") ** 2)

    return jax.grad(loss)(kernel)


def heat(field):
    for _ in range(4):
        p = jnp.pad(field, 1)
        field = field + 0.1 * (p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2] - 4 * field)
    return jnp.sum(field, axis=0)


def variation(x, y):
    return jnp.sum(jnp.abs(jnp.diff(jnp.sin(x[:, None] * y), axis=0)), axis=0)


def shifted_product(x, y):
    waves = jnp.sin(x[:, None] * y)
    return jnp.sum(waves * jnp.roll(waves, 5, axis=0), axis=0)


IMAGE = normal(1, 200, 100, 3)
CASES = {
    "network": (network, (IMAGE, normal(3, 3, 3, 8), normal(3, 3, 8, 8, seed=1), normal(3, 3, 8, 3, seed=2))),
    "pooled": (pooled, (IMAGE, normal(5, 5, 3, 16))),
    "kernel_gradient": (kernel_gradient, (IMAGE, normal(3, 3, 3, 16))),
    "heat": (heat, (normal(1000, 100),)),
    "variation": (variation, (normal(5000), normal(100, seed=1))),
    "shifted_product": (shifted_product, (normal(5000), normal(100, seed=1))),
}


ROOM = {"kernel_gradient": 2**21}
"""Where half a megabyte is not enough: the patches of a whole image are packed for each chunk of its features."""


@pytest.mark.parametrize("name", CASES)
def test_half_a_megabyte_is_enough(name):
    fn, arguments = CASES[name]
    fixed = sum(a.nbytes for a in arguments) + sum(r.size * 4 for r in jax.tree.leaves(jax.eval_shape(fn, *arguments)))
    f = exla.jit(fn, memory_limit=fixed + ROOM.get(name, 2**19))
    assert any(isinstance(d, Split) for d in f.plan(*arguments).decisions)
    got = f(*arguments)
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    try:
        want = fn(*(jnp.asarray(a, jnp.float64) for a in arguments))
    finally:
        jax.config.update("jax_enable_x64", before)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.max(np.abs(want)))


def test_overlapping_windows_of_one_value_are_computed_once():
    program = canonical(jax.make_jaxpr(heat)(np.zeros((60, 8), np.float32)))
    region = grow(program, program.eqns[-1].invars[0], 0, Growth(small_bytes=1))
    assert region is not None
    windows = [i for i in region.instances if i[2]]
    assert len(windows) == len({position for position, _, _ in windows}) > 20
    reach = {step + extra for _, _, (step, _, extra) in windows}
    assert max(reach) == 1 + 2 * 4  # a chunk of one row needs four more of the padded field on either side


def test_what_is_read_far_apart_is_computed_apart():
    program = canonical(jax.make_jaxpr(shifted_product)(normal(5000), normal(100, seed=1)))
    region = grow(program, program.eqns[-1].invars[0], 0, Growth(small_bytes=1))
    assert region is not None
    sines = [window for i, _, window in region.instances if program.eqns[i].primitive.name == "sin"]
    assert sorted(sines) == [(), (1, 5 - 5000, 0), (1, 5, 0)]


@pytest.mark.parametrize("groups", [4, 8])
def test_gradients_of_convolutions_in_groups_are_cut_along_the_batch(groups):
    def loss(image, kernel):
        made = lax.conv_general_dilated(jnp.sin(image), kernel, (2, 1), "SAME", feature_group_count=groups)
        return jnp.sum(jnp.tanh(made) ** 2)

    fn, arguments = jax.grad(loss, argnums=(0, 1)), (normal(16, 8, 24, 24), normal(16, 8 // groups, 3, 3, seed=1) / 4)
    counted = jax.jit(fn).lower(*arguments).compile().memory_analysis()
    limit = counted.argument_size_in_bytes + counted.output_size_in_bytes + counted.temp_size_in_bytes // 4
    f = exla.jit(fn, memory_limit=limit)
    assert f.plan(*arguments).compiled_bytes <= limit
    for got, want in zip(f(*arguments), jax.jit(fn)(*arguments), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("share", [1 / 2, 1 / 4])
def test_gradients_of_transposed_convolutions_are_cut_along_the_batch(share):
    """Of those of the kernels XLA:CPU takes the image for the kernel, and calls no library that needs scratch."""

    def loss(first, second, image):
        hidden = jax.nn.relu(lax.conv_transpose(image, first, (2, 2), "SAME"))
        return jnp.sum(jnp.mean(jax.nn.sigmoid(lax.conv_transpose(hidden, second, (2, 2), "SAME")), (1, 2)) ** 2)

    fn = jax.value_and_grad(loss, argnums=(0, 1))
    arguments = (normal(4, 4, 16, 16) / 5, normal(4, 4, 16, 3, seed=1) / 5, normal(32, 16, 16, 16, seed=2))
    counted = jax.jit(fn).lower(*arguments).compile().memory_analysis()
    limit = counted.argument_size_in_bytes + counted.output_size_in_bytes + int(counted.temp_size_in_bytes * share)
    f = exla.jit(fn, memory_limit=limit, records="off")
    plan = f.plan(*arguments)
    assert plan.compiled_bytes <= limit and plan.projected_bytes <= 1.1 * plan.compiled_bytes
    for got, want in zip(jax.tree.leaves(f(*arguments)), jax.tree.leaves(jax.jit(fn)(*arguments)), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max())


def test_an_axis_that_edges_are_not_repeated_along_is_cut():
    """The parts without elements that `jnp.pad` puts beside it would want it whole."""

    def smoothed(x):
        k = jnp.abs(jnp.fft.rfft(x[:, :, None] * jnp.hanning(64).astype(x.dtype), axis=2))
        wide = jnp.pad(k, ((0, 0), (2, 2), (0, 0)), mode="edge")
        return jnp.max(jnp.sort(sum(wide[:, i : i + 100] for i in range(5)), axis=1), axis=(1, 2))

    x = normal(16, 100)
    program = canonical(jax.make_jaxpr(smoothed)(x))
    spectrum = next(i for i, e in enumerate(program.eqns) if e.primitive.name == "fft")
    region = grow(program, program.eqns[spectrum].outvars[0], 0, Growth(small_bytes=1))
    assert {"concatenate", "sort", "reduce_max"} <= {program.eqns[i].primitive.name for i, *_ in region.instances}
    np.testing.assert_allclose(exla.jit(smoothed, memory_limit="300KiB")(x), smoothed(x), rtol=1e-5)


def test_gradients_of_a_kernel_for_each_example_are_cut_along_the_examples():
    """Gradients that are clipped one by one, as private training does: of as many groups as there are examples."""

    def conv(image, kernel):
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.nn.relu(lax.conv_general_dilated(image, kernel, (2, 2), "SAME", dimension_numbers=numbers))

    def clipped(kernels, images):
        def loss(kernels, image):
            return jnp.sum(conv(conv(image[None], kernels[0]), kernels[1]) ** 2)

        each = jax.vmap(jax.grad(loss), (None, 0))(kernels, images)
        norms = jnp.sqrt(sum(jnp.sum(g * g, axis=(1, 2, 3, 4)) for g in each))
        return [jnp.tensordot(1 / jnp.maximum(1, norms), g, 1) for g in each]

    arguments = ([normal(3, 3, 1, 8) / 10, normal(3, 3, 8, 16, seed=1) / 10], normal(250, 16, 16, 1, seed=2))
    counted = jax.jit(clipped).lower(*arguments).compile().memory_analysis()
    limit = counted.argument_size_in_bytes + counted.output_size_in_bytes + counted.temp_size_in_bytes // 10
    f = exla.jit(clipped, memory_limit=limit, records="off")
    plan = f.plan(*arguments)
    assert plan.compiled_bytes <= limit and sum(isinstance(d, Split) for d in plan.decisions) == 1
    for got, want in zip(f(*arguments), jax.jit(clipped)(*arguments), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max())
