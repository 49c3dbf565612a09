"""What every architecture of the cost model must do; walks the registry, so that none can exist untested."""

import dataclasses
import json
import subprocess
import sys

import jax
import numpy as np
import optax
import pytest

from exla.cost_model.batch import collate
from exla.cost_model.checkpoint import Trained, load, save
from exla.cost_model.losses import LOSSES
from exla.cost_model.models import KERNEL, MODELS, configures
from tests.cost_model.made import fitted, made_sample, shuffled, weights

pytestmark = pytest.mark.usefixtures("compiled_quickly")
SMALL = {
    "split_sage": {"hidden": 16, "blocks": 1},
    "layout_residual_gcn": {"hidden": 16, "layers": 2},
    "tile_early_join_sage": {"hidden": 16, "layers": 2},
    "tile_late_join_sage": {"hidden": 16, "layers": 2},
    "tile_residual_gcn": {"hidden": 16, "layers": 2},
    "tile_mlp": {"hidden": 16, "layers": 2},
}
SAMPLES = [made_sample(1), made_sample(2, nodes=20, edges=25, config_nodes=2, candidates=6)]
NORMALISER = fitted(SAMPLES)
CLOSE = {"rtol": 2e-4, "atol": 2e-5}


@pytest.fixture(scope="module", params=list(MODELS))
def made(request):
    """An architecture with weights: (model, variables, scores of batches)."""
    model = MODELS.get(request.param)(**SMALL[request.param])
    variables = weights(model, collate(SAMPLES, NORMALISER))
    return model, variables, jax.jit(model.apply)


def scores_of(made, samples, **sizes):
    _, variables, apply = made
    batch = collate(samples, NORMALISER, **sizes)
    out = np.asarray(apply(variables, batch))
    assert out.shape == batch.candidate_mask.shape
    return [out[i, : sample.num_configs] for i, sample in enumerate(samples)]


def test_scores_are_finite_and_tell_candidates_apart(made):
    for scores in scores_of(made, SAMPLES):
        assert np.isfinite(scores).all() and len(np.unique(scores)) > 1


def test_the_order_of_nodes_and_edges_does_not_matter(made):
    moved = [shuffled(sample, seed) for seed, sample in enumerate(SAMPLES)]
    for a, b in zip(scores_of(made, SAMPLES), scores_of(made, moved), strict=True):
        np.testing.assert_allclose(a, b, **CLOSE)


def test_padding_does_not_matter(made):
    padded = scores_of(made, SAMPLES, num_configs=9, num_graphs=4, num_nodes=96, num_edges=128, num_config_nodes=32)
    for a, b in zip(scores_of(made, SAMPLES), padded, strict=True):
        np.testing.assert_allclose(a, b, **CLOSE)


def test_programs_of_one_batch_do_not_see_each_other(made):
    for sample, together in zip(SAMPLES, scores_of(made, SAMPLES), strict=True):
        np.testing.assert_allclose(scores_of(made, [sample])[0], together, **CLOSE)


def test_the_order_of_candidates_does_not_matter(made):
    order = np.random.default_rng(0).permutation(SAMPLES[0].num_configs)
    turned = dataclasses.replace(
        SAMPLES[0], node_config=SAMPLES[0].node_config[order], graph_config=SAMPLES[0].graph_config[order]
    )
    np.testing.assert_allclose(scores_of(made, SAMPLES[:1])[0][order], scores_of(made, [turned])[0], **CLOSE)


def test_edges_matter_to_every_model_but_the_one_without(made):
    model, *_ = made
    cut = dataclasses.replace(SAMPLES[0].graph, edge_index=SAMPLES[0].graph.edge_index[:3])
    without = scores_of(made, [dataclasses.replace(SAMPLES[0], graph=cut)])[0]
    same = np.allclose(scores_of(made, SAMPLES[:1])[0], without, **CLOSE)
    assert same == (type(model) is MODELS.get("tile_mlp"))


def test_training_lowers_the_loss(made):
    model, variables, _ = made
    batch = collate(SAMPLES, NORMALISER)
    optimiser = optax.adam(3e-3)

    def trained(loss):
        def value(variables):
            truth = (batch.rank, batch.delay, batch.candidate_mask)
            return LOSSES.get(loss)(model.apply(variables, batch), *truth)

        def step(carry, _):
            variables, state = carry
            now, gradient = jax.value_and_grad(value)(variables)
            updates, state = optimiser.update(gradient, state)
            return (optax.apply_updates(variables, updates), state), now

        _, values = jax.jit(lambda v: jax.lax.scan(step, (v, optimiser.init(v)), length=40))(variables)
        return values

    # Every loss with the model that compiles quickest, and one with each.
    for loss in list(LOSSES) if type(model) is MODELS.get("tile_mlp") else ["pairwise_hinge"]:
        values = trained(loss)
        assert np.isfinite(values).all() and values[-1] < 0.8 * values[0], loss


def test_a_saved_model_scores_the_same(made, tmp_path):
    model, variables, apply = made
    name = next(n for n in MODELS if type(model) is MODELS.get(n))
    save(
        tmp_path / "m.npz",
        Trained(model=name, options=SMALL[name], variables=variables, normaliser=NORMALISER, card={"data": "made"}),
    )
    again = load(tmp_path / "m.npz")
    assert again.card == {"data": "made"}
    other = MODELS.get(again.model)(**again.options)
    for a, b in zip(
        jax.tree.leaves(apply(variables, collate(SAMPLES, NORMALISER))),
        jax.tree.leaves(jax.jit(other.apply)(again.variables, collate(SAMPLES, again.normaliser))),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)


def test_every_model_says_what_its_configurations_are_of_and_reads_only_those(made):
    model, *_ = made
    of_kernel = configures(next(n for n in MODELS if type(model) is MODELS.get(n))) == KERNEL
    base = scores_of(made, SAMPLES[:1])[0]
    for field in ("node_config", "graph_config"):
        other = dataclasses.replace(SAMPLES[0], **{field: getattr(SAMPLES[0], field) + 1})
        same = np.allclose(scores_of(made, [other])[0], base, **CLOSE)
        assert same == (of_kernel == (field == "node_config"))


def test_every_model_is_listed_here_with_a_small_version():
    assert set(SMALL) == set(MODELS)


@pytest.mark.parametrize("options", [{"dtype": "bfloat16"}, {"remat": True}])
def test_our_model_in_bfloat16_and_with_recomputation_scores_nearly_the_same(options):
    batch = collate(SAMPLES, NORMALISER)
    plain = MODELS.get("split_sage")(**SMALL["split_sage"])
    variables = weights(plain, batch)
    other = MODELS.get("split_sage")(**SMALL["split_sage"], **options)
    again = jax.eval_shape(other.init, jax.random.key(0), batch)
    assert jax.tree.map(np.shape, again) == jax.tree.map(np.shape, variables)

    def loss(model):
        return jax.value_and_grad(lambda v: (model.apply(v, batch)[:2] ** 2).sum())

    (a, da), (b, db) = (jax.jit(loss(model))(variables) for model in (plain, other))
    tolerance = 0.1 if "dtype" in options else 1e-4
    np.testing.assert_allclose(a, b, rtol=tolerance)
    flat_a, flat_b = (np.concatenate([np.ravel(x) for x in jax.tree.leaves(d)]) for d in (da, db))
    assert np.linalg.norm(flat_a - flat_b) <= tolerance * np.linalg.norm(flat_a)
    if "dtype" in options:
        assert not np.array_equal(flat_a, flat_b), "nothing was computed in bfloat16"


@pytest.mark.parametrize("part", ["cross_config", "embed_config", "sage"])
def test_each_part_that_can_be_taken_away_changes_the_model(part):
    batch = collate(SAMPLES, NORMALISER)
    scores = []
    for on in (True, False):
        model = MODELS.get("split_sage")(**SMALL["split_sage"], **{part: on})
        scores.append(jax.jit(model.apply)(weights(model, batch), batch))
    assert not np.allclose(scores[0], scores[1], **CLOSE)


def test_with_a_prior_our_model_begins_as_the_prediction():
    predicted = [np.array([3.0, -1.0, 7.5, 7.5, 0.25, 2.0], np.float32), np.linspace(4, 1, 6, dtype=np.float32)]
    samples = []
    for sample, values in zip(SAMPLES, predicted, strict=True):
        config = sample.node_config.copy()
        config[..., 16] = -1
        config[:, 0, 16] = values[: sample.num_configs]  # the other nodes are another start's
        samples.append(dataclasses.replace(sample, node_config=config))
    batch = collate(samples, NORMALISER)
    model = MODELS.get("split_sage")(**SMALL["split_sage"], prior=16)
    variables = jax.jit(model.init)(jax.random.key(0), batch)
    scores = np.asarray(jax.jit(model.apply)(variables, batch))
    for row, sample, values in zip(scores, samples, predicted, strict=False):
        np.testing.assert_allclose(row[: sample.num_configs], values[: sample.num_configs], rtol=1e-6)

    def value(variables):
        truth = (batch.rank, batch.delay, batch.candidate_mask)
        return LOSSES.get("delay_huber")(model.apply(variables, batch), *truth)

    head = jax.jit(jax.grad(value))(variables)["params"]["head"]["kernel"]
    assert np.count_nonzero(head) > len(head) // 2, "training moves it away from there"


def test_a_prior_that_is_no_column_is_refused():
    model = MODELS.get("split_sage")(**SMALL["split_sage"], prior=18)
    with pytest.raises(ValueError, match="columns 0 to 17"):
        jax.eval_shape(model.init, jax.random.key(0), collate(SAMPLES, NORMALISER))


def test_importing_exla_does_not_import_the_cost_model():
    code = (
        "import sys, json, exla; exla.jit; print(json.dumps([m for m in sys.modules if 'flax' in m or 'jraph' in m]))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(out) == []
