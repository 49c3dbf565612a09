"""A part of a graph, and which part it is.

part = subgraph(graph, [2, 5, 6])
part.graph.num_nodes, part.nodes        # 3, [2 5 6]
configs[:, part.configs]                # the configurations of the configurable nodes that are left
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from exla.cost_model.graph import Graph
from exla.errors import GraphError


@dataclass(frozen=True, kw_only=True, eq=False)
class Reduced:
    """A graph of k of another's nodes, in their order.

    Attributes:
      graph: the graph that is left; its `node_config_ids` are the old ones that are left, in their order.
      nodes: (k,) int64, ascending: node i was the other's node nodes[i].
      configs: (kc,) int64, ascending: configurable node j was the other's configurable node configs[j], so that
        `node_config_feat[:, configs]` are its configurations.
    """

    graph: Graph
    nodes: np.ndarray
    configs: np.ndarray


def subgraph(graph: Graph, nodes: np.ndarray | Sequence[int]) -> Reduced:
    """Some nodes, and the edges between them.

    Args:
      graph: n nodes.
      nodes: which to keep, in any order; twice is once.

    Raises:
      GraphError: if there is no such node.
    """
    wanted: np.ndarray = np.asarray(nodes, np.int64).reshape(-1)
    outside = wanted[(wanted < 0) | (wanted >= graph.num_nodes)]
    if len(outside):
        raise GraphError(f"graph {graph.name!r} has {graph.num_nodes} nodes and none that is number {outside[0]}")
    kept: np.ndarray = np.zeros(graph.num_nodes, bool)
    kept[wanted] = True
    return reduce_to(graph, kept, graph.edge_index[kept[graph.edge_index].all(axis=1)])


def reduce_to(graph: Graph, kept: np.ndarray, edges: np.ndarray) -> Reduced:
    """Make the record of some nodes.

    Args:
      graph: n nodes.
      kept: (n,) bool.
      edges: (m, 2) int64, between kept nodes, by their old numbers.
    """
    nodes = np.flatnonzero(kept)
    before = np.concatenate([[0], np.cumsum(kept)])  # how many are kept of the first i
    configs = np.flatnonzero(kept[graph.node_config_ids])
    part = Graph(
        name=graph.name,
        node_feat=graph.node_feat[nodes],
        node_opcode=graph.node_opcode[nodes],
        edge_index=before[edges].reshape(-1, 2),
        node_config_ids=before[graph.node_config_ids[configs]],
        node_splits=np.unique(before[graph.node_splits]),
    )
    return Reduced(graph=part, nodes=nodes, configs=configs)


def deduplicate_edges(graph: Graph) -> Graph:
    """Every edge once, sorted by consumer, then producer, and none from a node to itself."""
    return replace(graph, edge_index=distinct(graph.edge_index))


def distinct(edges: np.ndarray) -> np.ndarray:
    """Rows of (m, 2) sorted, each once, without those of a node with itself."""
    edges = edges.reshape(-1, 2)
    return np.unique(edges[edges[:, 0] != edges[:, 1]], axis=0)
