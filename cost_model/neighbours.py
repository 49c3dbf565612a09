"""The edges of a batch, in a form that sums over them are fast in.

    producers, consumers = listed(consumer, producer, nodes), listed(producer, consumer, nodes)
    total(producers, consumers, values)       # (N, c, h): the sum over the producers of each node

Most nodes of a program have a few producers and a few consumers, and some have hundreds. The first `LISTED` of each
node are columns of a table, and a column is read by one gather, which compilers join with what is done to the sum.
Only the edges beyond the table are scattered, row by row, into an array that has a row for the nodes they are of and
for no others; it is one column more. Sums over producers and over consumers are each other's transposes, so that the
gradient of the one is the other: gathers again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from exla.cost_model.graph import Graph

LISTED = 4
"""Columns of the table."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Neighbours:
    """The producers, or the consumers, of N nodes; padding edges are none of them.

    Fields:
      count: (N,) float32, how many a node has.
      table: (N, LISTED) int32, the first of them; the node itself where there are fewer.
      more: (R,) int32, those that have no place in the table, node by node.
      more_of: (R,) int32, ascending, numbers of the nodes whose they are, among those that have more; R where it is
        padding.
      place: (N,) int32, the number of each node that has more, -1 of the others.
    """

    count: jax.Array
    table: jax.Array
    more: jax.Array
    more_of: jax.Array
    place: jax.Array


def beyond_table(graph: Graph) -> int:
    """How many edges of a graph have no place in the table of its producers, or of its consumers: the larger number."""
    counts = (np.bincount(graph.edge_index[:, side], minlength=1) for side in (0, 1))
    return max(int(np.maximum(count - LISTED, 0).sum()) for count in counts)


def listed(of: np.ndarray, neighbour: np.ndarray, nodes: int, more: int) -> Neighbours:
    """Put edges into the form above.

    Args:
      of, neighbour: (M,) int32, each node and one of its neighbours.
      nodes: N.
      more: R, at least the number of edges that have no place in the table.

    Returns:
      `Neighbours` of numpy arrays.
    """
    order = np.argsort(of, kind="stable")
    of, neighbour = of[order], neighbour[order]
    column = np.arange(len(of)) - np.searchsorted(of, of)
    inside = column < LISTED
    table = np.repeat(np.arange(nodes, dtype=np.int32)[:, None], LISTED, axis=1)
    table[of[inside], column[inside]] = neighbour[inside]
    large, more_of = np.unique(of[~inside], return_inverse=True)
    place: np.ndarray = np.full(nodes, -1, np.int32)
    place[large] = np.arange(len(large))
    padding = (0, more - len(more_of))
    return Neighbours(
        count=np.bincount(of, minlength=nodes).astype(np.float32),
        table=table,
        more=np.pad(neighbour[~inside].astype(np.int32), padding),
        more_of=np.pad(more_of.astype(np.int32), padding, constant_values=more),
        place=place,
    )


@jax.custom_vjp
def total(neighbours: Neighbours, opposite: Neighbours, values: jax.Array) -> jax.Array:
    """The sum over the neighbours of each node: (N, c, h) -> (N, c, h); 0 where it has none.

    Args:
      neighbours: the producers, or the consumers.
      opposite: the others of the two, which the gradient is a sum over.
      values: of nodes.
    """
    found = jnp.zeros_like(values)
    for column in range(LISTED):
        there = (column < neighbours.count)[:, None, None]
        found += jnp.where(there, values[neighbours.table[:, column]], 0)
    if rows := neighbours.more.size:
        beyond = jax.ops.segment_sum(values[neighbours.more], neighbours.more_of, rows, indices_are_sorted=True)
        found += jnp.where((neighbours.place >= 0)[:, None, None], beyond[neighbours.place], 0)
    return found


def _forward(neighbours: Neighbours, opposite: Neighbours, values: jax.Array) -> tuple[jax.Array, Any]:
    return total(neighbours, opposite, values), (neighbours, opposite)


def _backward(edges: tuple[Neighbours, Neighbours], gradient: jax.Array) -> tuple[None, None, jax.Array]:
    neighbours, opposite = edges
    return None, None, total(opposite, neighbours, gradient)


total.defvjp(_forward, _backward)
