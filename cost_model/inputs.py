"""What is done to a program before a model sees it, in training and ever after; saved with the model.

    graph, columns = Inputs(prune_hops=2).reduced(file.graph)
    sample = sample_of(graph, columns, file.configs([5, 2]))

Training, evaluation and ranking make their samples by these two, so that a model is asked about what it was trained on:
nodes and configurations on one footing (`cost_model/footing.py`), and the graph as small as the model's inputs say.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from exla.cost_model.batch import Sample
from exla.cost_model.footing import nodes_on_one_footing, tile_configs_on_one_footing
from exla.cost_model.graph import NODE_CONFIG_FEATURES, Graph
from exla.cost_model.transforms import compress_paths, prune


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """How a graph and its candidates become a batch.

    Fields:
      prune_hops: keep only nodes that are at most so many edges from a configurable one; None = all.
      compress_paths: drop nodes that only pass a value on.
      configs: how many candidates the model compares at a time: as many as in training, or as the config says.
      segment_size: most nodes that the model sees at a time, 0 = all; see `cost_model/pieces.py`.
      segment_method: "topological" or "metis".
    """

    prune_hops: int | None = None
    compress_paths: bool = False
    configs: int = 64
    segment_size: int = 0
    segment_method: str = "topological"

    def reduced(self, graph: Graph) -> tuple[Graph, np.ndarray]:
        """The graph as the model sees it, and (nc,) int64: which of its configurable nodes are left."""
        graph = replace(graph, node_feat=nodes_on_one_footing(graph.node_feat))
        columns = np.arange(graph.num_config_nodes)
        if self.prune_hops is not None:
            less = prune(graph, self.prune_hops)
            graph, columns = less.graph, columns[less.configs]
        if self.compress_paths:
            less = compress_paths(graph)
            graph, columns = less.graph, columns[less.configs]
        return graph, columns


def sample_of(graph: Graph, columns: np.ndarray, configs: np.ndarray, runtime: np.ndarray | None = None) -> Sample:
    """Candidates of a reduced graph, as the model sees them.

    Args:
      graph, columns: as `Inputs.reduced` gives them.
      configs: (c, nc, 18) of the configurable nodes that there were before, or (c, 24) of the whole kernel.
      runtime: (c,), None where it is asked for.
    """
    if configs.ndim == 2:
        nothing: np.ndarray = np.zeros((len(configs), graph.num_config_nodes, NODE_CONFIG_FEATURES), np.float32)
        kernel = tile_configs_on_one_footing(configs)
        return Sample(graph=graph, node_config=nothing, graph_config=kernel, runtime=runtime)
    return Sample(graph=graph, node_config=configs[:, columns], runtime=runtime)
