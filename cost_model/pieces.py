"""A program in segments, for models that see one at a time: the summary of the whole is the sum of their shares.

    cut = Cut.of(graph, size=1000, method="topological")
    sum(cut.shares[j] · summary(cut.sample(whole, j)) for j in range(len(cut.pieces)))

It is what `training/segments.py` trains with, and what scores the models that were trained so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from exla.cost_model.batch import Sample
from exla.cost_model.graph import Graph
from exla.cost_model.transforms import Reduced, segments, subgraph


@dataclass(frozen=True, kw_only=True, eq=False)
class Cut:
    """A graph in J segments.

    Attributes:
      pieces: J of them; `configs` of a piece are the configurable nodes that are in it.
      shares: (J, 2) float32, of the nodes and of the configurable nodes; each column sums to 1 (to 0 without any).
    """

    pieces: tuple[Reduced, ...]
    shares: np.ndarray

    @classmethod
    def of(cls, graph: Graph, *, size: int, method: str) -> Cut:
        """Cut a graph; see `transforms.segments`."""
        pieces = tuple(subgraph(graph, nodes) for nodes in segments(graph, size, method))
        counts = np.array([(p.graph.num_nodes, p.graph.num_config_nodes) for p in pieces], np.float32)
        return cls(pieces=pieces, shares=counts / np.maximum(counts.sum(0), 1))

    def sample(self, whole: Sample, number: int) -> Sample:
        """The part of a sample of the graph that is in one segment."""
        piece = self.pieces[number]
        return replace(whole, graph=piece.graph, node_config=whole.node_config[:, piece.configs])

    def share(self, number: int, width: int) -> np.ndarray:
        """(width,) what a summary of the segment, mean over nodes ‖ mean over configurable nodes, is multiplied by."""
        return np.repeat(self.shares[number], width // 2)
