"""A run and its rankings as pictures: training.png, ranks.png and tau.png in the folder of the run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from exla.cost_model.batch import ranks
from exla.errors import MissingExtraError
from exla.training.scoring import Ranked

MOST_PROGRAMS = 9
"""Programs whose ranks are drawn: those with the lowest tau, the middle and the highest are among them."""
_DPI = 120


def new_figure(width: float, height: float) -> Any:
    """An empty figure, in inches, that no window will show.

    Raises:
      MissingExtraError: without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("a plot", "matplotlib", "train") from error
    return Figure(figsize=(width, height), layout="constrained")


def plot_training(folder: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Draw loss and Kendall tau by step into training.png.

    Args:
      folder: is made if need be.
      lines: of the log.
    """
    figure = new_figure(6, 5)
    above, below = figure.subplots(2, sharex=True)
    steps = [line["step"] for line in lines]
    above.plot(steps, [line["loss"] for line in lines], marker=".")
    above.set_ylabel("loss, mean since the last")
    below.plot(steps, [math.nan if line["kendall_tau"] is None else line["kendall_tau"] for line in lines], marker=".")
    below.set_ylabel("Kendall tau, held out")
    below.set_xlabel("steps")
    _save(figure, folder / "training.png")


def plot_ranking(folder: Path, ranked: Sequence[Ranked], evaluation: Mapping[str, Any]) -> None:
    """Draw predicted against true places into ranks.png, and the tau of each program into tau.png.

    Args:
      folder: is made if need be.
      ranked: at least one program.
      evaluation: of the same, see `evaluate`.
    """
    taus = [g["kendall_tau"] for g in evaluation["graphs"]]
    order = sorted((i for i, tau in enumerate(taus) if tau is not None), key=lambda i: taus[i])
    if not order:
        return
    _plot_ranks(folder, [ranked[order[i]] for i in _spread(len(order))])
    figure = new_figure(7, 1 + 0.25 * len(order))
    axes = figure.subplots()
    axes.barh([ranked[i].name for i in order], [taus[i] for i in order])
    for place, i in enumerate(order):
        if (floor := ranked[i].noise_floor) is not None:
            axes.plot([floor, floor], [place - 0.4, place + 0.4], color="black")
    axes.set_xlabel("Kendall tau (line: what noise allows)")
    _save(figure, folder / "tau.png")


def _plot_ranks(folder: Path, ranked: Sequence[Ranked]) -> None:
    columns = math.ceil(math.sqrt(len(ranked)))
    rows = math.ceil(len(ranked) / columns)
    figure = new_figure(3 * columns, 3 * rows)
    for axes, one in zip(figure.subplots(rows, columns, squeeze=False).flat, ranked, strict=False):
        axes.scatter(ranks(one.runtime), ranks(one.scores), s=4, alpha=0.5)
        axes.plot([0, 1], [0, 1], color="grey", linewidth=0.5)
        axes.set_title(one.name, fontsize=8)
    figure.supxlabel("true place, 0 is fastest")
    figure.supylabel("predicted place")
    _save(figure, folder / "ranks.png")


def _spread(count: int) -> list[int]:
    return np.unique(np.linspace(0, count - 1, min(count, MOST_PROGRAMS)).round().astype(int)).tolist()


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=_DPI, metadata={"Software": None})
