"""Graph -> smaller graph, with a record of what is left; and a graph cut into segments.

    reduced = prune(graph, hops=3)
    reduced.graph.node_feat                 # of the nodes that are left
    reduced.nodes                           # which they were: reduced.graph's node i was graph's node reduced.nodes[i]

No transform changes its argument or the features of a node. All treat nodes alike wherever they stand in the arrays:
what is done to a graph whose nodes have been shuffled is what is done to the graph, shuffled. `segments` is the
exception: which of several orders or cuts it finds depends on the order of the nodes.
"""

from exla.cost_model.transforms.cutting import METHODS, segments
from exla.cost_model.transforms.paths import compress_paths
from exla.cost_model.transforms.pruning import prune
from exla.cost_model.transforms.reduced import Reduced, deduplicate_edges, subgraph

__all__ = ["METHODS", "Reduced", "compress_paths", "deduplicate_edges", "prune", "segments", "subgraph"]
