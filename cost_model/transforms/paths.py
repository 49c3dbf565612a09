"""Chains that only pass a value on.

Between two nodes that matter there is often a chain of nodes (convert, reshape, multiply by a constant that was folded)
each of which reads one node and is read by one. `compress_paths` takes them out:

    a -> x -> y -> b        becomes        a -> b
"""

from __future__ import annotations

import numpy as np

from exla.cost_model.graph import Graph
from exla.cost_model.transforms.reduced import Reduced, distinct, reduce_to


def compress_paths(graph: Graph) -> Reduced:
    """Drop every node that only passes a value on, and join its producer to its consumer.

    A node is dropped if it is not configurable, and has one producer and one consumer; several edges between the same
    two nodes count once, and edges of a node with itself do not count. This is said of the graph as it is given, and
    done once: a node that has a single producer only since a chain beside it is gone stays. Of two nodes that stay, one
    can be reached from the other exactly if it could before. A ring of nodes that would all go stays.

    rewrite: producer -> x -> ... -> y -> consumer: producer -> consumer

    Args:
      graph: n nodes. Its edges come out sorted, each once, none from a node to itself.
    """
    edges = distinct(graph.edge_index)
    consumers, producers = edges.T
    count = graph.num_nodes
    passing = (np.bincount(consumers, minlength=count) == 1) & (np.bincount(producers, minlength=count) == 1)
    passing[graph.node_config_ids] = False

    source = np.arange(count)  # of a passing node, its producer; then the first that stays of those before it
    source[consumers[passing[consumers]]] = producers[passing[consumers]]
    for _ in range(count.bit_length()):
        source = source[source]
    passing &= ~passing[source]  # what still comes from a passing node goes round in a ring
    source[~passing] = np.flatnonzero(~passing)

    left = ~passing[consumers]
    joined = np.stack([consumers[left], source[producers[left]]], axis=1)
    return reduce_to(graph, ~passing, distinct(joined))
