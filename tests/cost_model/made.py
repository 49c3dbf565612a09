"""Small random programs with candidates, for tests of the cost models."""

import jax
import numpy as np

from exla.cost_model.batch import Sample
from exla.cost_model.graph import Graph
from exla.cost_model.normalise import Normaliser


def made_sample(seed, *, nodes=12, edges=20, config_nodes=4, candidates=6):
    """A random acyclic program; its runtimes, int64, are the sum of its configurations' first numbers."""
    rng = np.random.default_rng(seed)
    producer = rng.integers(0, nodes - 1, edges)
    consumer = rng.integers(producer + 1, nodes)
    graph = Graph(
        name=f"made {seed}",
        node_feat=np.floor(np.exp(rng.normal(size=(nodes, 140)) * 2)).astype(np.float32),
        node_opcode=rng.integers(0, 120, nodes).astype(np.uint8),
        edge_index=np.unique(np.stack([consumer, producer], 1), axis=0),
        node_config_ids=np.sort(rng.choice(nodes, config_nodes, replace=False)),
        node_splits=np.array([0, nodes]),
    )
    node_config = rng.integers(-1, 6, (candidates, config_nodes, 18)).astype(np.float32)
    graph_config = rng.integers(0, 200, (candidates, 24)).astype(np.float32)
    runtime = (1000 + 10 * node_config[..., 0].sum(1) + graph_config[:, 0]).astype(np.int64)
    return Sample(graph=graph, node_config=node_config, graph_config=graph_config, runtime=runtime)


def fitted(samples):
    return Normaliser.fit([s.graph for s in samples], [s.graph_config for s in samples])


def shuffled(sample, seed=0):
    """The same program with its nodes, edges and configurable nodes in another order."""
    rng, graph = np.random.default_rng(seed), sample.graph
    order = rng.permutation(graph.num_nodes)
    place = np.argsort(order)
    config_order = rng.permutation(graph.num_config_nodes)
    moved = Graph(
        name=graph.name,
        node_feat=graph.node_feat[order],
        node_opcode=graph.node_opcode[order],
        edge_index=rng.permutation(place[graph.edge_index]),
        node_config_ids=place[graph.node_config_ids[config_order]],
        node_splits=graph.node_splits,
    )
    return Sample(
        graph=moved,
        node_config=sample.node_config[:, config_order],
        graph_config=sample.graph_config,
        runtime=sample.runtime,
    )


def weights(model, batch, seed=0):
    """Variables of the model, of the sizes that its own start has, without compiling that."""
    rng = np.random.default_rng(seed)

    def made(path, leaf):
        if path[-1].key == "kernel":
            return (rng.normal(size=leaf.shape) / np.sqrt(leaf.shape[0])).astype(leaf.dtype)
        return np.full(leaf.shape, float(path[-1].key == "scale"), leaf.dtype) + (
            rng.normal(size=leaf.shape).astype(leaf.dtype) if path[-1].key == "embedding" else 0
        )

    return jax.tree_util.tree_map_with_path(made, jax.eval_shape(model.init, jax.random.key(0), batch))
