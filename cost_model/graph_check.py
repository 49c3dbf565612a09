"""What a graph has to be for a model to read it, whoever made it.

    check_graph(graph)    # GraphError: node_config_ids: expected nodes 0 to 29; found 30 in row 1. ...

Files of TpuGraphs are checked as they are read; this is for graphs made by hand or by other programs, which would end
in an error of an index deep inside, or in scores of something else. `node_splits` is not looked at: no model reads it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from exla.cost_model.graph import NODE_FEATURES, Graph
from exla.cost_model.opcodes import OPCODES
from exla.errors import GraphError, Problem

ARRAYS: dict[str, tuple[str, tuple[str | int, ...]]] = {
    "node_opcode": ("integers", ("n",)),
    "node_feat": ("numbers", ("n", NODE_FEATURES)),
    "edge_index": ("integers", ("m", 2)),
    "node_config_ids": ("integers", ("nc",)),
}
"""Array -> what it holds, of any width, and its shape; `node_opcode` says how many nodes there are."""
KINDS = {"integers": "iu", "numbers": "iuf"}


def check_graph(graph: Graph) -> None:
    """Check the arrays that models read.

    Raises:
      GraphError: with all that is wrong; values are looked at once all dtypes and shapes are right.
    """
    problems = list(_wrong_arrays(graph)) or list(_wrong_values(graph))
    if problems:
        lines = (f"  {problem}" for problem in problems)
        raise GraphError("\n".join([f"the graph {graph.name!r} cannot be used as it is:", *lines]))


def _wrong_arrays(graph: Graph) -> Iterator[Problem]:
    nodes: int | None = None
    for name, (holds, shape) in ARRAYS.items():
        values = getattr(graph, name)
        expected = f"an array of {holds} of shape ({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
        if nodes is not None and shape[0] == "n":
            expected += f", n = {nodes} by node_opcode"
        if not isinstance(values, np.ndarray):
            yield _problem(name, expected, f"a {type(values).__name__}", "Make it a numpy array.")
        elif values.dtype.kind not in KINDS[holds]:
            yield _problem(name, expected, f"dtype {values.dtype}", "Make the array with such a dtype.")
        elif len(values.shape) != len(shape) or values.shape[1:] != shape[1:]:
            yield _problem(name, expected, f"shape {values.shape}", "See `Graph` for what its axes are.")
        elif name == "node_opcode":
            nodes = len(values)
            if nodes == 0:
                yield _problem(name, "at least one node", "none", "A program has an instruction at least.")
        elif shape[0] == "n" and nodes not in (None, len(values)):
            yield _problem(name, expected, f"shape {values.shape}", "Arrays of one graph have to agree.")


def _wrong_values(graph: Graph) -> Iterator[Problem]:
    n = graph.num_nodes
    if (bad := (graph.node_opcode < 0) | (graph.node_opcode > len(OPCODES))).any():
        at = int(np.argmax(bad))
        found = f"{graph.node_opcode[at]} at node {at}"
        yield _problem("node_opcode", f"opcodes 0 to {len(OPCODES)}", found, "0 is for those that the table lacks.")
    if (bad := ~np.isfinite(graph.node_feat).all(axis=1)).any():
        found = f"NaN or infinity at node {int(np.argmax(bad))}"
        yield _problem("node_feat", "finite numbers", found, "A feature that does not apply is 0.")
    if (bad := _outside(graph.edge_index, n).any(axis=1)).any():
        at = int(np.argmax(bad))
        found = f"{graph.edge_index[at].tolist()} in row {at}"
        yield _problem("edge_index", f"nodes 0 to {n - 1}", found, "Rows are [consumer, producer], from 0.")
    if (bad := _outside(graph.node_config_ids, n)).any():
        at = int(np.argmax(bad))
        found = f"{graph.node_config_ids[at]} in row {at}"
        yield _problem("node_config_ids", f"nodes 0 to {n - 1}", found, "Configurable nodes are counted from 0.")
    ids, counts = np.unique(graph.node_config_ids, return_counts=True)
    if (counts > 1).any():
        at = int(np.argmax(counts > 1))
        yield _problem("node_config_ids", "each node once", f"node {ids[at]} {counts[at]} times", "Give each one row.")


def _outside(nodes: np.ndarray, n: int) -> np.ndarray:
    return (nodes < 0) | (nodes >= n)


def _problem(array: str, expected: str, found: str, next_step: str) -> Problem:
    return Problem(array=array, expected=expected, found=found, next_step=next_step)
