"""Batches: several programs, each with the same number of candidates, as one `jraph.GraphsTuple` of fixed sizes.

XLA compiles a model once for each shape, so graphs are padded: nodes, edges and configurable nodes up to
sizes of a short list (`bucket`), candidates up to a number that the caller says. As jraph wants it, padding
nodes and edges belong to one more graph at the end, and masks say what is real:

    batch = collate([Sample(graph=graph, node_config=configs, runtime=runtime)], normaliser)
    scores = model.apply(variables, batch)          # (graphs + 1, candidates); the last row is padding

The candidates of a graph share its nodes: values of a node are `(candidates, channels)`, so that what does
not depend on the candidate is computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jraph
import numpy as np

from exla.cost_model.graph import NODE_CONFIG_FEATURES, TILE_CONFIG_FEATURES, Graph
from exla.cost_model.neighbours import Neighbours, beyond_table, listed
from exla.cost_model.normalise import Normaliser

SMALLEST_BUCKET = 16
UNUSED = -1
"""What a configuration holds where a number does not apply."""
LAYOUT = slice(134, 140)
"""Columns of node_feat: the layout of the node's own shape, minor to major."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One program with c candidates.

    Fields:
      graph: n nodes, nc of them configurable.
      node_config: (c, nc, 18) float32; for a data set of tile sizes (c, 0, 18).
      graph_config: (c, 24) float32, or None where candidates configure nodes.
      runtime: (c,) int64 or float64, any unit, less is faster; None where it is asked for.
    """

    graph: Graph
    node_config: np.ndarray
    graph_config: np.ndarray | None = None
    runtime: np.ndarray | None = None

    @property
    def num_configs(self) -> int:
        return len(self.node_config)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Batch:
    """g programs and one of padding, c candidates each; N nodes, M edges, K configurable nodes, all with padding.

    Fields:
      graph: `jraph.GraphsTuple`: nodes {"feat": (N, 140) float32, normalised, "layout": (N, 6) float32,
        "opcode": (N,) int32}; senders (producers) and receivers (consumers) (M,) int32, receivers ascending;
        n_node, n_edge (g + 1,) int32.
      node_graph: (N,) int32, the program of each node, ascending.
      node_mask: (N,) bool, True where the node is real.
      producers, consumers: `Neighbours` of each node; what models sum over, in place of senders and receivers.
      config_ids: (K,) int32, nodes; padding names the last node, which is padding itself.
      config_graph: (K,) int32, the program of each configurable node; padding names the last.
      config_mask: (K,) bool.
      node_config: (K, c, 18) float32, as in the data: -1 where a number does not apply.
      graph_config: (g + 1, c, 24) float32, normalised; zeros where nodes are configured.
      candidate_mask: (g + 1, c) bool, True where the candidate is real.
      rank: (g + 1, c) float32: the candidate's place among those of its program in the batch, 0 fastest to 1
        slowest, ties share the mean place; from the exact runtimes, which float32 would tie.
      delay: (g + 1, c) float32: log2 of the candidate's runtime over the least of its program in the batch.
    """

    graph: jraph.GraphsTuple
    node_graph: jax.Array
    node_mask: jax.Array
    producers: Neighbours
    consumers: Neighbours
    config_ids: jax.Array
    config_graph: jax.Array
    config_mask: jax.Array
    node_config: jax.Array
    graph_config: jax.Array
    candidate_mask: jax.Array
    rank: jax.Array
    delay: jax.Array

    @property
    def num_graphs(self) -> int:
        """Programs, with the one of padding."""
        return self.graph.n_node.shape[0]


def bucket(size: int) -> int:
    """The smallest of 16, 20, 24, 28, 32, 40, 48, … that is at least `size`, and at most a quarter more."""
    largest = SMALLEST_BUCKET
    while largest < size:
        largest *= 2
    step = max(largest // 8, SMALLEST_BUCKET // 4)
    return max(SMALLEST_BUCKET, -(-size // step) * step)


def some(size: int) -> int:
    """`bucket` of what most programs have none of: 0 stays 0."""
    return bucket(size) if size else 0


def ranks(runtime: np.ndarray) -> np.ndarray:
    """Place of each runtime, 0 fastest to 1 slowest, ties sharing the mean place: (c,) -> (c,) float32."""
    order = np.argsort(runtime, kind="stable")
    place = np.empty(len(runtime))
    place[order] = np.arange(len(runtime))
    _, same = np.unique(runtime, return_inverse=True)
    mean = np.bincount(same, place) / np.bincount(same)
    return (mean[same] / max(1, len(runtime) - 1)).astype(np.float32)


def collate(
    samples: Sequence[Sample],
    normaliser: Normaliser,
    *,
    num_configs: int | None = None,
    num_graphs: int | None = None,
    num_nodes: int | None = None,
    num_edges: int | None = None,
    num_more_edges: int | None = None,
    num_config_nodes: int | None = None,
) -> Batch:
    """Put programs together.

    Args:
      samples: at least one.
      normaliser: how features are scaled.
      num_configs: candidates that each program is padded to; the largest number among the samples if None.
      num_graphs, num_nodes, num_edges, num_config_nodes: sizes to pad to, without and with padding as in
        `Batch`; the number of samples and the next `bucket` if None.
      num_more_edges: edges beyond the tables of `Neighbours` that there is room for, in the same way.

    Returns:
      a `Batch` of numpy arrays.

    Raises:
      ValueError: if a size asked for is too small, or configurations do not fit their graph.
    """
    graphs = [sample.graph for sample in samples]
    c = _padded("num_configs", num_configs, max(sample.num_configs for sample in samples), lambda size: size)
    nodes = _padded("num_nodes", num_nodes, sum(graph.num_nodes for graph in graphs) + 1, bucket)
    edges = _padded("num_edges", num_edges, sum(graph.num_edges for graph in graphs), bucket)
    more = _padded("num_more_edges", num_more_edges, sum(map(beyond_table, graphs)), some)
    programs = _padded("num_graphs", num_graphs, len(graphs), lambda size: size)
    config_nodes = [graph.num_config_nodes for graph in graphs]
    configurable = _padded("num_config_nodes", num_config_nodes, sum(config_nodes), bucket)

    joined = jraph.batch_np([_as_tuple(graph, normaliser) for graph in graphs])
    padded = jraph.pad_with_graphs(joined, nodes, edges, programs + 1)
    first: np.ndarray = np.cumsum([0] + [graph.num_nodes for graph in graphs])
    return Batch(
        graph=padded,
        node_graph=np.repeat(np.arange(programs + 1, dtype=np.int32), padded.n_node),
        node_mask=np.arange(nodes) < first[-1],
        producers=listed(joined.receivers, joined.senders, nodes, more),
        consumers=listed(joined.senders, joined.receivers, nodes, more),
        config_ids=_extended(
            [graph.node_config_ids + at for graph, at in zip(graphs, first, strict=False)], configurable, nodes - 1
        ).astype(np.int32),
        config_graph=_extended([np.repeat(np.arange(len(graphs)), config_nodes)], configurable, programs).astype(
            np.int32
        ),
        config_mask=np.arange(configurable) < sum(config_nodes),
        **_candidates(samples, normaliser, configurable, programs + 1, c),
    )


def with_candidates(batch: Batch, samples: Sequence[Sample], normaliser: Normaliser) -> Batch:
    """The same programs with other candidates, as `collate` would put them together; of the same sizes.

    Raises:
      ValueError: if there are more candidates than the batch has room for, or they do not fit their graph.
    """
    configurable, c, _ = batch.node_config.shape
    _padded("num_configs", c, max(sample.num_configs for sample in samples), bucket)
    return replace(batch, **_candidates(samples, normaliser, configurable, batch.num_graphs, c))


def _candidates(
    samples: Sequence[Sample], normaliser: Normaliser, configurable: int, programs: int, c: int
) -> dict[str, Any]:
    """The fields of a `Batch` that depend on candidates; `programs` counts the one of padding."""
    return {
        "node_config": _extended([_node_config(sample, c) for sample in samples], configurable, UNUSED),
        "graph_config": _extended([_graph_config(sample, c, normaliser) for sample in samples], programs, 0),
        "candidate_mask": _extended([np.arange(c)[None] < sample.num_configs for sample in samples], programs, False),
        "rank": _extended([_rank(sample, c) for sample in samples], programs, 0),
        "delay": _extended([_delay(sample, c) for sample in samples], programs, 0),
    }


def _padded(name: str, asked: int | None, needed: int, default: Callable[[int], int]) -> int:
    if asked is None:
        return default(needed)
    if asked < needed:
        raise ValueError(f"{name}={asked} is too small for this batch, which needs {needed}")
    return asked


def _extended(parts: Sequence[np.ndarray], size: int, fill: float) -> np.ndarray:
    """The parts one after another, and `fill` up to `size` rows."""
    whole = np.concatenate(parts)
    return np.concatenate([whole, np.full((size - len(whole), *whole.shape[1:]), fill, whole.dtype)])


def _columns(values: np.ndarray, c: int, fill: float) -> np.ndarray:
    """(rows, candidates, ...) -> (rows, c, ...)."""
    missing = np.full((len(values), c - values.shape[1], *values.shape[2:]), fill, values.dtype)
    return np.concatenate([values, missing], axis=1)


def _as_tuple(graph: Graph, normaliser: Normaliser) -> jraph.GraphsTuple:
    by_consumer = graph.edge_index[np.argsort(graph.edge_index[:, 0], kind="stable")].astype(np.int32)
    return jraph.GraphsTuple(
        nodes={
            "feat": normaliser.node_feat(graph),
            "layout": graph.node_feat[:, LAYOUT],
            "opcode": graph.node_opcode.astype(np.int32),
        },
        edges=None,
        globals=None,
        senders=by_consumer[:, 1],
        receivers=by_consumer[:, 0],
        n_node=np.array([graph.num_nodes], np.int32),
        n_edge=np.array([graph.num_edges], np.int32),
    )


def _node_config(sample: Sample, c: int) -> np.ndarray:
    graph, expected = sample.graph, (sample.num_configs, sample.graph.num_config_nodes, NODE_CONFIG_FEATURES)
    if sample.node_config.shape != expected:
        raise ValueError(f"{graph.name}: configurations of shape {sample.node_config.shape}, expected {expected}")
    return _columns(sample.node_config.swapaxes(0, 1).astype(np.float32), c, UNUSED)


def _graph_config(sample: Sample, c: int, normaliser: Normaliser) -> np.ndarray:
    if sample.graph_config is None:
        return np.zeros((1, c, TILE_CONFIG_FEATURES), np.float32)
    expected = (sample.num_configs, TILE_CONFIG_FEATURES)
    if sample.graph_config.shape != expected:
        raise ValueError(
            f"{sample.graph.name}: configurations of shape {sample.graph_config.shape}, expected {expected}"
        )
    return _columns(normaliser.graph_config(sample.graph_config)[None], c, 0)


def _rank(sample: Sample, c: int) -> np.ndarray:
    place = np.zeros(sample.num_configs, np.float32) if sample.runtime is None else ranks(sample.runtime)
    return _columns(place[None], c, 0)


def _delay(sample: Sample, c: int) -> np.ndarray:
    if sample.runtime is None:
        return np.zeros((1, c), np.float32)
    runtime = np.maximum(sample.runtime, 1e-30)  # a time of 0 has no logarithm
    return _columns(np.log2(runtime / runtime.min()).astype(np.float32)[None], c, 0)
