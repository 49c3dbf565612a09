"""Graph segment training: against whole programs where both can be had, by hand where not."""

import json
import os
import shutil
import subprocess
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from exla.cost_model.inputs import Inputs
from exla.cost_model.losses import LOSSES
from exla.cost_model.models import MODELS
from exla.cost_model.pieces import Cut
from exla.cost_model.ranker import Ranker
from exla.errors import OptionError
from exla.training.config import OptimiserConfig, SegmentsConfig
from exla.training.data import open_split
from exla.training.parallel import make_mesh, on_all, spread
from exla.training.sampling import Sampler
from exla.training.scoring import Scorer, in_lots
from exla.training.segments import (
    History,
    SegmentSampler,
    SegmentScorer,
    Where,
    combined,
    make_head_step,
    make_segment_step,
    start_history,
    with_fresh_history,
)
from exla.training.step import make_optimiser, make_step, start
from exla.training.train import fit_normaliser, train
from tests.cost_model.made import weights
from tests.training.made import ROOT, SMALL, child, config, layout_file, layout_files

pytestmark = pytest.mark.usefixtures("compiled_once")
HINGE = LOSSES.get("pairwise_hinge")
OPTIMISER = make_optimiser(OptimiserConfig(steps=10, warm_up=0.0))
QUICK = {**SMALL, "blocks": 0, "cross_config": False, "embed_config": False}
"""What is under test here is what the steps and the scorers do around a model."""
WIDTH = 2 * SMALL["hidden"]


class Trial:
    """A small run by segments of `size` nodes, made by hand."""

    def __init__(self, folder, files, size, *, options=QUICK, graphs=2, steps=10, head_steps=0, keep=0.5):
        self.split = open_split(config(folder, files, data={"graphs": graphs}, held_out={"by": "nothing"}))
        self.how = SegmentsConfig(size=size, keep=keep, head_steps=head_steps)
        self.normaliser, self.mesh = fit_normaliser(self.split), make_mesh(jax.devices()[:1])
        self.model = MODELS.get("split_sage")(**options)
        given = {"graphs": graphs, "configs": 6, "shards": 1, "seed": 0}
        self.whole = Sampler(self.split.train, self.normaliser, **given)
        self.sampler = SegmentSampler(self.split.train, self.normaliser, **given, how=self.how, steps=steps)
        inputs = Inputs(configs=6, segment_size=size)
        self.scorer = SegmentScorer(self.model, self.normaliser, self.mesh, inputs)

    def state(self):
        variables = weights(self.model, self.whole.shard(0, 0))
        history = start_history(self.sampler.table_size, WIDTH)
        return on_all(self.mesh, replace(start(variables, OPTIMISER), history=history))

    def shard(self, step):
        return spread(self.mesh, [self.sampler.shard(step, 0)])


def same(one, other, **tolerance):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, **(tolerance or {"rtol": 1e-4, "atol": 1e-6}))


def test_programs_of_one_segment_are_trained_as_whole_programs_are(tmp_path):
    trial = Trial(tmp_path, layout_files(tmp_path, 2), size=100)
    by_segments, whole = trial.state(), replace(trial.state(), history=None)
    segment_step = make_segment_step(trial.model, HINGE, OPTIMISER, 0.9, trial.mesh)
    step = make_step(trial.model, HINGE, OPTIMISER, 0.9, trial.mesh)
    for i in range(3):
        by_segments, a = segment_step(by_segments, trial.shard(i))
        whole, b = step(whole, spread(trial.mesh, [trial.whole.shard(i, 0)]))
        np.testing.assert_allclose(a["loss"], b["loss"], rtol=1e-5)
    same(by_segments.variables, whole.variables)
    same(by_segments.ema, whole.ema)


def test_scores_of_one_segment_are_those_of_the_whole_program(tmp_path):
    trial = Trial(tmp_path, layout_files(tmp_path, 2), size=100, options=SMALL)
    variables = trial.state().variables
    whole = Scorer(trial.model, trial.normaliser, trial.mesh, configs=6)
    for a, b in zip(
        trial.scorer.rank(variables, trial.split.train), whole.rank(variables, trial.split.train), strict=True
    ):
        np.testing.assert_allclose(a.scores, b.scores, rtol=1e-4, atol=1e-6)
        assert a.name == b.name and (a.runtime == b.runtime).all()


def test_the_shares_of_segments_are_those_of_their_nodes(tmp_path):
    trial = Trial(tmp_path, [layout_file(tmp_path, n=10, nc=3)], size=4)
    cut = Cut.of(trial.split.train[0].program.graph, size=4, method="topological")
    assert [p.graph.num_nodes for p in cut.pieces] == [4, 3, 3]
    np.testing.assert_allclose(cut.shares[:, 0], [0.4, 0.3, 0.3])
    np.testing.assert_allclose(cut.shares.sum(0), [1, 1])
    found = np.concatenate([p.nodes[p.graph.node_config_ids] for p in cut.pieces])
    assert sorted(found) == sorted(trial.split.train[0].program.graph.node_config_ids)


def case(share, kept, known):
    """One program of three segments, the first fresh: summary 1 of it, 10 and 100 in the table."""
    where = Where(
        fresh=np.zeros((1, 1), np.int32),
        fresh_share=np.full((1, 2), share[0], np.float32),
        others=np.array([[[0, 1, 2]]], np.int32),
        others_share=np.repeat(np.array([[[0], [share[1] * kept[0]], [share[2] * kept[1]]]], np.float32), 2, -1),
        missing=np.array([[0, 1, 1]], np.float32),
    )
    history = History(
        summary=jnp.array([[7.0, 7.0], [10.0, 20.0], [100.0, 200.0], [0.0, 0.0]]),
        known=jnp.array([True, *known, False]),
    )
    return np.asarray(combined(jnp.ones((1, 1, 2)), history, where))[0, 0]


def test_the_fresh_segment_stands_for_those_that_are_left_out_or_not_known():
    share = (0.5, 0.3, 0.2)
    np.testing.assert_allclose(case(share, (1, 1), (True, True)), [0.5 + 3 + 20, 0.5 + 6 + 40], rtol=1e-6)
    np.testing.assert_allclose(case(share, (1, 0), (True, True)), [2 * 0.5 + 3, 2 * 0.5 + 6], rtol=1e-6)
    np.testing.assert_allclose(case(share, (1, 1), (False, True)), [2 * 0.5 + 20, 2 * 0.5 + 40], rtol=1e-6)
    np.testing.assert_allclose(case(share, (0, 0), (True, True)), [3 * 0.5, 3 * 0.5], rtol=1e-6)


def test_a_step_remembers_its_segments_and_nothing_else(tmp_path):
    trial = Trial(tmp_path, layout_files(tmp_path, 2, n=10), size=4)
    step = make_segment_step(trial.model, HINGE, OPTIMISER, 0.9, trial.mesh)
    given = trial.sampler.shard(0, 0)
    batch, where = given.batch, given.where
    before = trial.state()
    summary = jax.jit(lambda variables, batch: trial.model.apply(variables, batch, method="summary"))
    expected = summary(before.variables, batch)
    after, _ = step(before, trial.shard(0))
    entries = where.fresh[batch.candidate_mask]
    assert set(np.flatnonzero(after.history.known)) == set(entries.tolist())
    np.testing.assert_allclose(after.history.summary[entries], expected[batch.candidate_mask], rtol=1e-4, atol=1e-6)


def test_entries_of_the_table_are_different_for_every_row_and_segment(tmp_path):
    trial = Trial(tmp_path, layout_files(tmp_path, 3, n=10), size=4)
    found = [
        trial.sampler.entries(i, np.arange(len(part.rows)), j)
        for i, part in enumerate(trial.sampler.parts)
        for j in range(len(trial.sampler.cuts[i].pieces))
    ]
    assert sorted(np.concatenate(found).tolist()) == list(range(trial.sampler.table_size - 1))


def test_the_head_is_trained_on_what_all_segments_come_to_and_alone(tmp_path):
    trial = Trial(tmp_path, layout_files(tmp_path, 2, n=10), size=4, steps=6, head_steps=3)
    step = make_segment_step(trial.model, HINGE, OPTIMISER, 0.9, trial.mesh)
    head = make_head_step(trial.model, HINGE, OPTIMISER, 0.9, trial.mesh)
    state = trial.state()
    for i in range(3):
        state, _ = step(state, trial.shard(i))
    state = with_fresh_history(state, trial.sampler, trial.scorer)
    same(state.variables, state.ema)
    assert state.history.known[:-1].all() and not state.history.known[-1]
    backbone = jax.tree.map(np.array, state.variables["params"]["backbone"])
    table, before = np.array(state.history.summary), np.array(state.variables["params"]["head"]["kernel"])
    for i in range(3, 6):
        where = trial.sampler.shard(i, 0).where
        counted = (where.others_share.sum(-1) > 0).sum(-1)
        assert (counted[:-1] >= where.missing.sum(-1)[:-1] - 1).all(), "something was left out"
        state, measured = head(state, trial.shard(i))
        assert np.isfinite(measured["loss"])
    same(state.variables["params"]["backbone"], backbone, rtol=0, atol=0)
    same(state.ema["params"]["backbone"], backbone, rtol=0, atol=0)
    same(state.history.summary, table, rtol=0, atol=0)
    assert not np.allclose(state.variables["params"]["head"]["kernel"], before)
    # What the head saw is what the scorer computes.
    part, cut = trial.split.train[0], trial.sampler.cuts[0]
    _, rows = next(in_lots(part, 6))
    for segment, summary in trial.scorer.summaries(state.ema, part, cut, rows):
        np.testing.assert_allclose(
            summary, state.history.summary[trial.sampler.entries(0, rows, segment)], rtol=1e-3, atol=1e-5
        )


def test_a_step_needs_the_memory_of_one_segment_however_many_there_are(tmp_path):
    needed = []
    for count in (1, 40):
        file = layout_file(tmp_path, f"of_{count}", c=6, n=50 * count, nc=50 * count)
        trial = Trial(tmp_path, [file], size=50, graphs=1)
        step = make_segment_step(trial.model, HINGE, OPTIMISER, 0.9, trial.mesh)
        assert trial.sampler.most == count
        stats = step.lower(trial.state(), trial.shard(0)).compile().memory_analysis()
        needed.append(stats.temp_size_in_bytes)
    assert max(needed) <= 1.1 * needed[0], needed


ON_THREE = """
import json, sys
from pathlib import Path
import jax, numpy as np
from exla.training import train
from exla.training.parallel import local_shards, make_mesh, spread
from exla.training.step import make_optimiser
from tests.training.made import config, layout_files
from tests.training.test_segments import QUICK

folder, found = Path(sys.argv[1]), []
how = {"model": {"options": QUICK}, "segments": {"size": 4, "head_steps": 1}, "held_out": {"by": "nothing"}}
how["optimiser"] = {"steps": 3, "ema": 0.5}
made = config(folder, layout_files(folder, 2, n=10), **how)
for count in (1, 3):
    mesh = make_mesh(jax.devices()[:count])
    run = train.make_run(made, mesh)
    optimiser = make_optimiser(made.optimiser)
    state, step, losses = run.start(optimiser), run.steps(optimiser), []
    for i in range(3):
        state, measured = step(i, state, spread(mesh, [run.sampler.shard(i, k) for k in local_shards(mesh)]))
        losses.append(float(measured["loss"]))
    found.append({"losses": losses, "known": int(state.history.known.sum())})
print(json.dumps(found))
"""


@pytest.mark.sweep
def test_three_devices_train_two_programs_by_segments_as_one_does(tmp_path):
    words, environment = child("-c", ON_THREE, tmp_path)
    environment["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=3"
    done = subprocess.run(words, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    one, three = json.loads(done.stdout)
    np.testing.assert_allclose(three["losses"][0], one["losses"][0], rtol=1e-5)
    np.testing.assert_allclose(three["losses"], one["losses"], rtol=1e-3)  # Adam's first step is of signs
    assert three["known"] == one["known"] > 0


def test_models_without_a_summary_cannot_be_trained_by_segments(tmp_path):
    with pytest.raises(OptionError, match="tile_mlp cannot be trained by segments"):
        config(tmp_path, ["x.npz"], model={"name": "tile_mlp", "options": {}}, segments={"size": 4})


@pytest.mark.sweep
def test_a_run_by_segments_goes_on_to_the_same_bits_and_its_weights_rank_by_segments(tmp_path):
    files = layout_files(tmp_path, 2, n=10)
    how = {
        "model": {"options": QUICK},
        "segments": {"size": 4, "head_steps": 4},
        "held_out": {"by": "nothing"},
        "run": {"checkpoint_every": 2, "keep_checkpoints": 9},
    }
    straight = train(config(tmp_path, files, **how))
    kept = tmp_path / "run" / "checkpoints"
    assert {p.name for p in kept.iterdir()} >= {"2", "4", "6", "8"}
    for folder in kept.iterdir():
        if folder.is_dir() and int(folder.name) > 4:  # the head's first step is the next
            shutil.rmtree(folder)
    again = train(config(tmp_path, files, **how))
    for a, b in zip(jax.tree.leaves(straight.variables), jax.tree.leaves(again.variables), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
    assert again.inputs.segment_size == 4

    # The ranker, the scorer and the evaluation of files agree; a different size of segments would not.
    (part,) = open_split(config(tmp_path, files[:1], held_out={"by": "nothing"})).train
    _, rows = next(in_lots(part, 6))
    sample = part.sample(rows)
    ranker = Ranker(name="made", trained=again)
    found = ranker.score(sample.graph, sample.node_config)
    scorer = SegmentScorer(
        MODELS.get("split_sage")(**QUICK), again.normaliser, make_mesh(jax.devices()[:1]), again.inputs
    )
    six = replace(part, rows=part.rows[rows])
    np.testing.assert_allclose(found, scorer.rank(again.variables, [six])[0].scores, rtol=1e-4, atol=1e-6)
    whole = Ranker(name="made", trained=replace(again, inputs=replace(again.inputs, segment_size=0)))
    assert not np.allclose(found, whole.score(sample.graph, sample.node_config), rtol=1e-3)
