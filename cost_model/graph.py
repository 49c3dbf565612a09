"""One program as a graph: what every cost model reads, whether it came from TpuGraphs or from exla itself.

Nodes are HLO instructions, in the order of their computations; an edge runs from an operand to the
instruction that reads it, and is stored, as in TpuGraphs, as `[consumer, producer]`. Some nodes are
*configurable*: a candidate gives each of them a vector of numbers (a layout, or how it is split).

    Graph(name="add", node_feat=zeros((3, 140)), node_opcode=[63, 63, 2], edge_index=[[2, 0], [2, 1]])

It holds no configurations and no runtimes: many candidates share one graph.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

NODE_FEATURES = 140
"""Numbers that describe a node: TpuGraphs' feature table."""
OPCODES = 256
"""Opcode ids are bytes; 0 is an opcode that the table does not know."""
NODE_CONFIG_FEATURES = 18
"""Numbers in the configuration of one node: a layout, or a split."""
TILE_CONFIG_FEATURES = 24
"""Numbers in the configuration of a whole kernel: a tile size."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Graph:
    """A program of n instructions, m edges and nc configurable nodes.

    Fields:
      name: what it is called in reports.
      node_feat: (n, 140) float32, see `cost_model/features.py`.
      node_opcode: (n,) uint8.
      edge_index: (m, 2) int64, rows of [consumer, producer].
      node_config_ids: (nc,) int64, the configurable nodes, each once; empty where a configuration is of the
        whole kernel.
      node_splits: (k,) int64, TpuGraphs' own cut into segments: from 0, ascending, ending with n.
    """

    name: str
    node_feat: np.ndarray
    node_opcode: np.ndarray
    edge_index: np.ndarray
    node_config_ids: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    node_splits: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    def __repr__(self) -> str:
        counts = f"{self.num_nodes} nodes, {self.num_edges} edges, {self.num_config_nodes} of the nodes configurable"
        return f"<Graph {self.name!r}: {counts}>"

    @property
    def num_nodes(self) -> int:
        return len(self.node_opcode)

    @property
    def num_edges(self) -> int:
        return len(self.edge_index)

    @property
    def num_config_nodes(self) -> int:
        return len(self.node_config_ids)
