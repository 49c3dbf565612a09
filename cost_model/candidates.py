"""Candidates of a space, ranked by an ensemble of trained models: what `search="learned"` asks.

    ranker = ranker_for("cpu")
    ranking = ranker.rank(space.starts, candidates, space.option_sets)

The weights of a target are files called after it, `cpu.npz`, or `cpu.0.npz`, `cpu.1.npz`, … for an ensemble, and after
several where they are of all of them (`tpu-v5e+tpu-v6e.0.npz`): in the folder that `EXLA_WEIGHTS` names, else what was
learned on this machine (`exla.training.online`), else those that come with exla (`cost_model/weights/`). Scores of a
model have no scale of their own, so that each model's are brought to mean 0 and deviation 1 over the candidates before
they are averaged; how far the models are apart then is the doubt.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from exla.cost_model.ranker import Ranker, load_ranker, shipped_weights
from exla.cost_model.split_configs import COLUMNS, ROLES, describe
from exla.errors import CheckpointError
from exla.search.ranker import Ranking, file_name, targets_of
from exla.search.records import default_directory
from exla.search.space import Candidate


@dataclass(frozen=True, kw_only=True)
class Ensemble:
    """Models of one target that are asked together.

    Attributes:
      name: of the weights.
      rankers: one for each model.
    """

    name: str
    rankers: tuple[Ranker, ...]

    def rank(
        self, starts: Sequence[Candidate], candidates: Sequence[Candidate], option_sets: Sequence[Mapping[str, str]]
    ) -> Ranking:
        """Rank candidates of one space.

        Args:
          starts: `Space.starts`.
          candidates: of that space, each with its compile options.
          option_sets: `Space.option_sets`.

        Returns:
          The ranking; of candidates that score alike, the first given comes first.
        """
        if not candidates:
            return Ranking(order=(), scores=(), doubts=(), weights=self.name)
        described = describe(starts)
        configs = described.configs(candidates, option_sets)
        return replace(self.of(described.graph, configs), summaries=tuple(map(_summary, configs)))

    @property
    def leads(self) -> bool:
        """Whether the first pick was better than the prediction's on the programs that were held out, by the cards.

        So too where a card says nothing of that.
        """
        held_out = (ranker.trained.card.get("held_out", {}).get("by_device", {}) for ranker in self.rankers)
        return all(means["learned"] < means["analytic"] for found in held_out for means in found.values())

    def of(self, graph: Any, configs: np.ndarray) -> Ranking:
        """Rank configurations of one graph."""
        scores = np.stack([_standard(r.score(graph, configs)) for r in self.rankers])
        mean, doubts = scores.mean(axis=0), scores.std(axis=0)
        order = np.argsort(mean, kind="stable")
        return Ranking(
            order=tuple(map(int, order)),
            scores=tuple(map(float, mean)),
            doubts=tuple(map(float, doubts)),
            weights=self.name,
        )


def _summary(config: np.ndarray) -> dict[str, float]:
    """The mean of each number over the nodes of the candidate's own start to which it applies."""
    own = config[config[:, COLUMNS.index("role")] != ROLES.index("other_start")]
    means = ((name, own[:, k][own[:, k] >= 0]) for k, name in enumerate(COLUMNS))
    return {name: float(values.mean()) if len(values) else -1.0 for name, values in means}


def _standard(scores: np.ndarray) -> np.ndarray:
    centred: np.ndarray = scores.astype(np.float64) - scores.mean()
    return centred / max(centred.std(), 1e-9)


def own_folder(target: str) -> Path:
    """Where what is learned on this machine is kept: beside the user's records, whether it is there or not."""
    return default_directory() / "learned" / file_name(target)


def weights_in(folder: str) -> list[Path]:
    """The files of the folder that `EXLA_WEIGHTS` names.

    Raises:
      CheckpointError: if there are none.
    """
    paths = sorted(Path(folder).glob("*.npz"))
    if not paths:
        raise CheckpointError(f"EXLA_WEIGHTS={folder}: no folder with weights (*.npz) in it")
    return paths


def ranker_for(target: str, *, own: bool = True) -> Ensemble | None:
    """The ensemble of a target; None where there are no weights for it.

    Args:
      target: "cpu", "gpu:h200", "tpu:v5e", …
      own: whether what was learned on this machine counts.

    Raises:
      CheckpointError: if weights are there and cannot be used.
    """
    folder = os.environ.get("EXLA_WEIGHTS")
    paths = weights_in(folder) if folder else []
    if own and not folder:
        paths = sorted(own_folder(target).glob("*.npz"))
    prefix = file_name(target)
    paths = paths or list(shipped_weights().values())
    mine = [path for path in paths if prefix in targets_of(path)]
    if folder and not mine:
        there = ", ".join(path.name for path in paths)
        raise CheckpointError(
            f"EXLA_WEIGHTS={folder}: none is called {prefix}.npz or {prefix}.0.npz, …; there are {there}"
        )
    if not mine:
        return None
    return Ensemble(name=prefix, rankers=tuple(load_ranker(path) for path in mine))
