"""A product reads what its operand is a transposed copy of."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import exla
from exla.call import read
from exla.errors import ReplayMiss
from exla.ir.emit import emit
from exla.passes.decisions import Fold, Split
from exla.passes.fold import enumerate_folds
from exla.passes.replay import replay
from exla.passes.unless import EXPANSIONS

pytestmark = pytest.mark.usefixtures("compiled_quickly")


def drawn(*shapes):
    generator = np.random.default_rng(0)
    return [generator.standard_normal(s, dtype=np.float32) for s in shapes]


def program_of(fn, *args):
    return read(jax.make_jaxpr(fn)(*args), "cpu")


def is_transposed(program):
    return any(eqn.primitive.name == "transpose" for eqn in program.eqns)


@pytest.mark.parametrize("operand", [0, 1])
@pytest.mark.parametrize("order", [o for o in itertools.permutations(range(4)) if o != (0, 1, 2, 3)], ids=str)
def test_what_can_be_multiplied_as_it_lies_is_and_nothing_else(order, operand):
    """An axis of batches, two that are summed over and one that is free, which lay in any order."""
    lies = np.argsort(order)
    x, other = drawn([(5, 4, 2, 6)[axis] for axis in lies], (5, 3, 4, 2))

    def fn(x, other):
        pair, summed = [lax.transpose(x, order), other], [[1, 2], [2, 3]]
        step = -1 if operand else 1
        return lax.dot_general(*pair[::step], (summed[::step], ([0], [0])))

    program = program_of(fn, x, other)
    found = list(enumerate_folds(program, 1))
    assert bool(found) == (list(lies) == [0, 3, 1, 2])
    for fold in found:
        folded = replay(program, fold)
        assert fold.operand == operand and not is_transposed(folded)
        np.testing.assert_allclose(emit(folded, EXPANSIONS)(x, other)[0], fn(x, other), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("fn", "shapes"),
    [
        (lambda x, y: lax.dot_general(x.transpose(2, 1, 0), y, (([0], [0]), ([], []))), ((3, 4, 5), (5, 2))),
        (lambda x, y: (x.T + 1) @ y, ((4, 3), (4, 2))),
        (lambda x, y: x @ y, ((3, 4), (4, 2))),
        (lambda x, y: jnp.sin(x).T @ y, ((4, 3), (4, 2))),
    ],
    ids=["free axes change places", "a sum", "nothing transposed", "written in that order"],
)
def test_nothing_is_offered_where_the_result_would_lie_otherwise_or_nothing_is_a_copy(fn, shapes):
    assert not list(enumerate_folds(program_of(fn, *drawn(*shapes)), 1))


def test_small_copies_stay_and_a_fold_that_does_not_apply_is_missed():
    program = program_of(lambda x: x @ x.T, *drawn((30, 4)))
    (found,) = enumerate_folds(program, 480)
    assert not list(enumerate_folds(program, 481))
    with pytest.raises(ReplayMiss, match="no product of a transposed copy"):
        replay(replay(program, found), Fold(path=(), site=replay(program, found).site(0), operand=1))


def alike(rows):
    """A Gram matrix of wide rows, of which little is kept."""
    counts = jnp.zeros((400, 256)).at[jnp.arange(400)[:, None], rows].add(1)
    return jax.lax.top_k(counts @ counts.T, 3)


def test_a_gram_matrix_of_wide_rows_is_cut_into_more_than_single_rows():
    """Rows and their transposed copy are 800 KiB, and the matrix 625 KiB."""
    rows = np.random.default_rng(0).integers(0, 256, (400, 30))
    f = exla.jit(alike, memory_limit="700KiB", records="off")
    plan = f.plan(rows)
    assert any(isinstance(d, Fold) for d in plan.decisions)
    assert all(d.chunk > 1 for d in plan.decisions if isinstance(d, Split))
    for got, want in zip(f(rows), alike(rows), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_matrix_times_a_vector_needs_no_copy_of_the_matrix():
    def gradient(w, x, y):
        features = jnp.sin(x)
        return features.T @ (features @ w - y)

    w, x, y = drawn((200,), (1000, 200), (1000,))
    limit = 2 * x.nbytes + x.nbytes // 4
    f = exla.jit(gradient, memory_limit=limit, records="off")
    plan = f.plan(w, x, y)
    assert plan.compiled_bytes <= limit
    with jax.enable_x64(True):
        want = gradient(*(np.float64(v) for v in (w, x, y)))
    np.testing.assert_allclose(f(w, x, y), want, rtol=1e-4, atol=1e-3)
