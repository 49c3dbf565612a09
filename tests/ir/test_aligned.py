"""Indices that count along an axis are that axis: found however they are spelled, and nothing else is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import exla
from exla import _compat
from exla.ir.emit import emit
from exla.ir.primitives import SCATTERS
from exla.ir.program import canonical
from exla.passes.unless import EXPANSIONS

pytestmark = pytest.mark.usefixtures("compiled_quickly")

ROWS, COLUMNS = 7, 300
NUMBERS = np.random.default_rng(0).integers(-9, 9, (ROWS, COLUMNS)).astype(np.float32)
SQUARE = NUMBERS[:, :ROWS]
PLACES = np.array([3, 299, 0, -1, 12, 3, -300], np.int32)
"""Some count from the end, as the places of an array may."""
BEYOND = np.array([3, 300, 0, -301, 12, 3, 1000], np.int32)

COUNTING = {
    "labels": (lambda x, i: x[jnp.arange(ROWS), i], NUMBERS, PLACES),
    "labels of columns": (lambda x, i: x.T[i, jnp.arange(ROWS)], NUMBERS, PLACES),
    "the first rows": (lambda x, i: x[jnp.arange(4), i[:4]], NUMBERS, PLACES),
    "from one on": (lambda x, i: x[jnp.arange(1, ROWS), i[1:]], NUMBERS, PLACES),
    "from one on, by NumPy": (lambda x, i: x[np.arange(1, ROWS), i[1:]], NUMBERS, PLACES),
    "bounded below the first": (lambda x, i: x[jnp.maximum(jnp.arange(2, 6), 2), i[:4]], NUMBERS, PLACES),
    "another diagonal": (lambda x: jnp.diagonal(x, offset=3), SQUARE),
    "a lower diagonal": (lambda x: jnp.diagonal(x, offset=-3), NUMBERS),
    "a grid": (lambda x, i: x[jnp.arange(ROWS)[:, None], i[None, :]], NUMBERS, PLACES),
    "windows": (lambda x, i: x.reshape(ROWS, 10, 30)[jnp.arange(ROWS), :, i % 30], NUMBERS, PLACES),
    "three axes": (
        lambda x, i: x.reshape(ROWS, 10, 30)[jnp.arange(ROWS)[:, None], jnp.arange(10)[None], (i % 30)[:, None]],
        NUMBERS,
        PLACES,
    ),
    "vmapped": (lambda x, i: jax.vmap(lambda y: y[jnp.arange(ROWS), i])(jnp.stack([x, 2 * x])), NUMBERS, PLACES),
    "counted by NumPy": (lambda x, i: x[np.arange(ROWS, dtype=np.int64), i], NUMBERS, PLACES),
    "filled": (lambda x, i: x.at[jnp.arange(ROWS), i].get(mode="fill", fill_value=5.0), NUMBERS, BEYOND),
    "clipped": (lambda x, i: x.at[jnp.arange(ROWS), i].get(mode="clip"), NUMBERS, BEYOND),
    "diagonal": (lambda x: jnp.diag(x), SQUARE),
    "diagonal of blocks": (lambda x: jnp.diagonal(x.reshape(ROWS, 50, 6)[:, :ROWS], axis1=0, axis2=1), NUMBERS),
    "set": (lambda x, i: x.at[jnp.arange(ROWS), i].set(1.0), NUMBERS, PLACES),
    "set, some dropped": (lambda x, i: x.at[jnp.arange(ROWS), i].set(1.0), NUMBERS, BEYOND),
    "multiplied": (lambda x, i: x.at[jnp.arange(ROWS), i].multiply(3.0), NUMBERS, PLACES),
    "added to windows": (
        lambda x, i: x.reshape(ROWS, 10, 30).at[jnp.arange(ROWS), :, i % 30].add(2.0),
        NUMBERS,
        PLACES,
    ),
    "diagonal filled": (lambda x: jnp.fill_diagonal(x, -1.0, inplace=False), SQUARE),
    "gradient of labels": (lambda x, i: jax.grad(lambda y: jnp.sum(y[jnp.arange(ROWS), i] ** 2))(x), NUMBERS, PLACES),
    "in a loop": (
        lambda x, i: jax.lax.scan(lambda c, k: (c, c[jnp.arange(ROWS), k]), x, jnp.stack([i, i + 1]))[1],
        NUMBERS,
        PLACES[[0, 2, 4, 5, 0, 2, 4]],
    ),
}

OTHERS = {
    "beyond from one on": (
        lambda x, i: x.at[jnp.arange(3, ROWS + 3), i].get(mode="fill", fill_value=5.0),
        NUMBERS,
        PLACES,
    ),
    "set from one on": (lambda x, i: x.at[jnp.arange(1, ROWS), i[1:]].set(1.0), NUMBERS, PLACES),
    "from the end": (lambda x, i: x[jnp.arange(-4, 0), i[:4]], NUMBERS, PLACES),
    "bounded in between": (lambda x, i: x[jnp.maximum(jnp.arange(2, 6), 3), i[:4]], NUMBERS, PLACES),
    "backwards": (lambda x, i: x[jnp.arange(ROWS)[::-1], i], NUMBERS, PLACES),
    "every second": (lambda x, i: x[jnp.arange(0, ROWS, 2), i[::2]], NUMBERS, PLACES),
    "again and again": (lambda x, i: x[jnp.arange(ROWS) % 3, i], NUMBERS, PLACES),
    "wrapped": (lambda x, i: x.T[jnp.arange(COLUMNS).astype(jnp.uint8), jnp.zeros(COLUMNS, int)], NUMBERS, PLACES),
    "counted in 8 bits": (
        lambda x, i: x.T[jax.lax.iota(jnp.uint8, COLUMNS), jnp.zeros(COLUMNS, int)],
        NUMBERS,
        PLACES,
    ),
    "beyond the last": (
        lambda x: x.at[jnp.arange(9), jnp.arange(9)].get(mode="fill", fill_value=5.0),
        SQUARE,
    ),
    "some rows set": (lambda x, i: x.at[jnp.arange(4), i[:4]].set(1.0), NUMBERS, PLACES),
    "NumPy's, another order": (lambda x, i: x[np.array([0, 1, 2, 3, 4, 6, 5]), i], NUMBERS, PLACES),
    "rows": (lambda x, i: x[jnp.arange(ROWS)], NUMBERS, PLACES),
    "clamped": (lambda x, i: x[jnp.clip(jnp.arange(ROWS), 1, 5), i], NUMBERS, PLACES),
    "at least one": (lambda x, i: x[jnp.maximum(jnp.arange(ROWS), 1), i], NUMBERS, PLACES),
    "at most five": (lambda x, i: x[jnp.minimum(jnp.arange(ROWS), 5), i], NUMBERS, PLACES),
    "clamped by lax": (lambda x, i: x[jax.lax.clamp(1, jnp.arange(ROWS), 9), i], NUMBERS, PLACES),
    "there and back": (
        lambda x, i: x[jnp.where(jnp.arange(ROWS) < 3, 6 - jnp.arange(ROWS), jnp.arange(ROWS)), i],
        NUMBERS,
        PLACES,
    ),
    "looked up": (lambda x, i: x[jnp.abs(i) % ROWS, i], NUMBERS, PLACES),
}


def batched(jaxpr):
    """How many axes of gathers and scatters are batch axes."""
    found = 0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in SCATTERS | {"gather"}:
            found += len(eqn.params["dimension_numbers"].operand_batching_dims)
        found += sum(batched(body.jaxpr) for body in _compat.bodies(eqn))
    return found


def checked(fn, arguments):
    program = canonical(jax.make_jaxpr(fn)(*arguments))
    got = jax.jit(emit(program, EXPANSIONS))(*program.consts, *arguments)
    want = jax.jit(fn)(*arguments)
    np.testing.assert_array_equal(got[0], want)
    assert got[0].dtype == want.dtype
    return program


@pytest.mark.parametrize("name", COUNTING)
def test_what_counts_along_an_axis_is_that_axis(name):
    fn, *arguments = COUNTING[name]
    program = checked(fn, arguments)
    assert batched(program.jaxpr) > batched(jax.make_jaxpr(fn)(*arguments).jaxpr)


@pytest.mark.parametrize("name", OTHERS)
def test_what_does_not_stays_as_it_is(name):
    fn, *arguments = OTHERS[name]
    program = checked(fn, arguments)
    assert batched(program.jaxpr) == batched(jax.make_jaxpr(fn)(*arguments).jaxpr)


def test_a_part_of_indices_that_are_sorted_and_unique_is_unique():
    def fn(x, i):
        return x.at[jnp.arange(ROWS), i].set(1.0, indices_are_sorted=True, unique_indices=True)

    (eqn,) = (e for e in checked(fn, (NUMBERS, PLACES)).eqns if e.primitive.name == "scatter")
    assert not eqn.params["indices_are_sorted"] and eqn.params["unique_indices"]


def logits(x, y):
    return x @ y.T


LOSSES = {
    "labels": lambda x, y, i: -jnp.mean(jax.nn.log_softmax(logits(x, y))[jnp.arange(x.shape[0]), i]),
    "both ways": lambda x, y, i: (
        -jnp.mean(jnp.diag(jax.nn.log_softmax(logits(x, y), 0)) + jnp.diag(jax.nn.log_softmax(logits(x, y), 1)))
    ),
    "all but itself": lambda x, y, i: jnp.mean(
        jax.nn.logsumexp(jnp.fill_diagonal(logits(x, y), -jnp.inf, inplace=False), axis=1)
    ),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("differentiated", [False, True], ids=["value", "gradient"])
def test_losses_by_labels_are_split(name, differentiated):
    loss = jax.value_and_grad(LOSSES[name]) if differentiated else LOSSES[name]
    generator = np.random.default_rng(1)
    with jax.enable_x64(True):
        x, y = (jnp.asarray(generator.normal(size=(1024, 8))) for _ in range(2))
        i = jnp.asarray(generator.integers(0, 1024, 1024))
        f = exla.jit(loss, memory_limit="1MiB", records="off")
        assert f.plan(x, y, i).compiled_bytes <= 1 << 20 < 8 * 1024 * 1024
        for got, want in zip(jax.tree.leaves(f(x, y, i)), jax.tree.leaves(loss(x, y, i)), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-13)


def in_column_order(x, k):
    rows = jax.lax.broadcasted_iota(jnp.int32, (ROWS, ROWS), 0)
    return x[jnp.reshape(rows, (ROWS, ROWS), order="F"), k]


def below_a_bound(x, k):
    rows = jnp.arange(ROWS)
    return x[jnp.where(rows < jax.lax.convert_element_type(ROWS - 0.9, jnp.int32), rows, 0), k[0]]


NOT_ALIGNED = {"another order of elements": in_column_order, "a bound that is converted": below_a_bound}


@pytest.mark.parametrize("name", NOT_ALIGNED)
def test_what_only_looks_as_if_it_counted_reads_what_it_read(name):
    columns = np.random.default_rng(0).integers(0, NUMBERS.shape[1], (ROWS, ROWS))
    program = canonical(jax.make_jaxpr(NOT_ALIGNED[name])(NUMBERS, columns))
    got = jax.jit(emit(program, EXPANSIONS))(*program.consts, NUMBERS, columns)[0]
    np.testing.assert_array_equal(got, NOT_ALIGNED[name](NUMBERS, columns))


def complex_labels(x, h):
    return x[jnp.arange(ROWS), jnp.argmax(jnp.abs(h + 1j), 1)]


def drawn_labels(x, h):
    return x[jnp.arange(ROWS), jax.random.randint(KEY, (ROWS,), 0, 3)]


def labels_of_a_deep_network(x, h):
    for _ in range(500):
        h = jnp.tanh(h * 2.0) + 1.0
    return x[jnp.arange(ROWS), jnp.argmax(h, 1)]


def labels_after_many_steps(x, h):
    labels = jnp.argmax(h, 1)
    for _ in range(500):
        labels = jnp.maximum(labels + 1, 2)
    return x[jnp.arange(ROWS), labels % 3]


KEY = jax.random.key(0)


@pytest.mark.parametrize(
    "fn", [complex_labels, drawn_labels, labels_of_a_deep_network, labels_after_many_steps], ids=lambda f: f.__name__
)
def test_labels_may_come_from_anywhere(fn):
    h = np.random.default_rng(0).normal(size=(ROWS, 3)).astype(np.float32)
    program = canonical(jax.make_jaxpr(fn)(NUMBERS, h))
    got = jax.jit(emit(program, EXPANSIONS))(*program.consts, NUMBERS, h)[0]
    np.testing.assert_array_equal(got, fn(NUMBERS, h))


def test_an_axis_of_one_component_is_not_counted_along():
    def fn(x, i):
        index = jnp.concatenate([jax.lax.broadcasted_iota(jnp.int32, (ROWS, 1), 1), i[:, None]], 1)
        numbers = jax.lax.GatherDimensionNumbers(offset_dims=(), collapsed_slice_dims=(0, 1), start_index_map=(0, 1))
        return jax.lax.gather(x, index, numbers, (1, 1))

    program = canonical(jax.make_jaxpr(fn)(NUMBERS, PLACES))
    got = jax.jit(emit(program, EXPANSIONS))(*program.consts, NUMBERS, PLACES)[0]
    np.testing.assert_array_equal(got, fn(NUMBERS, PLACES))


def test_constants_beyond_what_counts_are_read(monkeypatch):
    with jax.enable_x64(True):
        table = np.full(ROWS, 2**63 + 5, np.uint64)

        def fn(x):
            return x[jnp.arange(ROWS), (jnp.asarray(table) >> 3) % 3]

        program = canonical(jax.make_jaxpr(fn)(NUMBERS))
        got = jax.jit(emit(program, EXPANSIONS))(*program.consts, NUMBERS)[0]
        np.testing.assert_array_equal(got, fn(NUMBERS))
