"""How good the learned choice is, on families that it was not trained on: the slowdown of the first pick.

    python -m benchmarks.learned npz/split/wall_clock/cpu-cpu/test [--weights DIR] [--target cpu]

For each program of a split: every candidate that obeys the limit and was measured, ranked by the weights, by the
analytic prediction, by the paper's rule and at random; the slowdown of the first (and of the best of the first three)
against the best of all that obey. Programs that obey as they are run untouched, and are counted apart. Geometric means,
the worst, and Kendall's tau. Nothing is measured here: it reads what a campaign measured, and says how noisy that was.
"""

import argparse
import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import record
from exla.cost_model.candidates import ranker_for
from exla.cost_model.graph import Graph
from exla.cost_model.metrics import kendall_tau, slowdown
from exla.cost_model.split_configs import COLUMNS
from exla.datasets.tpugraphs_adapter import deduplicate, read
from exla.training.data import npz_files

DRAWS = 200
"""Random orders that are averaged."""
APART = 0.03
"""Candidates whose predicted times differ by less than this, in octaves, may be the same but for a compile option."""
NAMES = ("learned", "analytic", "heuristic", "random")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", help="npz files of the split collection, or folders of them")
    parser.add_argument("--target", default="cpu", help="whose weights rank (default: cpu)")
    parser.add_argument("--weights", help="a folder of weights to use instead of those that come with exla")
    parser.add_argument("--keep", action="store_true", help="append the rows to benchmarks/results")
    arguments = parser.parse_args()
    if arguments.weights:
        os.environ["EXLA_WEIGHTS"] = arguments.weights
    ranker = ranker_for(arguments.target)
    if ranker is None:
        print(f"no weights for {arguments.target}", file=sys.stderr)
        return 1
    programs = (profiled(path) for path in npz_files(arguments.files))
    rows = [judged(program, ranker) for program in programs if program is not None]
    show(rows)
    if arguments.keep:
        results = record.open_results("learned")
        for row in rows:
            results.append(weights=ranker.name, **row)
    return 0


@dataclass(frozen=True, kw_only=True)
class Profiled:
    """The candidates of a program that obey, each once.

    Attributes:
      graph: of the program.
      configs: (c, nc, 18).
      runtime: (c,) float64.
      predicted: (c,), what the roofline predicts.
      row: what is known of them whoever ranks them.
    """

    graph: Graph
    configs: np.ndarray
    runtime: np.ndarray
    predicted: np.ndarray
    row: dict


def profiled(path: Path) -> Profiled | None:
    """One program; None where there is nothing to choose."""
    file = read(path, test=False)
    once = deduplicate(file, keep="minimum")
    obeys = np.array([file.split.statuses[k] == "ok" for k in once.rows])
    default = np.array([not file.split.decisions[k] for k in once.rows])
    mine = np.flatnonzero(obeys & ~default)
    if len(mine) < 4:
        return None
    runtime, configs = once.runtimes[mine].astype(np.float64), file.configs(once.rows[mine])
    best = runtime.min()
    predicted = np.array([_largest(c[:, COLUMNS.index("predicted_us")]) for c in configs])
    row = {"program": path.stem, "family": file.split.meta["family"], "candidates": len(mine)}
    row["plain_obeys"] = bool((default & obeys).any())
    plain = once.runtimes[default]
    row["plain_over_best"] = float(plain[0] / best) if len(plain) else None
    # The heuristic's candidates were recorded first, in its own order.
    row |= slowdowns("analytic", predicted, runtime) | slowdowns("heuristic", once.groups[once.rows[mine]], runtime)
    first, *others = np.argsort(predicted, kind="stable")
    apart = [first]
    for k in others:
        apart += [k] if predicted[k] > predicted[apart[-1]] + APART else []
    row["apart_3"] = float(runtime[apart[:3]].min() / best)
    row["tau_analytic"] = float(kendall_tau(predicted, runtime))
    generator = np.random.default_rng(0)
    drawn = [runtime[generator.permutation(len(mine))[:3]] for _ in range(DRAWS)]
    row["random"] = geometric_mean(d[0] / best for d in drawn)
    row["random_3"] = geometric_mean(d.min() / best for d in drawn)
    return Profiled(graph=file.graph, configs=configs, runtime=runtime, predicted=predicted, row=row)


def judged(program: Profiled, ranker) -> dict:
    """One program, ranked by what was learned too."""
    runtime = program.runtime
    scores = np.array(ranker.of(program.graph, program.configs).scores)
    row = program.row | slowdowns("learned", scores, runtime)
    # What a search weighs: the prediction's first pick, and two that are learned.
    first = np.argmin(program.predicted)
    learned = [k for k in np.argsort(scores, kind="stable") if k != first]
    row["advised_3"] = float(runtime[[first, *learned[:2]]].min() / runtime.min())
    row["tau_learned"] = float(kendall_tau(scores, runtime))
    return row


def slowdowns(name: str, lower_is_faster: np.ndarray, runtime: np.ndarray) -> dict[str, float]:
    """How many times longer than the best the first pick takes, and the best of the first three."""
    return {name: 1 + slowdown(lower_is_faster, runtime), f"{name}_3": 1 + slowdown(lower_is_faster, runtime, 3)}


def _largest(values: np.ndarray) -> float:
    found = float(values.max())
    return found if found >= 0 else math.inf


def show(rows: list[dict]) -> None:
    """A table, the worst first, and the means."""
    table = Table(title="slowdown of the first pick against the best that obeys", title_justify="left")
    for column in ("program", "candidates", *NAMES, "learned, best of 3", "tau"):
        table.add_column(column, justify="left" if column == "program" else "right")
    for row in sorted(rows, key=lambda r: -r["learned"]):
        numbers = [f"{row[name]:.3f}" for name in (*NAMES, "learned_3", "tau_learned")]
        table.add_row(row["program"], str(row["candidates"]), *numbers)
    Console(width=140).print(table)
    for name in NAMES:
        first, three = ([row[key] for row in rows] for key in (name, f"{name}_3"))
        print(
            f"{name:10s} first pick: geometric mean {geometric_mean(first):.3f}, worst {max(first):.2f}; "
            f"best of three {geometric_mean(three):.3f}, worst {max(three):.2f}"
        )
    for name in ("learned", "analytic"):
        print(f"{name}: Kendall's tau {np.nanmean([row[f'tau_{name}'] for row in rows]):.3f}")
    print(f"{len(rows)} programs of {len({row['family'] for row in rows})} families")


if __name__ == "__main__":
    sys.exit(main())
