"""A whole run: it learns, is continued to the bit after a kill, refuses another run, and leaves what it promises."""

import json
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from exla.cost_model import checkpoint
from exla.cost_model.batch import collate
from exla.cost_model.inputs import sample_of
from exla.cost_model.losses import LOSSES
from exla.cost_model.models import MODELS
from exla.cost_model.ranker import Ranker
from exla.datasets.tpugraphs_adapter import read
from exla.errors import CheckpointError, MissingExtraError, OptionError, TrainingError
from exla.training import train as training
from exla.training.cache import file_hash
from exla.training.evaluate import MEASURES
from exla.training.logs import LOG, read_log
from exla.training.parallel import spread
from exla.training.step import make_loss, make_optimiser
from exla.training.train import make_run, train
from tests.training.conftest import quickly_compiled
from tests.training.made import GCN, ROOT, SMALL, child, config, layout_files, toml

pytestmark = [
    pytest.mark.usefixtures("compiled_once"),
    # of orbax's own threads, when a checkpoint turns out to be damaged
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def arrays(trained):
    return [np.asarray(x) for x in jax.tree.leaves(trained.variables)]


def assert_same_bits(one, other):
    assert [x.tobytes() for x in arrays(one)] == [x.tobytes() for x in arrays(other)]


KILLED = """
import os, signal, sys
from exla.training import logs, train
from exla.training.config import read_config

at, done = int(sys.argv[2]), 0
def advance(self):
    global done
    done += 1
    if done == at:
        os.kill(os.getpid(), signal.SIGKILL)
logs.Logs.advance = advance
train.train(read_config(sys.argv[1]))
"""


EVERY = {"evaluate_every": 3, "checkpoint_every": 4}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return layout_files(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def straight(tmp_path_factory, files):
    """The folder of a run that nothing happened to, and what it returned."""
    folder = tmp_path_factory.mktemp("straight")
    with quickly_compiled(folder.parent / "compiled"):
        return folder / "run", train(config(folder, files, model=GCN, run=EVERY))


@pytest.fixture
def again(tmp_path, straight):
    """A copy of that folder, for the run of `config(tmp_path, files, run=EVERY)`."""
    shutil.copytree(straight[0], tmp_path / "run")
    return tmp_path / "run"


def test_a_run_leaves_weights_with_a_card_a_log_and_pictures(straight, files):
    folder, trained = straight
    loaded = checkpoint.load(folder / "weights.npz")
    assert_same_bits(loaded, trained)
    card = loaded.card
    assert card["config"]["data"]["files"] == files and card["steps"] == 8
    assert card["versions"]["jax"] == jax.__version__ and card["versions"]["features"] == checkpoint.FEATURE_VERSION
    hashes = {**card["data"]["train"], **card["data"]["held_out"]}
    assert hashes == {Path(f).stem: file_hash(f) for f in files} and len(card["data"]["held_out"]) == 1
    assert len(card["data"]["hash"]) == 64 and loaded.inputs.configs == 6
    assert json.loads((folder / "evaluation.json").read_text()) == card["metrics"]
    lines = read_log(folder / LOG)
    assert [line["step"] for line in lines] == [3, 6, 8]
    assert {k: v for k, v in lines[-1].items() if k in MEASURES} == card["metrics"]["mean"]
    for name in ("training", "ranks", "tau"):
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert any((folder / "tensorboard").iterdir())


def test_more_can_be_scored_together_than_are_trained_together(tmp_path, files):
    few, all_ = (
        train(config(tmp_path, files, data={"configs_scored": n}, run={"folder": str(tmp_path / str(n))}))
        for n in (0, 24)
    )
    assert_same_bits(few, all_)
    assert (few.inputs.configs, all_.inputs.configs) == (6, 24)
    file = read(files[0])
    score = MODELS.get(few.model)(**few.options).apply
    batch = collate([sample_of(*all_.inputs.reduced(file.graph), file.configs())], all_.normaliser)
    expected = np.asarray(jax.jit(score)(all_.variables, batch))[0]
    scores = [Ranker(name="made", trained=one).score(file.graph, file.configs()) for one in (few, all_)]
    np.testing.assert_allclose(scores[1], expected, rtol=1e-4, atol=1e-5)
    assert not np.allclose(scores[0], expected, rtol=1e-3)


def test_a_head_that_is_trusted_less_is_nearer_to_the_prior_and_not_trained_anew(tmp_path, files, monkeypatch):
    def trained(trust):
        return train(config(tmp_path, files, model=prior, optimiser={"trust": trust, "learning_rate": 0.1}))

    prior = {"options": {**SMALL, "prior": 0}}
    whole = trained(1.0)
    monkeypatch.setattr(training, "_batches", lambda run, first, last: [pytest.fail()] if first < last else [])
    half, none = trained(0.5), trained(0.0)
    file = read(files[0])
    scores = [Ranker(name="made", trained=t).score(file.graph, file.configs()) for t in (whole, half, none)]
    np.testing.assert_allclose(scores[2], file.configs()[:, :, 0].max(1), atol=1e-6)
    np.testing.assert_allclose(scores[1], (scores[0] + scores[2]) / 2, atol=1e-5)
    assert np.abs(scores[0] - scores[2]).max() > 0.05
    assert checkpoint.load(tmp_path / "run" / "weights.npz").card["config"]["optimiser"]["trust"] == 0.0
    assert half.card["metrics"] != none.card["metrics"]


def test_a_run_that_was_killed_ends_with_the_same_bits(tmp_path, files, straight):
    made = config(tmp_path, files, model=GCN, run=EVERY)
    (tmp_path / "run.toml").write_text(toml(made))
    words, environment = child("-c", KILLED, tmp_path / "run.toml", 7)
    killed = subprocess.run(words, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-4000:]

    folder = tmp_path / "run"
    kept = folder / "checkpoints"
    assert [p.name for p in kept.iterdir() if p.name.isdigit()] == ["4"] and not (folder / "weights.npz").exists()
    assert [line["step"] for line in read_log(folder / LOG)] == [3, 6]
    shutil.copytree(kept / "4", kept / "6.orbax-checkpoint-tmp")  # as a kill in the middle of writing leaves it
    with open(folder / LOG, "a") as log:
        log.write('{"step": 6, "lo')
    assert_same_bits(train(made), straight[1])
    assert read_log(folder / LOG) == read_log(straight[0] / LOG)
    assert checkpoint.load(folder / "weights.npz").card["metrics"] == straight[1].card["metrics"]


def test_a_run_that_is_done_is_not_trained_again(tmp_path, files, straight, again, monkeypatch):
    monkeypatch.setattr(training, "_batches", lambda run, first, last: [pytest.fail()] if first < last else [])
    assert_same_bits(train(config(tmp_path, files, model=GCN, run=EVERY)), straight[1])
    assert len(read_log(again / LOG)) == 3


DIFFERENT = {
    "optimiser.steps: 8 there, 9 here": {"optimiser": {"steps": 9}},
    "model.options: .*1.* there, .*0.* here": {"model": {**GCN, "options": {**GCN["options"], "layers": 0}}},
    "data_hash: '": {"data": {"seed": 1}},
}


@pytest.mark.parametrize("message", DIFFERENT)
def test_another_run_in_the_folder_is_refused_by_what_differs(tmp_path, files, again, message):
    with pytest.raises(CheckpointError, match=message) as refused:
        train(config(tmp_path, files, **{"model": GCN, "run": EVERY, **DIFFERENT[message]}))
    assert "run.folder" in str(refused.value)


def test_a_file_where_the_folder_is_to_be_is_named(tmp_path, files):
    wanted = config(tmp_path, files, model=GCN)
    Path(wanted.run.folder).write_text("mine")
    with pytest.raises(OptionError, match=r"run\.folder: .* is a file"):
        train(wanted)
    assert Path(wanted.run.folder).read_text() == "mine"


def test_a_run_of_other_features_is_refused(tmp_path, files, again, monkeypatch):
    monkeypatch.setattr("exla.training.checkpoints.FEATURE_VERSION", 99)
    with pytest.raises(CheckpointError, match=f"feature_version: {checkpoint.FEATURE_VERSION} there, 99 here"):
        train(config(tmp_path, files, model=GCN, run=EVERY))


def test_a_damaged_checkpoint_is_an_error_that_names_it(tmp_path, files, again):
    for file in (again / "checkpoints/8/state").rglob("*"):
        if file.is_file() and file.parent.name == "d":
            file.write_bytes(file.read_bytes()[:10])
    with pytest.raises(CheckpointError, match="checkpoints/8: damaged"):
        train(config(tmp_path, files, model=GCN, run=EVERY))


def test_a_run_learns_what_makes_its_programs_slow(tmp_path):
    made = config(
        tmp_path,
        layout_files(tmp_path, 1, c=120),
        model={"name": GCN["name"], "options": {**GCN["options"], "hidden": 16}},
        held_out={"by": "rows"},
        optimiser={"steps": 100, "learning_rate": 0.03, "ema": 0.9},
        data={"configs": 24, "graphs": 1},
        run={"evaluate_every": 50, "checkpoint_every": 0},
    )
    mean = train(made).card["metrics"]["mean"]
    first, *_, last = read_log(tmp_path / "run" / LOG)
    assert mean["kendall_tau"] > 0.8 and last["loss"] < first["loss"]


def test_options_of_the_model_reach_it(tmp_path, files):
    programs = []
    for options in ({}, {"dtype": "bfloat16", "remat": True}):
        run = make_run(config(tmp_path, files, model={"options": {**SMALL, **options}}))
        shard = run.sampler.shard(0, 0)
        variables = jax.eval_shape(run.model.init, jax.random.key(0), shard)
        assert {x.dtype.name for x in jax.tree.leaves(variables)} == {"float32"}
        loss = make_loss(run.model, LOSSES.get("pairwise_hinge"), run.mesh)
        programs.append(str(jax.make_jaxpr(loss)(variables, spread(run.mesh, [shard]))))
    assert [("bf16[" in text, "checkpoint[" in text or "remat" in text) for text in programs] == [
        (False,) * 2,
        (True,) * 2,
    ]


def test_a_loss_that_is_no_number_stops_the_run(tmp_path, files):
    wild = {"learning_rate": 1e38, "clip_norm": 0.0, "warm_up": 0.0}
    with pytest.raises(TrainingError, match="after 4 steps; lower optimiser.learning_rate"):
        train(config(tmp_path, files, model=GCN, optimiser=wild))


@pytest.mark.parametrize("package", ["orbax.checkpoint", "tensorboardX", "matplotlib.figure"])
def test_a_package_that_is_missing_is_named_with_the_extra(tmp_path, files, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=r'pip install "exla\[train\]"'):
        train(config(tmp_path, files, model=GCN))


def test_two_hosts_train_as_one_and_the_first_one_writes(tmp_path, files):
    sections = {"model": GCN, "data": {"graphs": 3}, "optimiser": {"steps": 2}}
    made = config(tmp_path, files, **sections, run={"evaluate_every": 1})
    (tmp_path / "run.toml").write_text(toml(made))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    hosts = ["--coordinator", address, "--processes", 2, "--json", "--process"]
    started = []
    for number in range(2):
        words, environment = child("-m", "exla.training.train", tmp_path / "run.toml", *hosts, number)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(words, env=environment, cwd=ROOT, text=True, **pipes))
    run = make_run(made)
    loss = jax.jit(make_loss(run.model, LOSSES.get(made.optimiser.loss), run.mesh))
    variables = run.start(make_optimiser(made.optimiser)).variables
    alone = float(loss(variables, spread(run.mesh, [run.sampler.shard(0, 0)])))
    said = [process.communicate(timeout=300) for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    assert '"kendall_tau"' in said[0][0] and '"kendall_tau"' not in said[1][0]
    lines = read_log(tmp_path / "run" / LOG)
    assert [line["step"] for line in lines] == [1, 2]
    assert lines[0]["loss"] == pytest.approx(alone, rel=1e-5)
    assert len(list((tmp_path / "run" / "tensorboard").iterdir())) == 1
    assert checkpoint.load(tmp_path / "run" / "weights.npz").card["steps"] == 2
