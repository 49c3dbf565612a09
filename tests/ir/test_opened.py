"""Primitives that libraries define are what they compute, where that can be traced."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import mlir

import exla
from exla.ir.program import canonical


def weighed(x, v, *, width):
    """One step of a smoother, with a loop as libraries' solvers have."""
    kernel = jnp.exp(-jnp.square(x[:, None] - x[None]) / width)
    return jax.lax.fori_loop(0, 3, lambda _, v: kernel @ v / jnp.sum(kernel, axis=1), v)


def primitive(name, impl, lowered=weighed, shape=None):
    """A primitive of a library's: what it computes is known by its implementation and its lowering alone."""
    made = Primitive(name)
    made.def_impl(impl)
    made.def_abstract_eval(lambda x, v, **_: ShapedArray(shape or v.shape, v.dtype))
    mlir.register_lowering(made, mlir.lower_fun(lowered, multiple_results=False))
    return made


def on_numpy(x, v, *, width):
    return np.asarray(weighed(np.asarray(x), np.asarray(v), width=width))


@functools.wraps(weighed)
def wrapped(*arguments, **options):
    return weighed(*arguments, **options)


PRIMITIVES = {
    "plain": primitive("test_smoothed", weighed),
    "jitted": primitive("test_smoothed", jax.jit(weighed, static_argnames="width")),
    "wrapped": primitive("test_smoothed", wrapped),
    "partial": primitive("test_smoothed", functools.partial(weighed)),
}
INNER = PRIMITIVES["plain"]
PRIMITIVES["in another"] = primitive("test_outer", lambda x, v, *, width: INNER.bind(x, v, width=width))
CLOSED = {
    "not traceable": primitive("test_closed", on_numpy),
    "of another shape": primitive("test_closed", lambda x, v, *, width: weighed(x, v, width=width)[:1]),
}


def program_of(smoothed, n=8):
    x = jax.ShapeDtypeStruct((n,), jnp.float32)
    return canonical(jax.make_jaxpr(lambda x, v: smoothed.bind(x, v, width=2.0) + 1)(x, x), "cpu")


@pytest.mark.parametrize("name", PRIMITIVES)
def test_a_primitive_of_a_library_is_what_it_computes(name):
    names = {eqn.primitive.name for eqn in program_of(PRIMITIVES[name]).eqns}
    assert {"exp", "add"} <= names and not names & {"test_smoothed", "test_outer", "jit"}


@pytest.mark.parametrize("name", CLOSED)
def test_what_cannot_be_traced_stays_as_it_is(name):
    assert [eqn.primitive.name for eqn in program_of(CLOSED[name]).eqns] == ["test_closed", "add"]


def test_it_is_split_under_a_cap_and_its_lines_are_the_users():
    generator = np.random.default_rng(0)
    x, v = generator.standard_normal((2, 1500), dtype=np.float32)

    def fn(x, v):
        return INNER.bind(x, v, width=2.0)

    run = exla.jit(fn, memory_limit="3MiB", records="off")
    plan = run.plan(x, v)
    assert not plan.untouched and plan.compiled_bytes <= 3 << 20 < plan.plain.total
    kernel = np.exp(-((x[:, None].astype(np.float64) - x) ** 2) / 2)
    expected = v.astype(np.float64)
    for _ in range(3):
        expected = kernel @ expected / kernel.sum(1)
    np.testing.assert_allclose(run(x, v), expected, rtol=1e-4, atol=1e-5)
    split = next(words for words in plan.words if words.startswith("split"))
    assert "test_opened.py" in split and ".fn)" in split
