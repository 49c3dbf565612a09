"""One body for chunk loops that are alike: it is the one that each of them would have by itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import exla
from exla.passes.split import body
from exla.passes.split.alike import _frozen, key_of
from tests.passes.test_kept import attended

ROWS, WIDTH = 96, 8
GENERATOR = np.random.default_rng(0)
WEIGHTS = [GENERATOR.standard_normal((WIDTH, WIDTH), dtype=np.float32) for _ in range(3)]
X = GENERATOR.standard_normal((ROWS, WIDTH), dtype=np.float32)


def filtered(weights, x):
    """What is carried on, and what reads its neighbours."""
    for w in weights:
        x = lax.cumsum(jnp.tanh(x @ w), axis=0)
        x = x[1:-1] - 0.5 * (x[:-2] + x[2:])
        x = lax.pad(x, np.float32(0), ((1, 1, 0), (0, 0, 0)))
    return x


def loss(weights, x):
    return jnp.sum(attended(weights, x) ** 2)


def text(program):
    """A program in words, with the lines and the scopes of its equations."""
    return program.jaxpr.pretty_print(source_info=True, name_stack=True), [str(c) for c in program.consts]


@pytest.mark.parametrize("function", [attended, filtered, jax.grad(loss)], ids=["attended", "filtered", "gradient"])
@pytest.mark.parametrize("share", [4, 8])
def test_a_body_that_is_known_is_the_one_that_would_be_traced(function, share, monkeypatch):
    of_all, traced, again = body.LoopMaker.body, body.LoopMaker._traced, []

    def checked(maker, size):
        avals = maker._avals(size)
        before = key_of(maker, size, avals) in maker.region.program.known.get("bodies", {})
        found = of_all(maker, size)
        if before:
            (program, parts), (known, known_parts) = traced(maker, size, avals), found
            assert (text(program), parts) == (text(known), known_parts)
            again.append(size)
        return found

    monkeypatch.setattr(body.LoopMaker, "body", checked)
    whole = jax.jit(function).lower(WEIGHTS, X).compile().memory_analysis()
    fixed = whole.argument_size_in_bytes + whole.output_size_in_bytes
    limit = fixed + whole.temp_size_in_bytes // share
    space = exla.jit(function, memory_limit=limit, records="off").space(WEIGHTS, X)
    assert space.ranked(space.root)
    assert again


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (0.0, -0.0),
        (1, 1.0),
        (1, True),
        ((1, 2), [1, 2]),
        (np.float32(1), np.float64(1)),
        (1.0, np.float64(1)),
        (np.zeros(2), -np.zeros(2)),
        (np.zeros((2, 1)), np.zeros((1, 2))),
        ({"a": 1}, {"a": 2}),
        (lambda x: x, lambda x: x),
    ],
)
def test_parameters_that_are_not_the_same_are_not_equal(one, other):
    assert _frozen(one) == _frozen(one)
    assert _frozen(one) != _frozen(other)
