"""What our model computes, against its definition written down once more: node by node, in float64, without batches."""

import dataclasses

import jax
import numpy as np
import pytest

from exla.cost_model.batch import LAYOUT, collate
from exla.cost_model.models import MODELS
from exla.cost_model.neighbours import LISTED
from tests.cost_model.made import fitted, made_sample, shuffled, weights

pytestmark = pytest.mark.usefixtures("compiled_quickly")

# Nodes with more neighbours than the table of `Neighbours` has room for, in both directions, and some without any.
SAMPLES = [made_sample(1, nodes=9, edges=90, candidates=5), made_sample(2, nodes=30, edges=25, config_nodes=2)]
NORMALISER = fitted(SAMPLES)
OPTIONS = [
    {},
    {"sage": False},
    {"cross_config": False},
    {"per_candidate_norm": True},
    {"embed_config": False},
    {"wide": True},
    {"wide": True, "cross_config": False, "per_candidate_norm": True},
]


def defined(params, sample, *, sage=True, cross_config=True, per_candidate_norm=False, embed_config=True, wide=False):
    """The scores of one program, (c,) float64."""
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    p, graph = params["backbone"], sample.graph

    def embedded(values):
        if not embed_config:
            return values / 8
        index = np.clip(np.round(values), -2, 37).astype(int) + 2
        both = np.concatenate([p["values"]["embedding"][index], values[..., None] / 8], -1)
        return both.reshape(*values.shape[:-1], -1)

    def gelu(x):
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    def activate(q, x):
        over = 0 if per_candidate_norm else (0, 1)
        x = (x - x.mean(over)) / np.sqrt(x.var(over) + 1e-5)
        x = x * q["GraphNorm_0"]["scale"] + q["GraphNorm_0"]["bias"]
        first, second = q["SqueezeExcite_0"]["Dense_0"], q["SqueezeExcite_0"]["Dense_1"]
        squeezed = np.maximum(x.mean(0) @ first["kernel"] + first["bias"], 0)
        x = x / (1 + np.exp(-(squeezed @ second["kernel"] + second["bias"])))
        if cross_config:
            e = np.exp(x / np.exp(q["CrossConfigAttention_0"]["log_temperature"]))
            x = x * e / e.sum(1, keepdims=True) * x.shape[1]
        return gelu(x)

    def convolved(q, x):
        if sage:
            q = q["SAGE_0"]
            y = x @ q["self"]["kernel"] + q["self"]["bias"]
            for node in range(len(x)):
                for name, mine, other in (("producers", 0, 1), ("consumers", 1, 0)):
                    around = graph.edge_index[graph.edge_index[:, mine] == node, other]
                    if len(around):
                        y[node] += x[around].mean(0) @ q[name]["kernel"]
            return y
        q = q["GCN_0"]["Dense_0"]
        y, degree = x @ q["kernel"] + q["bias"], 1 + np.bincount(graph.edge_index.ravel(), minlength=len(x))
        out = y / degree[:, None, None]
        for a, b in graph.edge_index:
            out[a] += y[b] / np.sqrt(degree[a] * degree[b])
            out[b] += y[a] / np.sqrt(degree[a] * degree[b])
        return out

    features = NORMALISER.node_feat(graph), p["opcodes"]["embedding"][graph.node_opcode]
    of_node = np.concatenate([*features, embedded(graph.node_feat[:, LAYOUT].astype(np.float64))], -1)
    configs = np.full((graph.num_nodes, sample.num_configs, 18), -2.0)
    configs[graph.node_config_ids] = sample.node_config.swapaxes(0, 1)
    x = of_node[:, None] @ p["nodes"]["kernel"] + p["nodes"]["bias"] + embedded(configs) @ p["configs"]["kernel"]
    x = activate(p["Activate_0"], x)
    for block in ("block_0", "block_1"):
        x = x + activate(p[block]["Activate_0"], convolved(p[block], x))
    if wide:
        node = (of_node @ p["wide_nodes"]["kernel"] + p["wide_nodes"]["bias"])[graph.node_config_ids, None]
        x[graph.node_config_ids] += node * (embedded(sample.node_config.swapaxes(0, 1)) @ p["wide_configs"]["kernel"])
    summary = np.concatenate([x.mean(0), x[graph.node_config_ids].mean(0)], -1)
    return (summary @ params["head"]["kernel"] + params["head"]["bias"])[:, 0]


def uneven(variables):
    """No bias is 0 and no scale 1, so that each is seen."""
    rng = np.random.default_rng(7)
    return jax.tree.map(lambda x: x if x.ndim > 1 else (x + 0.3 * rng.normal(size=x.shape)).astype(x.dtype), variables)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("samples", [SAMPLES, SAMPLES[:1], SAMPLES[1:]], ids=["both", "first", "second"])
def test_scores_are_what_the_model_is_defined_to_compute(options, samples):
    model = MODELS.get("split_sage")(hidden=16, blocks=2, **options)
    batch = collate(samples, NORMALISER, num_configs=8)
    variables = uneven(weights(model, batch))
    scores = np.asarray(jax.jit(model.apply)(variables, batch), np.float64)
    for row, sample in zip(scores, samples, strict=False):
        expected = defined(variables["params"], sample, **options)
        np.testing.assert_allclose(row[: sample.num_configs], expected, rtol=2e-5, atol=2e-5 * np.abs(expected).max())


def test_neither_order_nor_padding_changes_what_is_computed():
    model = MODELS.get("split_sage")(hidden=16, blocks=2)
    moved = shuffled(SAMPLES[0])
    batch = collate([moved], NORMALISER, num_configs=11, num_nodes=40, num_edges=200, num_more_edges=120)
    variables = uneven(weights(model, batch))
    expected = defined(variables["params"], SAMPLES[0])
    scores = np.asarray(jax.jit(model.apply)(variables, batch))[0, :5]
    np.testing.assert_allclose(scores, expected, rtol=2e-5, atol=2e-5 * np.abs(expected).max())


COMPARED = [
    ({"cross_config": False, "per_candidate_norm": True}, False),
    ({"cross_config": False}, True),
    ({"per_candidate_norm": True}, True),
]


@pytest.mark.parametrize("options, compared", COMPARED, ids=str)
def test_a_score_depends_on_the_other_candidates_where_they_are_compared_and_nowhere_else(options, compared):
    model = MODELS.get("split_sage")(hidden=16, blocks=2, wide=True, **options)
    variables = uneven(weights(model, collate(SAMPLES[:1], NORMALISER)))
    some = dataclasses.replace(SAMPLES[0], node_config=SAMPLES[0].node_config[:2], graph_config=None, runtime=None)
    apart, together = (
        np.asarray(jax.jit(model.apply)(variables, collate([sample], NORMALISER)))[0, :2]
        for sample in (some, SAMPLES[0])
    )
    assert compared != np.allclose(apart, together, rtol=1e-4, atol=1e-5 * np.abs(together).max())


def test_these_programs_have_what_could_go_wrong():
    for side in (0, 1):
        counts = np.bincount(SAMPLES[0].graph.edge_index[:, side], minlength=9)
        assert counts.max() > LISTED and counts.min() == 0
    assert SAMPLES[0].num_configs != SAMPLES[1].num_configs, "candidates are padded"
    assert dataclasses.astuple(NORMALISER)[0].any()
