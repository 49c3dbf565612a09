"""Which programs and configurations make a batch, as a function of a seed and a step.

    sampler = Sampler(split.train, normaliser, graphs=8, configs=64, shards=4, seed=0)
    sampler.chosen(17)          # the 8 programs of step 17, and 64 rows of each
    sampler.shard(17, 3)        # the last quarter of them, collated

Nothing is remembered from one step to the next, so that a run that is continued sees what it would have seen, and each
host makes its own shards of a batch without asking the others. An *epoch* takes every program once, in a random order.

XLA compiles a step once for each shape. Programs are therefore put in classes, in which the largest has at most twice
the nodes of the smallest; a batch is of one class, and all batches of a class have the shape of its largest programs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache

import numpy as np

from exla.cost_model.batch import Batch, bucket, collate, some
from exla.cost_model.graph import Graph
from exla.cost_model.neighbours import beyond_table
from exla.cost_model.normalise import Normaliser
from exla.training.data import Part


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What a batch is padded to: arguments of `collate`."""

    num_graphs: int
    num_configs: int
    num_nodes: int
    num_edges: int
    num_more_edges: int
    num_config_nodes: int

    @classmethod
    def of(cls, graphs: Sequence[Graph], *, num_graphs: int, num_configs: int) -> Sizes:
        """Sizes that hold any `num_graphs` of some graphs, the same one several times too."""
        return cls(
            num_graphs=num_graphs,
            num_configs=num_configs,
            num_nodes=bucket(num_graphs * max(g.num_nodes for g in graphs) + 1),
            num_edges=bucket(num_graphs * max(g.num_edges for g in graphs)),
            num_more_edges=some(num_graphs * max(map(beyond_table, graphs))),
            num_config_nodes=bucket(num_graphs * max(g.num_config_nodes for g in graphs)),
        )


def size_classes(parts: Sequence[Part]) -> list[np.ndarray]:
    """(k,) numbers of the parts of each class, classes from small to large: nodes from a power of two to the next."""
    found: defaultdict[int, list[int]] = defaultdict(list)
    for i, part in enumerate(parts):
        found[part.program.graph.num_nodes.bit_length()].append(i)
    return [np.array(found[size]) for size in sorted(found)]


@dataclass(frozen=True, kw_only=True, eq=False)
class Chosen:
    """One program of a batch.

    Attributes:
      part: its number.
      rows: (at most c,) numbers of the part's rows.
    """

    part: int
    rows: np.ndarray


class Sampler:
    """Batches of some parts.

    Args:
      parts: what is trained on.
      normaliser: how features are scaled.
      graphs: programs in a batch, over all shards.
      configs: configurations of each.
      shards: how many parts of one shape a batch has, one for a device.
      seed: of everything random.
    """

    def __init__(
        self, parts: Sequence[Part], normaliser: Normaliser, *, graphs: int, configs: int, shards: int, seed: int
    ) -> None:
        self.parts = tuple(parts)
        self.normaliser = normaliser
        self.graphs, self.configs, self.shards, self.seed = graphs, configs, shards, seed
        self.classes = size_classes(parts)
        per_shard = -(-graphs // shards)
        self.sizes = [
            Sizes.of([parts[i].program.graph for i in members], num_graphs=per_shard, num_configs=configs)
            for members in self.classes
        ]
        self._epoch = lru_cache(2)(self._epoch_of)

    @property
    def steps_per_epoch(self) -> int:
        return sum(-(-len(members) // self.graphs) for members in self.classes)

    def chosen(self, step: int) -> list[Chosen]:
        """The batch of a step, all its shards."""
        _, numbers = self._batch(step)
        random = np.random.default_rng([self.seed, 1, step])
        return [
            Chosen(part=i, rows=random.permutation(len(self.parts[i].rows))[: self.configs]) for i in numbers.tolist()
        ]

    def shard(self, step: int, number: int) -> Batch:
        """One shard of a step's batch, collated."""
        kind, _ = self._batch(step)
        mine = np.array_split(np.arange(self.graphs), self.shards)[number]
        chosen = self.chosen(step)
        samples = [self.parts[chosen[i].part].sample(chosen[i].rows) for i in mine]
        if samples:
            return collate(samples, self.normaliser, **asdict(self.sizes[kind]))
        other = self.parts[chosen[0].part].sample(chosen[0].rows)
        return without_candidates(collate([other], self.normaliser, **asdict(self.sizes[kind])))

    def _batch(self, step: int) -> tuple[int, np.ndarray]:
        epoch, number = divmod(step, self.steps_per_epoch)
        return self._epoch(epoch)[number]

    def _epoch_of(self, epoch: int) -> list[tuple[int, np.ndarray]]:
        """(class, (graphs,) numbers of parts) of each of its batches; what a last batch lacks is drawn again."""
        random = np.random.default_rng([self.seed, 0, epoch])
        batches = []
        for kind, members in enumerate(self.classes):
            order = random.permutation(members)
            missing = -len(order) % self.graphs
            order = np.concatenate([order, random.choice(members, missing)])
            batches += [(kind, numbers) for numbers in order.reshape(-1, self.graphs)]
        return [batches[i] for i in random.permutation(len(batches))]


def without_candidates(batch: Batch) -> Batch:
    """The same batch, of which nothing is real: the share of a device for which there is no program."""
    return replace(batch, candidate_mask=np.zeros_like(batch.candidate_mask))
