"""A graph cut into segments that fit on a device, for training on one at a time.

    for nodes in segments(graph, 1000):
        part = subgraph(graph, nodes)

METHODS is the table: a method takes a graph and a size, and returns the segments. Every node is in one segment, none is
larger than the size, and none is empty. To add a method is to add a function.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np

from exla.cost_model.graph import Graph
from exla.cost_model.transforms.reduced import distinct
from exla.errors import GraphError, OptionError


def segments(graph: Graph, size: int, method: str = "topological") -> list[np.ndarray]:
    """Cut a graph into segments.

    Args:
      graph: n nodes.
      size: how many nodes a segment may have.
      method: "topological" (runs of nodes in an order in which producers come before consumers, of even length) or
        "metis" (few edges between segments; needs pymetis, and the extra `train`).

    Returns:
      (k,) int64 arrays of nodes, in topological order or ascending; no array of an empty graph.

    Raises:
      OptionError: if there is no such method, or size is less than 1.
      GraphError: if the graph has a cycle, and the method is "topological".
      ImportError: if the method is "metis", and pymetis is not installed.
    """
    if method not in METHODS:
        raise OptionError(f"there is no method {method!r} to cut a graph by; there are: {', '.join(METHODS)}")
    if size < 1:
        raise OptionError(f"size is how many nodes a segment may have, from 1; it was {size}")
    return METHODS[method](graph, size) if graph.num_nodes else []


def topological_order(graph: Graph) -> np.ndarray:
    """(n,) int64: all nodes, producers before consumers; of those that may come next, the first in the graph.

    Raises:
      GraphError: if there is a cycle.
    """
    edges = distinct(graph.edge_index)
    waiting = np.bincount(edges[:, 0], minlength=graph.num_nodes)
    readers = _neighbours(edges[:, 1], edges[:, 0], graph.num_nodes)
    ready = np.flatnonzero(waiting == 0).tolist()
    order = list[int]()
    while ready:
        order.append(heapq.heappop(ready))
        for reader in readers[order[-1]]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, int(reader))
    if len(order) < graph.num_nodes:
        left = np.setdiff1d(np.arange(graph.num_nodes), order)
        raise GraphError(
            f"graph {graph.name!r} has a cycle, so that no order puts producers first: {len(left)} nodes are on it or "
            f"behind it, among them {left[:5].tolist()}"
        )
    return np.array(order, np.int64)


def _topological(graph: Graph, size: int) -> list[np.ndarray]:
    return np.array_split(topological_order(graph), -(-graph.num_nodes // size))


def _metis(graph: Graph, size: int) -> list[np.ndarray]:
    """METIS makes parts of about one size; those that are too large are cut again."""
    edges = distinct(graph.edge_index)
    both = distinct(np.concatenate([edges, edges[:, ::-1]]))
    done, todo = list[np.ndarray](), [np.arange(graph.num_nodes)]
    while todo:
        nodes = todo.pop()
        if len(nodes) <= size:
            done.append(nodes)
            continue
        parts = [part for part in _parts(nodes, both, -(-len(nodes) // size)) if len(part)]
        todo.extend(parts if len(parts) > 1 else np.array_split(nodes, 2))
    return sorted(done, key=lambda nodes: int(nodes[0]))


def _parts(nodes: np.ndarray, edges: np.ndarray, count: int) -> list[np.ndarray]:
    """METIS's parts of some nodes, ascending; `edges` run both ways."""
    try:
        import pymetis
    except ImportError as error:
        raise ImportError('graphs are cut by METIS with pymetis: pip install "exla[train]"') from error
    place = np.full(edges.max(initial=nodes.max()) + 1, -1)
    place[nodes] = np.arange(len(nodes))
    inside = place[edges]
    inside = inside[(inside >= 0).all(axis=1)]
    _, membership = pymetis.part_graph(count, adjacency=_neighbours(inside[:, 0], inside[:, 1], len(nodes)))
    return [nodes[np.asarray(membership) == part] for part in range(count)]


def _neighbours(from_: np.ndarray, to: np.ndarray, count: int) -> list[np.ndarray]:
    """Of each node, the ends of the edges that begin at it."""
    order = np.argsort(from_, kind="stable")
    return np.split(to[order], np.cumsum(np.bincount(from_, minlength=count))[:-1])


METHODS: dict[str, Callable[[Graph, int], list[np.ndarray]]] = {"topological": _topological, "metis": _metis}
"""Name -> a function of a graph that is not empty and a size."""
