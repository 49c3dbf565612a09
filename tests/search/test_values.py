"""Values of candidates are compared on arguments that tell right programs from wrong ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from exla.call import read
from exla.search.allowed import MOST_DIFFERENT, allowed_for
from exla.search.values import KINDS, Allowed, compare, made_up

F = jax.ShapeDtypeStruct((400, 30), jnp.float32)
I = jax.ShapeDtypeStruct((400,), jnp.int32)  # noqa: E741
B = jax.ShapeDtypeStruct((400,), jnp.bool_)
C = jax.ShapeDtypeStruct((400,), jnp.complex64)
SQUARE = jax.ShapeDtypeStruct((30, 30), jnp.float32)


def agree(right, other, *avals, most_different=MOST_DIFFERENT):
    def running(fn):
        jitted = jax.jit(fn)
        return lambda arguments: jax.tree.leaves(jitted(*arguments))

    return compare(running(right), running(other), avals, Allowed(tolerance=1e-3, most_different=most_different)).agree


WRONG = {
    "all but the largest are lost": (lambda x: x.at[0, 0].set(1e4), lambda x: jnp.zeros_like(x).at[0, 0].set(1e4), F),
    "indices are not looked at": (lambda x, i: x[i], lambda x, i: jnp.broadcast_to(x[0], (400, 30)), F, I),
    "indices are clipped": (lambda x, i: x[i], lambda x, i: x[jnp.minimum(i, 3)], F, I),
    "negative numbers are not looked at": (lambda x: jnp.where(x < 0, jnp.sqrt(-x), x), lambda x: x, F),
    "the sign is lost": (lambda x: x, jnp.abs, F),
    "a truth value is not looked at": (lambda b, x: jnp.where(b[:, None], x, 0), lambda b, x: 0 * x, B, F),
    "imaginary parts are lost": (lambda z: z, lambda z: z.real + 0j, C),
    "one value of a positive program": (lambda x: jnp.log(x), lambda x: jnp.log(x).at[3, 4].add(0.1), F),
    "NaN for a number": (lambda x: x, lambda x: x.at[0, 0].set(jnp.nan), F),
    "a number for NaN": (jnp.log, lambda x: jnp.log(jnp.abs(x)), F),
    "another shape": (lambda x: x, lambda x: x[1:], F),
    "another type": (lambda x: x, lambda x: x.astype(jnp.bfloat16), F),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_program_is_told_from_a_right_one(name):
    right, other, *avals = WRONG[name]
    assert not agree(right, other, *avals)
    assert agree(right, right, *avals)


RIGHT = {
    "sums in another order": (lambda x: x.sum(0), lambda x: x[:200].sum(0) + x[200:].sum(0), F),
    "rounding noise alone": (lambda x: x.sum() - x[::-1].sum(), lambda x: x[::3].sum() - x[::3].sum(), F),
    "a deviation of nothing": (
        lambda x: jnp.std(jnp.broadcast_to(x[:1], x.shape), axis=0),
        lambda x: jnp.std(jnp.broadcast_to(x[:1], x.shape)[:300], axis=0),
        F,
    ),
    "a logarithm of what is not positive": (lambda x: jnp.log(x) + 1, lambda x: 1 + jnp.log(x), F),
    "an inverse": (
        lambda x: jnp.linalg.inv(x - x[::-1] * (1 - 1e-5)),
        lambda x: jnp.linalg.inv((x - x[::-1]) + x[::-1] * 1e-5),
        SQUARE,
    ),
    "random bits": (
        lambda k: jax.random.bits(k, (8,)),
        lambda k: jax.random.bits(k, (8,)),
        jax.eval_shape(jax.random.key, 0),
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_rounding_alone_makes_differ_is_not_wrong(name):
    right, other, *avals = RIGHT[name]
    assert agree(right, other, *avals)


def test_ties_that_rounding_decides_may_differ_and_integers_that_come_from_integers_may_not():
    def few(x):
        return jnp.argsort(x[:, 0]).at[0].add(1)

    def many(x):
        return jnp.argsort(x[:, 0]) + 1

    narrow = jax.ShapeDtypeStruct((4000, 1), jnp.float32)
    assert agree(lambda x: jnp.argsort(x[:, 0]), few, narrow)
    assert not agree(lambda x: jnp.argsort(x[:, 0]), many, narrow)
    whole = jax.ShapeDtypeStruct((10_000,), jnp.int32)
    most = allowed_for(read(jax.make_jaxpr(lambda x: x + 1)(whole), "cpu")).most_different
    assert not agree(lambda x: x + 1, lambda x: (x + 1).at[:9].set(-777), whole, most_different=most)


def test_what_may_differ_is_said_by_the_program():
    def of(fn, *avals, **how):
        return allowed_for(read(jax.make_jaxpr(fn)(*avals), "cpu"), **how)

    assert of(lambda x: jnp.argmax(x, 1), F).most_different == MOST_DIFFERENT
    assert of(lambda x: jnp.argmax(x, 1), F, exact=True).most_different == 0
    assert of(lambda i: i + 1, I).most_different == 0
    assert of(jnp.sin, F, exact=True).tolerance < of(jnp.sin, F).tolerance
    assert tuple(of(jnp.sin, F).kinds) == KINDS
    inside = jax.jit(lambda x: jax.lax.while_loop(lambda s: s.sum() < 1e3, lambda s: s * 2, x))
    assert of(lambda x: inside(x) + 1, F).kinds == ("positive",)


def test_indices_are_those_of_every_axis():
    x, i = made_up((jax.ShapeDtypeStruct((1, 7, 500), jnp.float32), jax.ShapeDtypeStruct((300,), jnp.uint8)), "signed")
    assert set(np.asarray(i)) == set(range(7)) and float(x.min()) < -0.9
