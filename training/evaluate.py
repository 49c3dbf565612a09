"""How well a model ranks configurations: of what a run held out, or of any files.

evaluation = evaluate(ranked)                               # of a `Scorer`
evaluation["mean"]["kendall_tau"], evaluation["graphs"][0]["slowdown_1"]

evaluation = evaluate(rank_files("weights.npz", ["npz/layout/xla/random/valid"]))

exla eval weights.npz npz/layout/xla/random/valid           # the same, as a table
exla eval --collect runs/mine/*/evaluation.json             # of all folds together
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from exla.console import to_output
from exla.cost_model.checkpoint import Trained, load
from exla.cost_model.metrics import kendall_tau, ordered_pair_accuracy, slowdown, tile_top_k_error
from exla.cost_model.models import MODELS
from exla.errors import CheckpointError, OptionError
from exla.training.command import add_eval_arguments, told
from exla.training.data import check_kind, npz_files, open_program, some_of
from exla.training.parallel import make_mesh, on_all
from exla.training.scoring import Ranked
from exla.training.segments import scorer_for

TRIES = (1, 5, 10)
MEASURES = ("kendall_tau", "ordered_pair_accuracy", *(f"slowdown_{k}" for k in TRIES))
"""Of each program, see `exla.cost_model.metrics`."""


def evaluate(ranked: Sequence[Ranked]) -> dict[str, Any]:
    """Measure rankings.

    Returns:
      JSON values: {"graphs": [{"name", "configs", "noise_floor", and MEASURES}], "mean": {measure: number},
      "deviation": {measure: number}, "tile_top_5_error": number}; None where a measure is not defined (all runtimes
      alike), and such programs are left out of its mean. The deviation is that between programs (of the sample), None
      for fewer than two.
    """
    error = tile_top_k_error([r.scores for r in ranked], [r.runtime for r in ranked]) if ranked else None
    return _over_programs([_measured(r) for r in ranked], error)


def collect(files: Sequence[str | PathLike[str]]) -> dict[str, Any]:
    """Evaluations of several runs, such as the folds of a cross-validation, as one: every program counts alike.

    Args:
      files: what `evaluate` returned, as runs keep it in evaluation.json; at least one program in all.

    Returns:
      as `evaluate`.

    Raises:
      CheckpointError: if a file holds no evaluation, or none of them a program.
    """
    found = [_read(Path(file)) for file in files]
    graphs = [graph for evaluation in found for graph in evaluation["graphs"]]
    if not graphs:
        raise CheckpointError(f"{', '.join(map(str, files))}: no program was evaluated; name evaluations of some")
    errors = [e["tile_top_5_error"] * len(e["graphs"]) for e in found if e["graphs"]]
    return _over_programs(graphs, sum(errors) / len(graphs))


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: cannot be read ({error}); expected an evaluation.json of a run") from error
    is_one = isinstance(found, dict) and {"graphs", "mean", "tile_top_5_error"} <= set(found)
    if not is_one or not all(set(MEASURES) <= set(graph) for graph in found["graphs"]):
        raise CheckpointError(f"{file}: expected an evaluation.json of a run; found other JSON")
    return found


def _over_programs(graphs: list[dict[str, Any]], error: float | None) -> dict[str, Any]:
    mean, deviation = {}, {}
    for name in MEASURES:
        values = [g[name] for g in graphs if g[name] is not None]
        mean[name] = float(np.mean(values)) if values else None
        deviation[name] = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return {"graphs": graphs, "mean": mean, "deviation": deviation, "tile_top_5_error": error}


def _measured(ranked: Ranked) -> dict[str, Any]:
    of = ranked.scores, ranked.runtime
    values = {
        "kendall_tau": kendall_tau(*of),
        "ordered_pair_accuracy": ordered_pair_accuracy(*of),
        **{f"slowdown_{k}": slowdown(*of, k=k) for k in TRIES},
    }
    numbers = {name: None if math.isnan(value) else value for name, value in values.items()}
    return {"name": ranked.name, "configs": len(ranked.scores), "noise_floor": ranked.noise_floor, **numbers}


def table(evaluation: dict[str, Any], title: str) -> Table:
    """An evaluation as a table, programs with the lowest tau first and the mean last."""
    made = Table(title=title, title_justify="left")
    for column in ("program", "configs", "noise floor", *MEASURES):
        made.add_column(column.replace("_", " "), justify="left" if column == "program" else "right")
    rows = sorted(evaluation["graphs"], key=lambda g: math.inf if g["kendall_tau"] is None else g["kendall_tau"])
    for row in rows:
        made.add_row(row["name"], str(row["configs"]), *(_number(row[name]) for name in ("noise_floor", *MEASURES)))
    made.add_section()
    mean, deviation = evaluation["mean"], evaluation["deviation"]
    spread_ = ["" if deviation[name] is None else f" ± {deviation[name]:.3f}" for name in MEASURES]
    made.add_row("mean", "", "", *(_number(mean[name]) + s for name, s in zip(MEASURES, spread_, strict=True)))
    return made


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def rank_files(
    weights: str | PathLike[str] | Trained,
    files: Sequence[str],
    *,
    rows: int = 0,
    keep: str = "minimum",
    seed: int = 0,
    cache: str = "",
) -> list[Ranked]:
    """Score files with a trained model, on all devices of this host.

    Args:
      weights: a file that `train` exported, or what `load` makes of one.
      files: npz files, and folders of them.
      rows: how many random configurations of each; 0 = all.
      keep: of configurations that occur several times, "minimum" (their fastest measurement) or "drop".
      seed: of `rows`.
      cache: where unpacked configurations are kept; "" = the user's cache folder.

    Raises:
      CheckpointError: for weights that cannot be used.
      OptionError, TpuGraphsError: for files that are not there, or not sound.
    """
    trained = weights if isinstance(weights, Trained) else load(weights)
    how, model, mesh = trained.inputs, MODELS.get(trained.model)(**trained.options), make_mesh()
    parts = [some_of(open_program(p, how, keep=keep, cache=cache), rows, seed) for p in npz_files(files)]
    check_kind(trained.model, [part.program for part in parts])
    scorer = scorer_for(model, trained.normaliser, mesh, how)
    return scorer.rank(on_all(mesh, trained.variables), parts)


def show(evaluation: dict[str, Any], title: str, *, as_json: bool) -> None:
    """Print an evaluation."""
    if as_json:
        print(json.dumps(evaluation))
        return
    to_output().print(table(evaluation, title))


def run(arguments: argparse.Namespace) -> int:
    """`exla eval`; the exit code."""

    def evaluated() -> None:
        if arguments.collect:
            if arguments.weights or arguments.plots:
                raise OptionError("--collect takes evaluations alone: no weights, data or --plots")
            evaluation, title = collect(arguments.collect), f"{len(arguments.collect)} evaluations"
        else:
            evaluation, title = _of_files(arguments), str(arguments.weights)
        if arguments.out:
            Path(arguments.out).write_text(json.dumps(evaluation, indent=1) + "\n")
        show(evaluation, title, as_json=arguments.json)

    return told(evaluated, arguments)


def _of_files(arguments: argparse.Namespace) -> dict[str, Any]:
    if not arguments.files:
        raise OptionError("expected WEIGHTS and DATA, or --collect and evaluations")
    given = {"rows": arguments.rows, "keep": arguments.keep, "seed": arguments.seed, "cache": arguments.cache}
    ranked = rank_files(arguments.weights, arguments.files, **given)
    evaluation = evaluate(ranked)
    if arguments.plots:
        from exla.training.plots import plot_ranking

        plot_ranking(Path(arguments.plots), ranked, evaluation)
    return evaluation


def main(words: Sequence[str] | None = None) -> int:
    """`python -m exla.training.evaluate`; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m exla.training.evaluate", description=(__doc__ or "").split("\n")[0]
    )
    add_eval_arguments(parser)
    return run(parser.parse_args(words))


if __name__ == "__main__":
    sys.exit(main())
