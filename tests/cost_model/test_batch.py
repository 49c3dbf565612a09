"""Programs put together into batches of fixed sizes."""

import dataclasses

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exla.cost_model.batch import UNUSED, bucket, collate, ranks, with_candidates
from exla.cost_model.normalise import Normaliser, compressed
from tests.cost_model.made import fitted, made_sample

OF_CANDIDATES = ("node_config", "graph_config", "runtime")
A, B = made_sample(1), made_sample(2, nodes=20, edges=25, config_nodes=2, candidates=4)


@given(st.integers(0, 10**7))
def test_a_bucket_is_large_enough_and_at_most_a_quarter_padding(size):
    assert size <= bucket(size) <= max(16, 1.25 * size + 1)


def test_buckets_are_few():
    assert len({bucket(size) for size in range(1, 100_000)}) < 60


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1))
def test_places_are_those_of_scipy(values):
    from scipy.stats import rankdata

    expected = (rankdata(values) - 1) / max(1, len(values) - 1)
    np.testing.assert_allclose(ranks(np.array(values)), expected, rtol=1e-6)


def test_runtimes_that_float32_would_tie_have_different_places():
    runtime = np.array([428_776_379, 428_776_378, 428_776_380], np.int64)
    assert len(np.unique(runtime.astype(np.float32))) == 1
    np.testing.assert_array_equal(ranks(runtime), [0.5, 0, 1])


def test_every_node_edge_and_configuration_is_where_it_belongs():
    normaliser = fitted([A, B])
    batch = collate([A, B], normaliser)
    first = A.graph.num_nodes
    real = batch.node_graph[batch.node_mask]
    np.testing.assert_array_equal(np.bincount(real), [A.graph.num_nodes, B.graph.num_nodes])
    edges = np.stack([batch.graph.receivers, batch.graph.senders], 1)
    of_b = edges[A.graph.num_edges : A.graph.num_edges + B.graph.num_edges] - first
    assert {tuple(e) for e in of_b} == {tuple(e) for e in B.graph.edge_index}
    for neighbours, mine in ((batch.producers, 0), (batch.consumers, 1)):
        np.testing.assert_array_equal(
            neighbours.count[:first], np.bincount(A.graph.edge_index[:, mine], minlength=first)
        )
        assert not neighbours.count[~batch.node_mask].any(), "padding has no neighbours"
    assert (edges[A.graph.num_edges + B.graph.num_edges :] >= first + B.graph.num_nodes).all()
    ids = batch.config_ids[batch.config_graph == 1] - first
    np.testing.assert_array_equal(ids, B.graph.node_config_ids)
    np.testing.assert_array_equal(batch.node_config[batch.config_graph == 1, :4], B.node_config.swapaxes(0, 1))
    assert (batch.node_config[:, 4:][batch.config_graph == 1] == UNUSED).all()
    np.testing.assert_array_equal(batch.candidate_mask.sum(1), [6, 4, 0])
    np.testing.assert_array_equal(batch.rank[0], ranks(A.runtime))


def test_other_candidates_of_the_same_programs_make_the_batch_that_collate_would_make():
    normaliser = fitted([A, B])
    few = [dataclasses.replace(s, **{k: getattr(s, k)[1:3] for k in OF_CANDIDATES}) for s in (A, B)]
    again = with_candidates(collate([A, B], normaliser, num_configs=7), few, normaliser)
    expected = collate(few, normaliser, num_configs=7)
    for x, y in zip(jax.tree.leaves(again), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(x, y)
    with pytest.raises(ValueError, match="num_configs=3 is too small"):
        with_candidates(collate(few, normaliser, num_configs=3), [A, B], normaliser)


@pytest.mark.parametrize("size", ["num_nodes", "num_edges", "num_graphs", "num_config_nodes", "num_configs"])
def test_a_size_that_is_too_small_is_an_error(size):
    with pytest.raises(ValueError, match=f"{size}=1 is too small"):
        collate([A, B], fitted([A, B]), **{size: 1})


def test_configurations_of_another_graph_are_an_error():
    wrong = dataclasses.replace(A, node_config=B.node_config)
    with pytest.raises(ValueError, match=r"made 1: configurations of shape \(4, 2, 18\), expected \(4, 4, 18\)"):
        collate([wrong], fitted([A]))
    wrong = dataclasses.replace(A, graph_config=A.graph_config[:, :5])
    with pytest.raises(ValueError, match=r"\(6, 5\), expected \(6, 24\)"):
        collate([wrong], fitted([A]))


def test_features_have_mean_0_and_deviation_1_and_what_never_varies_is_dropped():
    graph = dataclasses.replace(A.graph, node_feat=A.graph.node_feat.copy())
    graph.node_feat[:, 7] = 3
    normaliser = Normaliser.fit([graph])
    scaled = (compressed(graph.node_feat) - normaliser.mean) * normaliser.scale
    np.testing.assert_allclose(np.delete(scaled, 7, 1).std(0), 1, rtol=1e-3)
    assert not normaliser.node_feat(graph)[:, 7].any()
    unseen = dataclasses.replace(graph, node_feat=graph.node_feat * 0 + 1e30)
    assert np.abs(normaliser.node_feat(unseen)).max() <= 4
