"""A trained model that ranks candidates of one program: what a search asks.

    ranker = load_ranker("runs/layout/weights.npz")     # or the name of weights that come with exla
    scores = ranker.score(graph, configs)               # (c,), lower is faster
    order = np.argsort(scores, kind="stable")

Sizes are padded to a few (`cost_model/batch.py`), so that programs of about one size share one compilation, and small
ones with few candidates all share one; with JAX's persistent compilation cache switched on, processes share it too.
Scores compare candidates of one call: they are not times, and those of two calls, or of two programs, do not belong on
one scale.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import jax
import numpy as np

from exla.cost_model.batch import Batch, Sample, bucket, collate, with_candidates
from exla.cost_model.checkpoint import Trained, load
from exla.cost_model.graph import NODE_CONFIG_FEATURES, TILE_CONFIG_FEATURES, Graph
from exla.cost_model.graph_check import check_graph
from exla.cost_model.inputs import sample_of
from exla.cost_model.models import KERNEL, MODELS, configures
from exla.cost_model.neighbours import beyond_table
from exla.cost_model.normalise import Normaliser
from exla.cost_model.pieces import Cut
from exla.errors import CheckpointError
from exla.targets.base import TARGETS
from exla.targets.machine import Work

ROWS_TOGETHER = 2**17
"""How many nodes × candidates are computed at the same time: what is scored at once takes memory at once."""
SMALL = {"num_nodes": 128, "num_edges": 256, "num_more_edges": 64, "num_config_nodes": 128}
FEW = 64
"""Graphs no larger than this, with so few candidates, are all padded to it: one compilation of a second serves them
all, and scoring takes 7 ms where sizes of their own would take 4."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Ranker:
    """Scores candidates with a trained model.

    Fields:
      name: of the weights, for reports.
      trained: the model.
    """

    name: str
    trained: Trained = field(repr=False)
    _apply: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        apply = _apply_of(self.trained.model, tuple(sorted(self.trained.options.items())))
        object.__setattr__(self, "_apply", apply)

    def score(self, graph: Graph, configs: np.ndarray) -> np.ndarray:
        """Rank candidates of one program.

        A model may compare candidates: a score depends on those it is seen with, and candidates that are scored
        together are the ones to compare. The same call gives the same scores.

        Args:
          graph: n nodes, nc of them configurable, features as in `cost_model/features.py`.
          configs: (c, nc, 18) numbers of each configurable node, or (c, 24) of the whole kernel, as the model reads.

        Returns:
          (c,) float32, lower is predicted to be faster.

        Raises:
          TypeError: if `graph` is no `Graph`.
          GraphError: if its arrays are not a graph's, or name nodes or opcodes that there are not.
          ValueError: if configurations do not fit the graph and the model, or are not numbers.
        """
        return self._grouped(graph, configs, "score")

    def summaries(self, graph: Graph, configs: np.ndarray) -> np.ndarray:
        """What the model's head makes its scores of; arguments and errors are those of `score`.

        Returns:
          (c, f) float32: the score is a linear function of it, for models that are trained by segments too.

        Raises:
          ValueError: also if the model has no such summary.
        """
        if not hasattr(MODELS.get(self.trained.model), "summary"):
            raise ValueError(f"{self.trained.model} has no summary that its score is a linear function of")
        return self._grouped(graph, configs, "summary")

    def _grouped(self, graph: Graph, configs: np.ndarray, what: str) -> np.ndarray:
        """Scores or summaries, as many candidates at a time as in training."""
        if not isinstance(graph, Graph):
            raise TypeError(f"expected a Graph, as `file.graph` or `features.graph` is; got {type(graph).__name__}")
        check_graph(graph)
        configs = np.asarray(configs, np.float32)
        of_kernel = configures(self.trained.model) == KERNEL
        expected = (TILE_CONFIG_FEATURES,) if of_kernel else (graph.num_config_nodes, NODE_CONFIG_FEATURES)
        if configs.shape[1:] != expected or configs.ndim != 1 + len(expected):
            raise ValueError(
                f"{graph.name}: configurations of shape {configs.shape}; {self.trained.model} reads "
                f"({', '.join(map(str, ('candidates', *expected)))}) for this graph of {graph.num_config_nodes} "
                "configurable nodes"
            )
        if not np.isfinite(configs).all():
            raise ValueError(f"{graph.name}: NaN or infinity in configuration {_first_bad(configs)}")
        if len(configs) == 0:
            return np.zeros(0, np.float32)
        reduced, columns = self.trained.inputs.reduced(graph)
        # As many at a time as in training, since a model may compare them; equal groups, so that one size is compiled.
        groups = -(-len(configs) // self.trained.inputs.configs)
        is_few = len(configs) <= FEW
        size = min(self.trained.inputs.configs, FEW) if is_few else bucket(-(-len(configs) // groups))
        program = _Program.of(self.trained, reduced, columns, configs[:1], size, is_few)

        def values(group: int) -> np.ndarray:
            # Candidates of a group are strided, not neighbours: neighbours are alike, and are better seen apart.
            mine = configs[group::groups]
            return self._values(program, sample_of(reduced, columns, mine), what)[: len(mine)]

        # Threads that need the same compilation wait for one of them: JAX sees to that.
        with ThreadPoolExecutor(program.groups_together(groups)) as threads:
            found = list(threads.map(values, range(groups)))
        out: np.ndarray = np.empty((len(configs), *found[0].shape[1:]), np.float32)
        for group, scores in enumerate(found):
            out[group::groups] = scores
        return out

    def _values(self, program: _Program, sample: Sample, what: str) -> np.ndarray:
        """Scores or summaries of a group of candidates, (c, …)."""
        variables, total = self.trained.variables, 0.0
        if program.cut is None:
            how = {} if what == "score" else {"method": what}
            return np.asarray(self._apply(variables, program.batch(0, sample), **how))[0]
        for number in range(len(program.cut.pieces)):
            summary = np.asarray(self._apply(variables, program.batch(number, sample), method="summary"))[0]
            total = total + summary * program.cut.share(number, summary.shape[-1])
        return np.asarray(self._apply(variables, total, method="score") if what == "score" else total)

    def describe(self) -> dict[str, Any]:
        """JSON values: the model, its options, its inputs and its card."""
        trained = self.trained
        return {
            "name": self.name,
            "model": trained.model,
            "options": dict(trained.options),
            "inputs": asdict(trained.inputs),
            "card": dict(trained.card),
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class _Program:
    """What all groups of candidates share: the graph as the model sees it, in batches, and where it was cut."""

    cut: Cut | None
    batches: tuple[Batch, ...]
    normaliser: Normaliser

    @classmethod
    def of(
        cls, trained: Trained, graph: Graph, columns: np.ndarray, configs: np.ndarray, size: int, is_few: bool
    ) -> _Program:
        """Batches with room for `size` candidates, and with some that are no matter; `is_few` where these are all."""
        inputs, sample = trained.inputs, sample_of(graph, columns, configs)
        cut = Cut.of(graph, size=inputs.segment_size, method=inputs.segment_method) if inputs.segment_size else None
        samples = [sample] if cut is None else [cut.sample(sample, number) for number in range(len(cut.pieces))]
        batches = (
            collate([one], trained.normaliser, num_configs=size, **(_small(one.graph) if is_few else {}))
            for one in samples
        )
        return cls(cut=cut, batches=tuple(batches), normaliser=trained.normaliser)

    def batch(self, number: int, sample: Sample) -> Batch:
        """One of the batches, with the candidates of `sample`, which are of the whole graph."""
        mine = sample if self.cut is None else self.cut.sample(sample, number)
        return with_candidates(self.batches[number], [mine], self.normaliser)

    def groups_together(self, groups: int) -> int:
        """How many groups to score at the same time: XLA leaves cores idle where a program is small."""
        rows = max(batch.node_mask.size * batch.candidate_mask.shape[1] for batch in self.batches)
        return max(1, min(groups, os.cpu_count() or 1, ROWS_TOGETHER // rows))


@lru_cache(maxsize=16)
def _apply_of(model: str, options: tuple[tuple[str, Any], ...]) -> Any:
    """A model's `apply`, compiled once for all the weights of an ensemble."""
    made = MODELS.get(model)(**dict(options))
    return jax.jit(made.apply, static_argnames="method", compiler_options=_compiler_options())


def _compiler_options() -> dict[str, str] | None:
    """What exla tells the compiler of programs that are mostly exponentials: the model has two of every value."""
    target = TARGETS.find(jax.default_backend())
    return dict(target.option_sets(Work(exponentials=1.0), target.usable_bytes())[0]) if target else None


def _small(graph: Graph) -> dict[str, int]:
    """`SMALL` where a graph has room in it, and else the sizes that `collate` pads to by itself."""
    needed = {
        "num_nodes": graph.num_nodes + 1,
        "num_edges": graph.num_edges,
        "num_more_edges": beyond_table(graph),
        "num_config_nodes": graph.num_config_nodes,
    }
    return SMALL if all(needed[name] <= room for name, room in SMALL.items()) else {}


def _first_bad(configs: np.ndarray) -> int:
    return int(np.flatnonzero(~np.isfinite(configs).all(axis=tuple(range(1, configs.ndim))))[0])


def shipped_weights() -> dict[str, Path]:
    """Name -> path, of the weights that come with exla."""
    folder = Path(str(resources.files("exla.cost_model"))) / "weights"
    return {path.stem: path for path in sorted(folder.glob("*.npz"))}


def load_ranker(weights: str | os.PathLike[str]) -> Ranker:
    """Load weights.

    Args:
      weights: a path, or the name of weights that come with exla (`shipped_weights`).

    Raises:
      CheckpointError: if there are none, or they cannot be used.
    """
    path = Path(weights)
    shipped = shipped_weights()
    if not path.is_file() and str(weights) in shipped:
        path = shipped[str(weights)]
    if not path.exists():
        names = ", ".join(shipped) or "none yet"
        raise CheckpointError(f"{weights}: no such file, and no such weights come with exla (there are: {names})")
    return Ranker(name=path.stem, trained=load(path))
