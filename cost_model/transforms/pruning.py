"""What is near the configurable nodes.

A layout or a split changes how its own node runs, and those beside it; what is far away costs the same under every
configuration, and drops out of a comparison of two.
"""

from __future__ import annotations

import numpy as np

from exla.cost_model.graph import Graph
from exla.cost_model.transforms.reduced import Reduced, subgraph
from exla.errors import OptionError


def prune(graph: Graph, hops: int) -> Reduced:
    """Keep the nodes within some hops of a configurable node, whichever way the edges run, and the edges between them.

    A graph without configurable nodes is kept whole: its configurations are of all of it.

    Args:
      graph: n nodes.
      hops: how many edges away a node may be; 0 keeps the configurable nodes alone.

    Raises:
      OptionError: if hops is negative.
    """
    if hops < 0:
        raise OptionError(f"hops is the number of edges that a kept node may be away, from 0; it was {hops}")
    near = np.full(graph.num_nodes, graph.num_config_nodes == 0)
    near[graph.node_config_ids] = True
    consumers, producers = graph.edge_index.reshape(-1, 2).T
    for _ in range(hops):
        count = near.sum()
        reached = near.copy()
        reached[consumers[near[producers]]] = True
        reached[producers[near[consumers]]] = True
        near = reached
        if near.sum() == count:
            break
    return subgraph(graph, np.flatnonzero(near))
