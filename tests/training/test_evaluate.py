"""Evaluation: every configuration scored once, as it would be anywhere; numbers as defined; weights read back."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from exla.cost_model.batch import collate
from exla.cost_model.checkpoint import Trained, load, save
from exla.cost_model.metrics import kendall_tau, tile_top_k_error
from exla.cost_model.models import MODELS
from exla.errors import CheckpointError
from exla.training.data import Split, inputs_of, open_split
from exla.training.evaluate import MEASURES, collect, evaluate, rank_files, table
from exla.training.parallel import make_mesh
from exla.training.plots import plot_ranking
from exla.training.scoring import Ranked, Scorer
from exla.training.train import fit_normaliser
from tests.training.made import GCN, config, layout_file, layout_files


class FirstNumber(nn.Module):
    """The score is the first number of the first configurable node, and how many candidates it was seen with."""

    def __call__(self, batch, *, train=False):
        first = jax.ops.segment_min(jnp.arange(batch.config_ids.shape[0]), batch.config_graph, batch.num_graphs)
        seen = batch.candidate_mask.sum(1, keepdims=True) / 1000
        return batch.node_config[first, :, 0] + seen


@pytest.mark.parametrize("configs", [5, 24, 64])
def test_every_configuration_has_its_own_score_whatever_it_was_seen_with(tmp_path, configs):
    files = [*layout_files(tmp_path, 3), layout_file(tmp_path, "large", n=30, c=7)]
    parts = open_split(config(tmp_path, files, held_out={"by": "nothing"})).train
    scorer = Scorer(FirstNumber(), fit_normaliser_of(parts), make_mesh(), configs=configs)
    ranked = scorer.rank({"params": {}}, parts)
    assert [r.name for r in ranked] == [p.name for p in parts]
    for part, one in zip(parts, ranked, strict=True):
        rows = np.arange(len(part.rows))
        seen = min(configs, len(rows)) / 1000  # the last lot is filled up
        np.testing.assert_allclose(one.scores, part.sample(rows).node_config[:, 0, 0] + seen, rtol=1e-6)
        np.testing.assert_array_equal(one.runtime, part.program.runtime)


def fit_normaliser_of(parts):
    return fit_normaliser(Split(train=tuple(parts), held_out=()))


RANKED = [
    Ranked(name="good", scores=np.array([0.1, 0.2, 0.3]), runtime=np.array([10, 20, 40]), noise_floor=0.9),
    Ranked(name="bad", scores=np.array([3.0, 2.0, 1.0]), runtime=np.array([10, 20, 40])),
    Ranked(name="alike", scores=np.array([3.0, 2.0]), runtime=np.array([10, 10])),
]


def test_measures_are_those_of_metrics_and_undefined_ones_are_left_out_of_means():
    found = evaluate(RANKED)
    assert [g["kendall_tau"] for g in found["graphs"]] == [1.0, -1.0, None]
    assert found["mean"]["kendall_tau"] == 0.0 and found["deviation"]["kendall_tau"] == pytest.approx(math.sqrt(2))
    assert [g["slowdown_1"] for g in found["graphs"]] == [0.0, 3.0, 0.0] and found["mean"]["slowdown_1"] == 1.0
    assert found["tile_top_5_error"] == tile_top_k_error([r.scores for r in RANKED], [r.runtime for r in RANKED]) == 0
    assert [g["noise_floor"] for g in found["graphs"]] == [0.9, None, None]
    assert json.loads(json.dumps(found)) == found and set(found["mean"]) == set(MEASURES)
    nothing = evaluate([])
    assert nothing["mean"]["kendall_tau"] is None and nothing["tile_top_5_error"] is None


def test_the_table_has_every_program_and_the_mean_with_its_deviation():
    made = table(evaluate(RANKED), "title")
    names, tau = ([str(cell) for cell in made.columns[i].cells] for i in (0, 3))
    assert names == ["bad", "good", "alike", "mean"] and tau == ["-1.000", "1.000", "", "0.000 ± 1.414"]


def folds(folder, *parts):
    """Evaluations of parts, in files."""
    files = [folder / f"{number}.json" for number in range(len(parts))]
    for file, part in zip(files, parts, strict=True):
        file.write_text(json.dumps(evaluate(part)))
    return [str(file) for file in files]


def test_evaluations_of_folds_are_collected_as_one_of_all_their_programs(tmp_path):
    bad = Ranked(name="slow", scores=np.arange(8.0), runtime=np.arange(8)[::-1] + 1, noise_floor=None)
    together = evaluate([*RANKED, bad])
    assert together["tile_top_5_error"] > 0
    assert collect(folds(tmp_path, RANKED[:1], [*RANKED[1:], bad])) == together
    assert collect(folds(tmp_path, RANKED[:2], [], RANKED[2:])) == evaluate(RANKED)


def test_what_is_no_evaluation_is_not_collected(tmp_path):
    (good,) = folds(tmp_path, RANKED)
    for text, message in (("{", "cannot be read"), ("[]", "other JSON"), ('{"graphs": []}', "other JSON")):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(CheckpointError, match=f"bad.json: .*{message}"):
            collect([good, tmp_path / "bad.json"])
    with pytest.raises(CheckpointError, match="no program was evaluated"):
        collect(folds(tmp_path, []))


def test_the_command_collects_evaluations(tmp_path, capsys, monkeypatch):
    from exla.cli import main

    monkeypatch.setenv("EXLA_STRICT", "0")
    files = folds(tmp_path, RANKED[:1], RANKED[1:])
    assert main(["eval", "--collect", *files, "--json", "--out", str(tmp_path / "all.json")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == evaluate(RANKED) == json.loads((tmp_path / "all.json").read_text())
    assert main(["eval", "--collect", *files]) == 0 and "0.000 ± 1.414" in capsys.readouterr().out
    assert main(["eval", "--collect", str(tmp_path / "none.json")]) == 1
    assert "none.json: cannot be read" in capsys.readouterr().err
    assert main(["eval", "weights.npz", "--collect", *files]) == 2
    assert "--collect takes evaluations alone" in capsys.readouterr().err
    assert main(["eval", "weights.npz"]) == 2 and "expected WEIGHTS and DATA" in capsys.readouterr().err


def test_pictures_are_drawn_of_what_can_be(tmp_path):
    plot_ranking(tmp_path / "new", RANKED, evaluate(RANKED))
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == ["ranks.png", "tau.png"]
    plot_ranking(tmp_path / "none", RANKED[2:], evaluate(RANKED[2:]))
    assert not (tmp_path / "none").exists()


@pytest.fixture
def weights(tmp_path, compiled_once):
    """An untrained model in a file, and the parts that it is for."""
    made = config(tmp_path, layout_files(tmp_path, 2, n=9), held_out={"by": "nothing"}, data={"prune_hops": 1})
    parts = open_split(made).train
    normaliser, model = fit_normaliser_of(parts), MODELS.get(GCN["name"])(**GCN["options"])
    variables = jax.jit(model.init)(jax.random.key(0), collate([parts[0].sample([0, 1])], normaliser))
    options = GCN["options"]
    trained = Trained(
        model=GCN["name"], options=options, variables=variables, normaliser=normaliser, inputs=inputs_of(made)
    )
    save(tmp_path / "weights.npz", trained)
    return tmp_path / "weights.npz"


def test_weights_rank_files_prepared_as_their_card_says(tmp_path, weights):
    trained, cache = load(weights), str(tmp_path / "cache")
    file = str(tmp_path / "program_1.npz")
    (ranked,) = rank_files(weights, [file], cache=cache)
    parts = open_split(config(tmp_path, [file], held_out={"by": "nothing"}, data={"prune_hops": 1})).train
    model = MODELS.get(trained.model)(**trained.options)
    (expected,) = Scorer(model, trained.normaliser, make_mesh(), configs=6).rank(trained.variables, parts)
    np.testing.assert_array_equal(ranked.scores, expected.scores)
    assert parts[0].program.graph.num_nodes < 9 and len(ranked.scores) == 24
    few, same = (rank_files(weights, [str(tmp_path / "program_1.npz")], rows=5, cache=cache)[0] for _ in range(2))
    assert len(few.scores) == 5 and few.runtime.tolist() == same.runtime.tolist()
    assert evaluate([ranked])["mean"]["kendall_tau"] == kendall_tau(expected.scores, expected.runtime)


def test_the_command_prints_a_table_or_json_and_writes_what_is_asked(tmp_path, weights, capsys, monkeypatch):
    from exla.cli import main

    monkeypatch.setenv("EXLA_STRICT", "0")
    words = ["eval", str(weights), str(tmp_path / "program_0.npz"), "--cache", str(tmp_path / "cache")]
    extra = ["--json", "--out", str(tmp_path / "out.json"), "--plots", str(tmp_path / "plots"), "--rows", "9"]
    assert main([*words, *extra]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads((tmp_path / "out.json").read_text()) and found["graphs"][0]["configs"] == 9
    assert (tmp_path / "plots" / "tau.png").exists()
    assert main(words) == 0 and "program_0" in capsys.readouterr().out
    for wrong, code, message in ((2, 2, "expected an .npz file"), (1, 1, "there is no such file")):
        assert main([w if i != wrong else str(tmp_path / "none") for i, w in enumerate(words)]) == code
        assert message in capsys.readouterr().err


def test_training_from_the_command_line_says_what_is_not_understood(tmp_path, capsys, monkeypatch):
    from exla.cli import main

    monkeypatch.setenv("EXLA_STRICT", "0")
    assert main(["train", "tiny", "--set", "data.file=3"]) == 2
    assert "did you mean 'files'?" in capsys.readouterr().err
    assert main(["train", "tiny", "--json"]) == 2
    assert "there is no data" in json.loads(capsys.readouterr().out)["error"]["message"]
    assert main(["train", "tiny", "--process", "1"]) == 2
    assert "--coordinator" in capsys.readouterr().err
