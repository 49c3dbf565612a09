"""Ranking with saved weights, as a search does it."""

import dataclasses

import jax
import numpy as np
import pytest

from exla.cost_model.batch import collate
from exla.cost_model.checkpoint import Trained, save
from exla.cost_model.footing import nodes_on_one_footing, tile_configs_on_one_footing
from exla.cost_model.inputs import Inputs
from exla.cost_model.models import MODELS
from exla.cost_model.ranker import _apply_of, load_ranker
from exla.cost_model.transforms import prune
from exla.errors import CheckpointError, GraphError
from tests.cost_model.made import fitted, made_sample, weights

pytestmark = pytest.mark.usefixtures("compiled_quickly")
SAMPLE = made_sample(1, nodes=30, edges=40, candidates=20)
SAMPLE.graph_config[::2, 8:16] = 0  # an empty list of bounds
SEEN = dataclasses.replace(SAMPLE.graph, node_feat=nodes_on_one_footing(SAMPLE.graph.node_feat))
"""The graph as models see it."""
OPTIONS = {"split_sage": {"hidden": 8, "blocks": 1}, "tile_mlp": {"hidden": 8, "layers": 1}}


def saved(path, name="split_sage", inputs=None, seed=0):
    model, normaliser = MODELS.get(name)(**OPTIONS[name]), fitted([SAMPLE])
    trained = Trained(
        model=name,
        options=OPTIONS[name],
        variables=weights(model, collate([SAMPLE], normaliser), seed),
        normaliser=normaliser,
        inputs=inputs or Inputs(),
    )
    save(path, trained)
    return trained


def test_scores_are_those_of_the_model(tmp_path):
    trained = saved(tmp_path / "w.npz")
    scores = load_ranker(tmp_path / "w.npz").score(SAMPLE.graph, SAMPLE.node_config)
    model = MODELS.get("split_sage")(**OPTIONS["split_sage"])
    seen = dataclasses.replace(SAMPLE, graph=SEEN)
    expected = jax.jit(model.apply)(trained.variables, collate([seen], trained.normaliser))[0]
    assert scores.shape == (20,) and scores.dtype == np.float32
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-5)


def test_nodes_and_configurations_are_on_one_footing_and_may_have_been_before(tmp_path):
    """As in training; scores of what is not would be others."""
    kernel = SAMPLE.graph_config
    told = SAMPLE.graph.node_feat.copy()
    told[:, 21:27], told[:, 134:140] = [5, 7, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0]
    graph = dataclasses.replace(SAMPLE.graph, node_feat=told)
    same = dataclasses.replace(graph, node_feat=nodes_on_one_footing(told))
    saved(tmp_path / "kernel.npz", "tile_mlp")
    saved(tmp_path / "nodes.npz")
    for name, configs, again in (
        ("nodes", SAMPLE.node_config, SAMPLE.node_config),
        ("kernel", kernel, tile_configs_on_one_footing(kernel)),
    ):
        trained = load_ranker(tmp_path / f"{name}.npz")
        scores = trained.score(graph, configs)
        np.testing.assert_array_equal(scores, trained.score(same, again))
        nothing = {"node_config": np.zeros((20, 4, 18), np.float32), "graph_config": again}
        seen = dataclasses.replace(SAMPLE, graph=same, **(nothing if name == "kernel" else {}))
        model = MODELS.get(trained.trained.model)(**trained.trained.options)
        batch = collate([seen], trained.trained.normaliser)
        expected = jax.jit(model.apply)(trained.trained.variables, batch)[0]
        np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-5)


def test_what_was_done_to_graphs_in_training_is_done_again(tmp_path):
    saved(tmp_path / "whole.npz")
    saved(tmp_path / "pruned.npz", inputs=Inputs(prune_hops=1))
    less = prune(SAMPLE.graph, 1)
    assert less.graph.num_nodes < SAMPLE.graph.num_nodes
    by_hand = load_ranker(tmp_path / "whole.npz").score(less.graph, SAMPLE.node_config[:, less.configs])
    scores = load_ranker(tmp_path / "pruned.npz").score(SAMPLE.graph, SAMPLE.node_config)
    np.testing.assert_allclose(scores, by_hand, rtol=1e-4, atol=1e-5)


def test_tile_sizes_are_ranked_with_the_same_call(tmp_path):
    saved(tmp_path / "w.npz", "tile_mlp")
    scores = load_ranker(tmp_path / "w.npz").score(SAMPLE.graph, SAMPLE.graph_config)
    assert scores.shape == (20,) and len(np.unique(scores)) == 20


@pytest.mark.parametrize("count", [0, 1, Inputs().configs + 5])
def test_any_number_of_candidates_is_scored_each_in_its_place(tmp_path, count):
    saved(tmp_path / "w.npz", "tile_mlp")  # scores each candidate by itself, so that groups cannot matter
    ranker = load_ranker(tmp_path / "w.npz")
    configs = np.random.default_rng(0).integers(0, 50, (count, 24)).astype(np.float32)
    scores = ranker.score(SAMPLE.graph, configs)
    assert scores.shape == (count,)
    for i in {0, count // 2, count - 1} if count else ():
        np.testing.assert_allclose(scores[i], ranker.score(SAMPLE.graph, configs[i : i + 1])[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("segment_size", [0, 12])
def test_candidates_are_compared_with_those_of_their_own_group(tmp_path, segment_size, monkeypatch):
    saved(tmp_path / "w.npz", inputs=Inputs(configs=8, segment_size=segment_size))
    ranker = load_ranker(tmp_path / "w.npz")
    together = ranker.score(SAMPLE.graph, SAMPLE.node_config)
    for group in range(3):
        alone = ranker.score(SAMPLE.graph, SAMPLE.node_config[group::3])
        np.testing.assert_allclose(together[group::3], alone, rtol=1e-4, atol=1e-5)
    assert not np.allclose(together[:8], ranker.score(SAMPLE.graph, SAMPLE.node_config[:8]), rtol=1e-4, atol=1e-5)
    monkeypatch.setattr("exla.cost_model.ranker.ROWS_TOGETHER", 0)  # one group after another
    np.testing.assert_array_equal(together, ranker.score(SAMPLE.graph, SAMPLE.node_config))


def test_groups_that_several_threads_score_are_of_one_size_and_compiled_once(tmp_path):
    _apply_of.cache_clear()
    saved(tmp_path / "w.npz", inputs=Inputs(configs=17))
    ranker, compiled = load_ranker(tmp_path / "w.npz"), []

    def told(event, *_, **__):
        compiled.append(event.endswith("backend_compile_duration"))

    jax.monitoring.register_event_duration_secs_listener(told)
    try:
        ranker.score(SAMPLE.graph, SAMPLE.node_config[:19])
    finally:
        jax.monitoring.unregister_event_duration_listener(told)
    assert sum(compiled) == 1


def test_small_graphs_with_few_candidates_share_one_compilation(tmp_path):
    """And their scores are those of the model, whatever they are padded to."""
    _apply_of.cache_clear()
    trained = saved(tmp_path / "w.npz")
    ranker, model = load_ranker(tmp_path / "w.npz"), MODELS.get("split_sage")(**OPTIONS["split_sage"])
    for seed, nodes, edges, candidates in ((1, 30, 40, 20), (2, 9, 12, 3), (3, 100, 130, 47), (4, 127, 250, 64)):
        sample = made_sample(seed, nodes=nodes, edges=edges, candidates=candidates)
        seen = dataclasses.replace(
            sample, graph=dataclasses.replace(sample.graph, node_feat=nodes_on_one_footing(sample.graph.node_feat))
        )
        expected = jax.jit(model.apply)(trained.variables, collate([seen], trained.normaliser))[0]
        scores = ranker.score(sample.graph, sample.node_config)
        np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-5)
    assert ranker._apply._cache_size() == 1
    larger = made_sample(5, nodes=200, edges=250, candidates=20)
    assert ranker.score(larger.graph, larger.node_config).shape == (20,)
    assert ranker._apply._cache_size() == 2


def test_models_of_an_ensemble_are_compiled_once_and_score_by_their_own_weights(tmp_path):
    _apply_of.cache_clear()
    for seed in (0, 1):
        saved(tmp_path / f"{seed}.npz", seed=seed)
    one, other = (load_ranker(tmp_path / f"{seed}.npz") for seed in (0, 1))
    scores = [ranker.score(SAMPLE.graph, SAMPLE.node_config) for ranker in (one, other)]
    assert one._apply is other._apply and one._apply._cache_size() == 1
    assert np.abs(scores[0] - scores[1]).max() > 1e-3


def test_configurations_of_another_program_are_an_error(tmp_path):
    saved(tmp_path / "w.npz")
    with pytest.raises(ValueError, match=r"\(20, 3, 18\); split_sage reads \(candidates, 4, 18\)"):
        load_ranker(tmp_path / "w.npz").score(SAMPLE.graph, SAMPLE.node_config[:, :3])


def test_a_name_that_is_neither_file_nor_weights_is_an_error():
    with pytest.raises(CheckpointError, match="no such file, and no such weights come with exla"):
        load_ranker("cpu-of-the-moon")


def test_a_ranker_says_where_it_comes_from(tmp_path):
    saved(tmp_path / "w.npz", inputs=Inputs(prune_hops=2))
    about = load_ranker(tmp_path / "w.npz").describe()
    assert about["name"] == "w" and about["inputs"] == dataclasses.asdict(Inputs(prune_hops=2))


def test_configurations_of_the_other_kind_are_an_error_and_not_scored_alike(tmp_path):
    saved(tmp_path / "nodes.npz")
    saved(tmp_path / "kernel.npz", "tile_mlp")
    with pytest.raises(ValueError, match=r"\(20, 24\); split_sage reads \(candidates, 4, 18\)"):
        load_ranker(tmp_path / "nodes.npz").score(SAMPLE.graph, SAMPLE.graph_config)
    with pytest.raises(ValueError, match=r"\(20, 4, 18\); tile_mlp reads \(candidates, 24\)"):
        load_ranker(tmp_path / "kernel.npz").score(SAMPLE.graph, SAMPLE.node_config)


def test_what_is_no_number_or_no_graph_is_an_error(tmp_path):
    saved(tmp_path / "w.npz")
    ranker, configs = load_ranker(tmp_path / "w.npz"), SAMPLE.node_config.copy()
    configs[7, 0, 3] = np.nan
    with pytest.raises(ValueError, match="NaN or infinity in configuration 7"):
        ranker.score(SAMPLE.graph, configs)
    with pytest.raises(TypeError, match="expected a Graph, as `file.graph` or `features.graph` is; got Sample"):
        ranker.score(SAMPLE, configs)
    assert len(repr(ranker)) < 100


WRONG = {
    "an edge beyond the last node": (
        {"edge_index": [[1, 0], [30, 2]]},
        r"edge_index: .* 0 to 29; found \[30, 2\] in row 1",
    ),
    "an edge before the first": ({"edge_index": [[1, -1]]}, r"edge_index: .* 0 to 29; found \[1, -1\] in row 0"),
    "an edge of three nodes": ({"edge_index": [[1, 0, 2]]}, r"edge_index: .* \(m, 2\); found shape \(1, 3\)"),
    "edges that are no integers": ({"edge_index": [[1.0, 0.0]]}, "edge_index: .* integers .*; found dtype float64"),
    "an unknown opcode": ({"node_opcode": [1, 121] + [2] * 28}, "node_opcode: .* 0 to 120; found 121 at node 1"),
    "opcodes of some nodes": ({"node_opcode": [1]}, r"node_feat: .* n = 1 by node_opcode; found shape \(30, 140\)"),
    "no nodes": ({"node_opcode": np.zeros(0, np.uint8)}, "node_opcode: expected at least one node; found none"),
    "a configurable node beyond": ({"node_config_ids": [0, 30, 1, 2]}, "node_config_ids: .* 29; found 30 in row 1"),
    "a node that is configurable twice": ({"node_config_ids": [0, 5, 5, 2]}, "each node once; found node 5 2 times"),
    "configurable nodes as a mask": ({"node_config_ids": np.eye(30, dtype=bool)[0]}, "integers .*; found dtype bool"),
    "features of other kinds": ({"node_feat": np.zeros((30, 139), np.float32)}, r"\(n, 140\), n = 30 .* \(30, 139\)"),
    "a feature that is no number": ({"node_feat": np.full((30, 140), np.nan)}, "node_feat: .* NaN .* at node 0"),
    "features as text": ({"node_feat": np.full((30, 140), "1")}, "node_feat: .* numbers .*; found dtype <U1"),
}


@pytest.mark.parametrize("arrays, message", WRONG.values(), ids=WRONG)
def test_a_graph_that_is_none_is_an_error_that_says_what_is_wrong(tmp_path, arrays, message):
    saved(tmp_path / "w.npz")
    ranker = load_ranker(tmp_path / "w.npz")
    graph = dataclasses.replace(SAMPLE.graph, **{name: np.asarray(values) for name, values in arrays.items()})
    with pytest.raises(GraphError, match=message):
        ranker.score(graph, SAMPLE.node_config)
    with pytest.raises(GraphError, match=message):
        ranker.summaries(graph, SAMPLE.node_config)


def test_all_that_is_wrong_with_a_graph_is_said_at_once(tmp_path):
    saved(tmp_path / "w.npz")
    ids, edges = np.array([0, 1, 2, 99]), np.array([[0, 99]])
    graph = dataclasses.replace(SAMPLE.graph, node_config_ids=ids, edge_index=edges)
    with pytest.raises(GraphError, match=r"'made 1' cannot be used as it is:\n  edge_index: .*\n  node_config_ids: "):
        load_ranker(tmp_path / "w.npz").score(graph, SAMPLE.node_config)
    lists = dataclasses.replace(SAMPLE.graph, edge_index=[[1, 0]])
    with pytest.raises(GraphError, match="edge_index: .*; found a list. Make it a numpy array"):
        load_ranker(tmp_path / "w.npz").score(lists, SAMPLE.node_config)


def test_integers_of_a_graph_may_be_of_any_width(tmp_path):
    saved(tmp_path / "w.npz")
    ranker, narrow = load_ranker(tmp_path / "w.npz"), {}
    for name in ("edge_index", "node_config_ids", "node_opcode"):
        narrow[name] = getattr(SAMPLE.graph, name).astype(np.int32)
    scores = ranker.score(dataclasses.replace(SAMPLE.graph, **narrow), SAMPLE.node_config)
    np.testing.assert_array_equal(scores, ranker.score(SAMPLE.graph, SAMPLE.node_config))
