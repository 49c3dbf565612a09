"""Every type that a compiler takes is planned under a cap, and what it does not take fails as with `jax.jit`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import exla
from exla.passes.decisions import Split
from tests.sweep import all_but
from tests.targets.installed import compiler_of

pytestmark = pytest.mark.usefixtures("compiled_quickly")

LIMIT = 3 << 20
SHAPE = (4096, 8)
FEWER, LESS = (2048, 8), 1 << 20
"""What is run here, not only compiled."""
SMALL = ("float8_e4m3fn", "float8_e5m2", "int4")
CPU = (
    *("float64", "float32", "float16", "bfloat16", *SMALL),
    *("int64", "int32", "int16", "int8", "uint8", "uint32", "bool", "complex64", "complex128"),
)
OTHERS = {
    "tpu:v5e": ("bfloat16", "float8_e4m3fn", "int8", "int4", "complex64"),
    "gpu:h200": ("float64", "float16", "float8_e5m2", "int32", "int4", "complex64"),
}


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


def size(values):
    return jnp.abs(values) if jnp.iscomplexobj(values) else values


def distances(x, y):
    """For each row the largest of its distances to all others, in a type that can hold it."""
    if x.dtype == jnp.bool_:
        return jnp.max(jnp.sum(x[:, None] != y[None], axis=-1), axis=1)
    if x.dtype.name in SMALL:
        x, y = (a.astype(jnp.bfloat16) for a in (x, y))
    return jnp.max(jnp.sum(size((x[:, None] - y[None]) ** 2), axis=-1), axis=1)


def products(x, y):
    return jnp.max(size(x @ y.T), axis=1)


def rows(dtype, seed):
    """Zeros and ones, with so few ones in a row that every type holds all results exactly."""
    ones = np.random.default_rng(seed).integers(0, 2, size=FEWER)
    ones[:, 0] = 0
    return jnp.asarray(ones, jnp.dtype(dtype))


@pytest.mark.parametrize("dtype", CPU)
@pytest.mark.parametrize("function", [distances, products], ids=lambda f: f.__name__)
def test_the_values_of_every_type_are_right_under_the_cap(function, dtype):
    if function is products and dtype == "bool":
        pytest.skip("truth values have no product of matrices")
    x, y = rows(dtype, 0), rows(dtype, 1)
    f = exla.jit(function, memory_limit=LESS, records="off")
    got, plan = f(x, y), f.plan(x, y)
    assert any(isinstance(d, Split) for d in plan.decisions) and plan.compiled_bytes <= LESS
    plain = jax.eval_shape(function, x, y)
    assert got.dtype == plain.dtype and got.shape == plain.shape
    exact = [np.asarray(a, np.complex128 if "complex" in dtype else np.float64) for a in (x, y)]
    want = np.asarray(function(*(jnp.asarray(a) for a in exact)))
    np.testing.assert_array_equal(np.asarray(got, np.float64), want)


@pytest.mark.parametrize("shape", [(2000, 500), (2000, 501)], ids=["divided", "with a remainder"])
def test_an_argument_in_16_bits_is_not_turned_into_float32_before_the_loop(shape):
    def likest(x):
        return jnp.max(jax.nn.softmax(x, axis=-1), axis=0), jnp.sum(x[:-3] * x[3:], axis=1)

    x = jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.bfloat16)
    f = exla.jit(likest, memory_limit=2 * x.nbytes, records="off")
    assert f.plan(x).decisions
    for got, want in zip(f(x), jax.jit(likest)(x.astype(jnp.float32)), strict=True):
        np.testing.assert_allclose(np.asarray(got, np.float32), want, rtol=0.03, atol=0.03 * float(jnp.max(want)))


@pytest.mark.parametrize(
    "case", all_but([("tpu:v5e", "int8")], [(t, d) for t, types in OTHERS.items() for d in types]), ids="-".join
)
def test_other_compilers_obey_the_cap_with_every_type(case):
    target, dtype = case
    compiler_of(target)
    struct = jax.ShapeDtypeStruct(SHAPE, jnp.dtype(dtype))
    for function in (distances, products):
        compiled = exla.compile(function, (struct, struct), target=target, memory_limit=LIMIT, records="off")
        assert compiled.plan.compiled_bytes <= LIMIT


def test_a_type_that_a_compiler_does_not_take_fails_as_with_jax():
    struct = jax.ShapeDtypeStruct(SHAPE, jnp.dtype("int2"))
    with pytest.raises(jax.errors.JaxRuntimeError, match="UNIMPLEMENTED") as plain:
        jax.jit(products).lower(struct, struct).compile()
    with pytest.raises(jax.errors.JaxRuntimeError, match="UNIMPLEMENTED") as ours:
        exla.compile(products, (struct, struct), memory_limit=LIMIT, records="off")
    assert str(ours.value).splitlines()[0] == str(plain.value).splitlines()[0]
