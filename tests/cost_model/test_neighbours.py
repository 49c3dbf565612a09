"""Sums over edges."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exla.cost_model.batch import collate
from exla.cost_model.neighbours import LISTED, beyond_table, listed, total
from tests.cost_model.made import fitted, made_sample

NODES = 7
EDGES = st.lists(st.tuples(st.integers(0, NODES - 1), st.integers(0, NODES - 1)), max_size=40)


def both(edges, spare=0):
    """Neighbours by the first and by the second of each edge, and as a matrix of how often each edge is there."""
    first, second = np.array(edges, np.int32).reshape(-1, 2).T
    beyond = [int(np.maximum(np.bincount(x, minlength=1) - LISTED, 0).sum()) for x in (first, second)]
    here = listed(first, second, NODES, max(beyond) + spare)
    opposite = listed(second, first, NODES, max(beyond) + spare)
    matrix = np.zeros((NODES, NODES))
    np.add.at(matrix, (first, second), 1)
    return here, opposite, matrix


@settings(deadline=None, max_examples=60)
@given(EDGES, st.integers(0, 3))
def test_sums_and_their_gradients_are_those_of_the_matrix_of_edges(edges, spare):
    here, opposite, matrix = both(edges, spare)
    rng = np.random.default_rng(0)
    values, weight = rng.normal(size=(2, NODES, 2, 3))
    found, back = jax.vjp(lambda x: total(here, opposite, x), jnp.asarray(values, jnp.float32))
    np.testing.assert_allclose(found, np.einsum("nm,mch->nch", matrix, values), atol=1e-5)
    (gradient,) = back(jnp.asarray(weight, jnp.float32))
    np.testing.assert_allclose(gradient, np.einsum("nm,nch->mch", matrix, weight), atol=1e-5)
    np.testing.assert_array_equal(here.count, matrix.sum(1))


def test_what_a_padding_node_holds_reaches_nobody():
    sample = made_sample(3, nodes=8, edges=60)
    batch = collate([sample], fitted([sample]), num_nodes=12)
    assert batch.producers.more.size > 0
    values = np.where(batch.node_mask[:, None, None], 1.0, np.nan).astype(np.float32) * np.ones((12, 1, 2), np.float32)
    for mine, opposite in ((batch.producers, batch.consumers), (batch.consumers, batch.producers)):
        found = np.asarray(total(mine, opposite, values))
        np.testing.assert_array_equal(found[..., 0], np.asarray(mine.count)[:, None])
        assert not mine.count[~batch.node_mask].any()


@pytest.mark.parametrize("edges", [0, 25, 90])
def test_room_is_made_for_edges_that_are_beyond_the_table(edges):
    sample = made_sample(1, nodes=9, edges=edges)
    beyond = beyond_table(sample.graph)
    batch = collate([sample], fitted([sample]))
    assert (batch.producers.more.size >= beyond) and ((batch.producers.more.size > 0) == (beyond > 0))
    if beyond:
        with pytest.raises(ValueError, match=f"num_more_edges={beyond - 1} is too small"):
            collate([sample], fitted([sample]), num_more_edges=beyond - 1)
