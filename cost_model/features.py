"""From an HLO module to a graph, as TpuGraphs made its graphs.

    lowered = jax.jit(f).lower(x)
    module = parse_module(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto())
    features = featurize(module)
    features.graph.node_feat.shape          # (n, 140)
    features.op_names[7]                    # "jit(f)/while/body/add": the named scopes that node 7 comes from

Any module will do, before and after optimisation. TpuGraphs' conventions, as the published files have them (two of the
layout collection, twelve of the tile collection; `tests/cost_model/test_tpugraphs_conventions.py` checks each):

- Nodes are the instructions of all computations, in the order of the module: callees before callers, operands before
  users. Constants and parameters are nodes; the numbers in a constant are not kept.
- Edges are [consumer, producer], without duplicates, sorted by consumer, then producer. An instruction consumes its
  operands and the roots of the computations that it calls (the reducer of a reduce, the body and condition of a while,
  the fused computation of a fusion). Nothing points at the parameters of a called computation, and order that is only
  asked for (control predecessors) is no edge.
- `is_root` is 1 of the root of every computation, not only of the entry; a root need not be the last instruction of its
  computation (an outfeed may follow it).
- Lists are cut to the first six axes (two for slices and pads, four for convolutions' spatial axes) and padded with 0;
  their sum and product are over all axes. The sum of nothing is 0 and its product 1: a scalar, a tuple and a token have
  `shape_dimensions_product` 1, and where there is no window, slice or pad, the products are 1 and all else is 0. So too
  `window_window_reversal_false_count` is 0 where there is no window, and the number of its axes where none is reversed.
- A tuple has no sizes and no layout, only `shape_tuple_shapes_size`, the length of its outermost level.
- `dimensions` and `layout_minor_to_major` are lists of axes, so that padding looks like axis 0. The `dimensions` of a
  broadcast, reduce, concatenate, iota or sort are as in the HLO.
- `feature_group_count` and `batch_group_count` are 1 of a convolution and of a custom call, else 0.
- `element_size_in_bits` is always 0.
- `node_splits` begins with 0, ends with n, and cuts behind each computation that control flow calls (body, condition,
  branch), with the reducers and fusions before it, where that computation ends with its root. This is what fits both
  layout files (the body in one ends with an outfeed, and there is no cut behind it); TpuGraphs does not say.

What TpuGraphs could not have: an opcode that its table does not know is 0, an element type that it does not know has
the feature of the narrowest known one of its kind (`node_features.STAND_INS`: fp8 and fp4 are f16, int4 and int2 are s8
or u8), a dynamic axis has its bound as its size, or 0 where it is unbounded. `Features` names all three.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from exla.cost_model.graph import NODE_FEATURES as NODE_FEATURE_COUNT
from exla.cost_model.graph import Graph
from exla.cost_model.hlo import entry_computation
from exla.cost_model.hlo_pb2 import HloModuleProto
from exla.cost_model.node_features import Node, element_type, element_type_feature, node_row
from exla.cost_model.opcodes import UNKNOWN, opcode_id

CONTROL_FLOW = frozenset({"while", "conditional", "call"})
"""Opcodes whose computations run as programs of their own; what others call is part of one operation."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Features:
    """A module as a graph of n nodes, and what its nodes were called.

    Attributes:
      graph: the graph; no node is configurable yet.
      instruction_names: n names, as "add.5".
      op_names: n names of what the program's author wrote, as "jit(f)/while/body/add"; "" where XLA was told none.
        They are as JAX wrote them: before optimisation, the names in a function that is called begin at that function.
      unknown_opcodes: opcode that has no id -> how many nodes have it, and 0 as their opcode.
      replaced_types: element type that has no feature -> how many nodes have it, and that of a stand-in.
      dynamic_nodes: the nodes with an axis whose size is only known when they run, in order.
    """

    graph: Graph
    instruction_names: tuple[str, ...]
    op_names: tuple[str, ...]
    unknown_opcodes: Mapping[str, int]
    replaced_types: Mapping[str, int]
    dynamic_nodes: tuple[int, ...]

    def arrays(self) -> dict[str, np.ndarray]:
        """What is written into a file: TpuGraphs' arrays (`node_splits` is (1, k) there), and the names."""
        return {
            "node_feat": self.graph.node_feat,
            "node_opcode": self.graph.node_opcode,
            "edge_index": self.graph.edge_index,
            "node_splits": self.graph.node_splits[None, :],
            "instruction_names": np.array(self.instruction_names, np.str_),
            "op_names": np.array(self.op_names, np.str_),
        }


def featurize(module: HloModuleProto, *, name: str = "") -> Features:
    """Make the graph of a module.

    Args:
      module: a module that `exla.cost_model.hlo` read, so that it is whole.
      name: what the graph is called; the module's name if empty.
    """
    instructions = [(c, i) for c in module.computations for i in c.instructions]
    nodes = [Node(instruction=i, is_root=i.id == c.root_id) for c, i in instructions]
    opcodes = np.array([opcode_id(n.instruction.opcode) for n in nodes], np.uint8)
    types = [element_type(n.instruction) for n in nodes]
    graph = Graph(
        name=name or module.name,
        node_feat=np.array([node_row(n) for n in nodes], np.float32).reshape(-1, NODE_FEATURE_COUNT),
        node_opcode=opcodes,
        edge_index=_edges(module),
        node_splits=_splits(module),
    )
    return Features(
        graph=graph,
        instruction_names=tuple(n.instruction.name for n in nodes),
        op_names=tuple(n.instruction.metadata.op_name for n in nodes),
        unknown_opcodes=Counter(n.instruction.opcode for n, o in zip(nodes, opcodes, strict=True) if o == UNKNOWN),
        replaced_types=Counter(t for t in types if element_type_feature(t) != t),
        dynamic_nodes=tuple(k for k, n in enumerate(nodes) if _is_dynamic(n.instruction.shape)),
    )


def _edges(module: HloModuleProto) -> np.ndarray:
    """Rows of [consumer, producer], sorted, each once."""
    positions = _positions(module)
    roots = {c.id: positions[c.id, c.root_id] for c in module.computations}
    edges = set[tuple[int, int]]()
    for computation in module.computations:
        for instruction in computation.instructions:
            consumer = positions[computation.id, instruction.id]
            edges.update((consumer, positions[computation.id, operand]) for operand in instruction.operand_ids)
            edges.update((consumer, roots[called]) for called in instruction.called_computation_ids)
    return np.array(sorted(edges), np.int64).reshape(-1, 2)


def _positions(module: HloModuleProto) -> dict[tuple[int, int], int]:
    """(computation's id, instruction's id) -> node: some releases of XLA number anew in each computation."""
    keys = ((c.id, i.id) for c in module.computations for i in c.instructions)
    return {key: position for position, key in enumerate(keys)}


def _splits(module: HloModuleProto) -> np.ndarray:
    entry = entry_computation(module)
    main = set() if entry is None else {entry.id}
    for instruction in (i for c in module.computations for i in c.instructions):
        if instruction.opcode in CONTROL_FLOW:
            main.update(instruction.called_computation_ids)
    splits, end = [0], 0
    for computation in module.computations:
        end += len(computation.instructions)
        if computation.id in main and computation.instructions[-1].id == computation.root_id:
            splits.append(end)
    return np.array(splits if splits[-1] == end else [*splits, end], np.int64)


def _is_dynamic(shape: Any) -> bool:
    return (
        any(shape.is_dynamic_dimension)
        or any(size < 0 for size in shape.dimensions)
        or any(_is_dynamic(one) for one in shape.tuple_shapes)
    )
