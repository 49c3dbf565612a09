"""Scores of a model for the configurations of programs, over all devices.

    ranked = Scorer(model, normaliser, mesh, configs=64).rank(variables, split.held_out)
    ranked[0].scores, ranked[0].runtime         # (k,) each, lower is faster

A model may compare the configurations that it sees together (`layers.CrossConfigAttention`), so that they are scored
as in training: so many at a time, in a random order that depends on the file alone. What is missing from the last lot
is filled with others of the program, whose scores are not used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import jax
import numpy as np
from flax import linen as nn
from jax.sharding import Mesh

from exla.cost_model.batch import collate
from exla.cost_model.normalise import Normaliser
from exla.training.data import Part
from exla.training.parallel import local_shards, replicated, spread
from exla.training.sampling import Sizes, size_classes
from exla.training.step import Variables, make_apply


@dataclass(frozen=True, kw_only=True, eq=False)
class Ranked:
    """Scores of one program's configurations.

    Attributes:
      name: of the program.
      scores: (k,) float32, lower is faster.
      runtime: (k,) of the same configurations.
      noise_floor: the Kendall tau of the true order, as far as duplicates in the file tell; None if they do not.
    """

    name: str
    scores: np.ndarray
    runtime: np.ndarray
    noise_floor: float | None = None

    @classmethod
    def of(cls, part: Part, scores: np.ndarray) -> Ranked:
        """Scores (k,) of all rows of a part."""
        return cls(name=part.name, scores=scores, runtime=part.runtime, noise_floor=part.program.noise["kendall_tau"])


class Scorer:
    """Scores of a model, over all devices.

    Args:
      model: scores a batch.
      normaliser: that it was trained with.
      mesh: the devices.
      configs: how many configurations it sees together.
    """

    def __init__(self, model: nn.Module, normaliser: Normaliser, mesh: Mesh, *, configs: int) -> None:
        self.normaliser, self.mesh, self.configs = normaliser, mesh, configs
        self._scores = jax.jit(make_apply(model, mesh, train=False), out_shardings=replicated(mesh))

    def rank(self, variables: Variables, parts: Sequence[Part]) -> list[Ranked]:
        """Score all rows of some parts, in their order."""
        scores: list[np.ndarray] = [np.empty(len(part.rows), np.float32) for part in parts]
        here = local_shards(self.mesh)
        for members in size_classes(parts):
            graphs = [parts[i].program.graph for i in members]
            sizes = asdict(Sizes.of(graphs, num_graphs=1, num_configs=self.configs))
            lots = [(i, *lot) for i in members.tolist() for lot in in_lots(parts[i], self.configs)]
            for at in range(0, len(lots), self.mesh.size):
                together = lots[at : at + self.mesh.size]
                padded = together + together[-1:] * (self.mesh.size - len(together))
                shards = [
                    collate([parts[i].sample(lot)], self.normaliser, **sizes)
                    for i, _, lot in (padded[place] for place in here)
                ]
                found = np.asarray(self._scores(variables, spread(self.mesh, shards)))
                for (i, new, _), values in zip(together, found[:, 0], strict=False):
                    scores[i][new] = values[: len(new)]
        return [Ranked.of(part, found) for part, found in zip(parts, scores, strict=True)]


def in_lots(part: Part, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """All rows in random order, so many at a time, and the same filled up from the first of them."""
    count = len(part.rows)
    order = np.random.default_rng(int(part.program.sha256[:16], 16)).permutation(count)
    for start in range(0, count, size):
        new = order[start : start + size]
        yield new, np.concatenate([new, order[: min(size, count) - len(new)]])
