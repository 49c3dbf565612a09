"""Train a cost model: from a config to weights.

    python -m exla.training.train layout.toml --set run.folder=runs/layout
    exla train layout.toml

    config = read_config("layout.toml")
    trained = train(config)                 # a Trained, which is in runs/layout/weights.npz too

The folder of a run holds weights.npz, evaluation.json, log.jsonl, plots, TensorBoard's log and checkpoints. The same
command continues a run that was stopped, and ends with the same bits: a batch depends on the seed and the step, and all
else is in the checkpoint.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from flax import linen as nn
from jax.sharding import Mesh

from exla.cost_model.batch import Batch
from exla.cost_model.checkpoint import FEATURE_VERSION, Trained, save
from exla.cost_model.losses import LOSSES
from exla.cost_model.models import MODELS
from exla.cost_model.models.split_sage import trusted
from exla.cost_model.normalise import Normaliser
from exla.errors import OptionError, TrainingError
from exla.training.checkpoints import Checkpoints
from exla.training.command import add_train_arguments, told
from exla.training.config import Config, read_config
from exla.training.data import Split, inputs_of, open_split
from exla.training.evaluate import evaluate, show
from exla.training.logs import LOG, Logs, read_log
from exla.training.parallel import check_agreement, connect, is_first, local_shards, make_mesh, on_all, spread
from exla.training.plots import new_figure, plot_ranking, plot_training
from exla.training.sampling import Sampler
from exla.training.scoring import Ranked, Scorer
from exla.training.segments import SegmentSampler, SegmentScorer, SegmentSteps, scorer_for, start_history
from exla.training.step import State, Variables, learning_rate, make_optimiser, make_step, start

Measured = dict[str, jax.Array]
"""What a step tells: {"loss", "gradient_norm"}, () float32 each."""
_AHEAD = 2
"""Batches that are made while the devices compute."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """All that a run is made of before its first step.

    Attributes:
      config: of the run.
      split: the data.
      normaliser: of the training programs.
      model: scores a batch.
      mesh: the devices.
      sampler: makes the batches.
      scorer: scores what is held out.
    """

    config: Config
    split: Split
    normaliser: Normaliser
    model: nn.Module
    mesh: Mesh
    sampler: Sampler | SegmentSampler
    scorer: Scorer | SegmentScorer

    def start(self, optimiser: optax.GradientTransformation) -> State:
        """The state before the first step, from the seed; the same on every device."""

        def first(key: jax.Array, shard: Batch) -> State:
            return start(self.model.init(key, shard), optimiser)

        key, sampler = jax.random.key(self.config.run.seed), self.sampler
        if isinstance(sampler, Sampler):
            return on_all(self.mesh, jax.jit(first)(key, sampler.shard(0, 0)))
        shard = sampler.shard(0, 0).batch
        width = jax.eval_shape(
            lambda v: self.model.apply(v, shard, method="summary"), jax.eval_shape(self.model.init, key, shard)
        ).shape[-1]
        history = start_history(sampler.table_size, width)
        return on_all(self.mesh, replace(jax.jit(first)(key, shard), history=history))

    def steps(self, optimiser: optax.GradientTransformation) -> Callable[[int, State, Any], tuple[State, Measured]]:
        """A function that takes a step: of its number, from 0, the state, and the step's batch."""
        config, sampler, scorer = self.config.optimiser, self.sampler, self.scorer
        given = (self.model, LOSSES.get(config.loss), optimiser, config.ema, self.mesh)
        if isinstance(sampler, SegmentSampler) and isinstance(scorer, SegmentScorer):
            return SegmentSteps(*given, sampler=sampler, scorer=scorer)
        step = make_step(*given)
        return lambda number, state, batch: step(state, batch)


def make_run(config: Config, mesh: Mesh | None = None) -> Run:
    """Open the data, and make what a run needs.

    Args:
      config: of the run.
      mesh: the devices; all if None.

    Raises:
      OptionError, TpuGraphsError: for data that are not there, or not sound.
    """
    split = open_split(config)
    check_agreement("data", split.data_hash())
    mesh = make_mesh() if mesh is None else mesh
    normaliser, model = fit_normaliser(split), MODELS.get(config.model.name)(**config.model.options)
    data, how, seed = config.data, config.segments, config.run.seed
    given: dict[str, int] = {"graphs": data.graphs, "configs": data.configs, "shards": mesh.size, "seed": seed}
    sampler: Sampler | SegmentSampler = Sampler(split.train, normaliser, **given)
    if how.size:
        sampler = SegmentSampler(split.train, normaliser, **given, how=how, steps=config.optimiser.steps)
    return Run(
        config=config,
        split=split,
        normaliser=normaliser,
        model=model,
        mesh=mesh,
        sampler=sampler,
        scorer=scorer_for(model, normaliser, mesh, inputs_of(config)),
    )


def fit_normaliser(split: Split) -> Normaliser:
    """Statistics of the training programs, and of tile configurations that are trained on."""
    tiles = [part.sample(np.arange(len(part.rows))).graph_config for part in split.train if part.program.is_tile]
    return Normaliser.fit([part.program.graph for part in split.train], [t for t in tiles if t is not None])


def train(config: Config) -> Trained:
    """Train, or continue to train, and export.

    Args:
      config: of the run.

    Returns:
      The averaged parameters after the last step.

    Raises:
      OptionError, TpuGraphsError: for data that are not there, or not sound.
      CheckpointError: if the folder holds another run.
      TrainingError: if the loss is no longer a number.
      MissingExtraError: without the packages of the extra `train`.
    """
    new_figure(1, 1)  # raises before anything is done
    run = make_run(config)
    folder = Path(config.run.folder).expanduser().absolute()
    if folder.is_file():
        raise OptionError(f"run.folder: {folder} is a file; name a folder, which is made if there is none")
    folder.mkdir(parents=True, exist_ok=True)
    about = {"data_hash": run.split.data_hash(), "config": config.trained_by()}
    kept = Checkpoints(folder / "checkpoints", about, keep=config.run.keep_checkpoints)
    with contextlib.closing(kept) as checkpoints:
        state = _trained(run, folder, checkpoints)
    trust = config.optimiser.trust
    variables = state.ema if trust == 1 else trusted(state.ema, trust)
    ranked = run.scorer.rank(variables, run.split.held_out)
    trained = _exported(run, variables, ranked)
    if is_first():
        plot_training(folder, read_log(folder / LOG))
        plot_ranking(folder, ranked, trained.card["metrics"])
        save(folder / "weights.npz", trained)
        (folder / "evaluation.json").write_text(json.dumps(trained.card["metrics"], indent=1) + "\n")
    return trained


def _trained(run: Run, folder: Path, checkpoints: Checkpoints) -> State:
    """The state after the last step, from the latest checkpoint or the beginning."""
    config, optimiser = run.config, make_optimiser(run.config.optimiser)
    state, progress = checkpoints.restore(run.start(optimiser))
    step = run.steps(optimiser)
    first, last = int(state.step), config.optimiser.steps
    if first and is_first():
        print(f"{folder}: goes on after step {first} of {last}", file=sys.stderr)
    pending: list[Any] = list((progress or {}).get("pending", []))  # losses since the last line of the log
    with Logs(folder, steps=last, resumed_at=first, quiet=not is_first()) as logs:
        for number, batch in _batches(run, first, last):
            state, measured = step(number - 1, state, batch)
            pending.append(measured["loss"])
            if len(pending) > _AHEAD:
                jax.block_until_ready(pending[-1 - _AHEAD])  # else batches pile up on the devices
            logs.advance()
            if _is_due(number, config.run.evaluate_every, last):
                logs.write(_line(run, state, number, pending, measured))
                pending = []
            if _is_due(number, config.run.checkpoint_every, last):
                checkpoints.save(state, {"pending": [float(loss) for loss in pending]})
    return state


def _is_due(number: int, every: int, last: int) -> bool:
    return number == last or (every > 0 and number % every == 0)


def _batches(run: Run, first: int, last: int) -> Iterator[tuple[int, Any]]:
    """(how many steps are done with it, batch), made in a thread while the devices compute."""
    here = local_shards(run.mesh)

    def made(step: int) -> list[Any]:
        return [run.sampler.shard(step, i) for i in here]

    with ThreadPoolExecutor(1) as thread:
        waiting = [thread.submit(made, step) for step in range(first, min(first + _AHEAD, last))]
        for step in range(first, last):
            shards = waiting.pop(0).result()
            if step + _AHEAD < last:
                waiting.append(thread.submit(made, step + _AHEAD))
            yield step + 1, spread(run.mesh, shards)


def _line(run: Run, state: State, number: int, pending: list[Any], measured: Measured) -> dict[str, Any]:
    loss = float(np.mean([float(one) for one in pending]))
    if not math.isfinite(loss):
        raise TrainingError(
            f"the loss is {loss} after {number} steps; lower optimiser.learning_rate, or set optimiser.clip_norm"
        )
    mean = evaluate(run.scorer.rank(state.ema, run.split.held_out))["mean"]
    return {
        "step": number,
        "loss": loss,
        "gradient_norm": float(measured["gradient_norm"]),
        "learning_rate": float(learning_rate(run.config.optimiser)(number - 1)),
        **mean,
    }


def _exported(run: Run, variables: Variables, ranked: list[Ranked]) -> Trained:
    config = run.config
    return Trained(
        model=config.model.name,
        options=config.model.options,
        variables=jax.tree.map(np.asarray, variables),
        normaliser=run.normaliser,
        inputs=inputs_of(config),
        card={
            "data": {
                "hash": run.split.data_hash(),
                "train": {part.name: part.program.sha256 for part in run.split.train},
                "held_out": {part.name: part.program.sha256 for part in run.split.held_out},
            },
            "metrics": evaluate(ranked),
            "steps": config.optimiser.steps,
            "config": config.as_json(),
            "versions": versions(),
        },
    )


def versions() -> dict[str, Any]:
    """Of the features, of exla, and of the packages that numbers depend on."""
    packages = ("exla", "jax", "jaxlib", "flax", "optax", "jraph", "numpy")
    found: dict[str, Any] = {"features": FEATURE_VERSION}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def run(arguments: argparse.Namespace) -> int:
    """`exla train`; the exit code."""

    def trained() -> None:
        config = read_config(arguments.config, arguments.changes)
        connect(arguments.coordinator, arguments.processes, arguments.process)
        evaluation = train(config).card["metrics"]
        if is_first():
            show(evaluation, config.run.folder, as_json=arguments.json)

    return told(trained, arguments)


def main(words: Sequence[str] | None = None) -> int:
    """`python -m exla.training.train`; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m exla.training.train", description=(__doc__ or "").split("\n")[0])
    add_train_arguments(parser)
    return run(parser.parse_args(words))


if __name__ == "__main__":
    sys.exit(main())
