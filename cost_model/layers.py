"""What the models are made of: aggregation over edges, pooling over programs, and layers that compare candidates.

Values of nodes have shape (N, c, h): node, candidate, channel (`cost_model/batch.py`). A layer mixes along
one of the three: edges and `graph_mean` along nodes, `CrossConfigAttention` along candidates, dense layers
and `SqueezeExcite` along channels. Padding never reaches what is real: sums over nodes and candidates are
masked, and padding edges join padding nodes.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import jraph
from flax import linen as nn

from exla.cost_model.batch import Batch
from exla.cost_model.graph import OPCODES
from exla.cost_model.neighbours import total

EPSILON = 1e-5
FAR_BELOW = -1e9
"""Stands for minus infinity where a softmax must skip what is padding: exact infinities make NaN gradients."""


def neighbours(batch: Batch, values: jax.Array, *, of: str) -> jax.Array:
    """Mean over the producers, or over the consumers, of each node: (N, c, h) -> (N, c, h); 0 where it has none."""
    mine, opposite = batch.producers, batch.consumers
    if of == "consumers":
        mine, opposite = opposite, mine
    return total(mine, opposite, values) / jnp.maximum(mine.count, 1).astype(values.dtype)[:, None, None]


def graph_mean(batch: Batch, values: jax.Array) -> jax.Array:
    """Mean over the real nodes of each program: (N, c, h) -> (g + 1, c, h)."""
    return _mean(values, batch.node_mask, batch.node_graph, batch.num_graphs)


def config_node_mean(batch: Batch, values: jax.Array) -> jax.Array:
    """Mean over the configurable nodes of each program: (N, c, h) -> (g + 1, c, h); 0 where it has none."""
    return _mean(values[batch.config_ids], batch.config_mask, batch.config_graph, batch.num_graphs)


def config_node_max(batch: Batch, values: jax.Array) -> jax.Array:
    """Maximum over the configurable nodes of each program: (K, c) -> (g + 1, c); 0 where it has none."""
    return _max(values, batch.config_mask, batch.config_graph, batch.num_graphs)


def of_node(batch: Batch, values: jax.Array) -> jax.Array:
    """What each node's program has: (g + 1, c, h) -> (N, c, h), or (1, c, h) where all that is real is one program.

    Padding then has what is the program's: nothing reads it.
    """
    if _one_program(batch):
        return values[:1]
    return jnp.einsum("gn,gch->nch", _members(batch.node_graph, batch.num_graphs, values.dtype), values)


def _one_program(batch: Batch) -> bool:
    """Whether there is one, and that of padding."""
    return batch.num_graphs == 2


def _members(segment: jax.Array, segments: int, dtype: jnp.dtype) -> jax.Array:
    """(g + 1, N), 1 where the node is the program's. Programs are few: products with it beat scatters and gathers."""
    return (segment == jnp.arange(segments)[:, None]).astype(dtype)


def _mean(values: jax.Array, mask: jax.Array, segment: jax.Array, segments: int) -> jax.Array:
    real = _members(segment, segments, values.dtype) * mask.astype(values.dtype)
    weight = real / jnp.maximum(real.sum(1, keepdims=True, dtype=jnp.float32), 1).astype(values.dtype)
    return jnp.einsum("gn,nch->gch", weight, values)


def graph_max(batch: Batch, values: jax.Array) -> jax.Array:
    """Maximum over the real nodes of each program: (N, c, h) -> (g + 1, c, h); 0 where it has none."""
    return _max(values, batch.node_mask, batch.node_graph, batch.num_graphs, is_sorted=True)


def _max(
    values: jax.Array, mask: jax.Array, segment: jax.Array, segments: int, *, is_sorted: bool = False
) -> jax.Array:
    masked = jnp.where(jnp.expand_dims(mask, range(1, values.ndim)), values, FAR_BELOW)
    largest = jraph.segment_max(masked, segment, segments, indices_are_sorted=is_sorted)
    return jnp.where(largest > FAR_BELOW, largest, 0)


def mean_and_max(batch: Batch, values: jax.Array) -> jax.Array:
    """The mean and the maximum over the real nodes of each program: (N, c, h) -> (g + 1, c, 2 h)."""
    return jnp.concatenate([graph_mean(batch, values), graph_max(batch, values)], -1)


def node_inputs(batch: Batch, opcode_channels: int) -> jax.Array:
    """What Google's baselines see of a node: its features and an embedding of its opcode, (N, 1, features)."""
    nodes = batch.graph.nodes
    opcode = nn.Embed(OPCODES, opcode_channels, name="opcodes")(nodes["opcode"])
    return jnp.concatenate([nodes["feat"], opcode], -1)[:, None]


def joined(values: jax.Array, config: jax.Array) -> jax.Array:
    """Node values and each candidate's configuration, side by side: (N, 1 or c, h), (N or 1, c, k) -> (N, c, h + k)."""
    shape = jnp.broadcast_shapes(values.shape[:2], config.shape[:2])
    return jnp.concatenate([jnp.broadcast_to(x, (*shape, x.shape[-1])) for x in (values, config)], -1)


def kernel_node_inputs(batch: Batch, opcode_channels: int) -> jax.Array:
    """`node_inputs` with the configuration of the whole kernel at every node: (N, c, features + 24)."""
    return joined(node_inputs(batch, opcode_channels), of_node(batch, batch.graph_config))


def unit_length(values: jax.Array) -> jax.Array:
    """Each node's channels scaled to length 1, as in GraphSAGE."""
    return values * jax.lax.rsqrt((values**2).sum(-1, keepdims=True) + EPSILON)


class MLP(nn.Module):
    """Dense layers with a ReLU after each but, unless `activate_last`, the last."""

    features: tuple[int, ...]
    activate_last: bool = False

    @nn.compact
    def __call__(self, values: jax.Array) -> jax.Array:
        for i, width in enumerate(self.features):
            values = nn.Dense(width)(values)
            if i + 1 < len(self.features) or self.activate_last:
                values = nn.relu(values)
        return values


class GraphNorm(nn.Module):
    """Each channel of each program to mean 0 and deviation 1 over its real nodes; learned scale and bias.

    With `per_candidate`, the statistics are those of each candidate's own nodes (instance norm in the strict
    sense); without, those of all real candidates together, which keeps what tells one candidate from another.
    """

    per_candidate: bool = False

    @nn.compact
    def __call__(self, batch: Batch, values: jax.Array) -> tuple[jax.Array, jax.Array]:
        """(N, c, h) -> (N, c, h), and its `graph_mean`, which is known without another look at the nodes."""
        real = batch.candidate_mask[..., None].astype(values.dtype)

        def of_all(mean: jax.Array) -> jax.Array:
            if self.per_candidate or mean.shape[1] == 1:
                return mean
            return (mean * real).sum(1, keepdims=True) / jnp.maximum(real.sum(1, keepdims=True), 1)

        h = values.shape[-1]
        scale = self.param("scale", nn.initializers.ones, (h,)).astype(values.dtype)
        bias = self.param("bias", nn.initializers.zeros, (h,)).astype(values.dtype)
        means = graph_mean(batch, values)
        mean = of_all(means)
        centred = values - of_node(batch, mean)
        scale *= jax.lax.rsqrt(of_all(graph_mean(batch, centred**2)) + EPSILON)
        return centred * of_node(batch, scale) + bias, (means - mean) * scale + bias


class SqueezeExcite(nn.Module):
    """Channels weighed by a gate that each candidate computes from its mean over the program's nodes."""

    ratio: int = 4

    @nn.compact
    def __call__(self, batch: Batch, values: jax.Array, means: jax.Array) -> jax.Array:
        """(N, c, h) and its `graph_mean` -> (N, c, h)."""
        h = values.shape[-1]
        squeezed = nn.relu(nn.Dense(max(1, h // self.ratio), dtype=values.dtype)(means))
        return values * of_node(batch, nn.sigmoid(nn.Dense(h, dtype=values.dtype)(squeezed)))


class CrossConfigAttention(nn.Module):
    """x · softmax(x / T over the program's candidates), times their number, so that the scale does not depend on it.

    A candidate sees where it stands among those that it is ranked with. T is learned.
    """

    @nn.compact
    def __call__(self, batch: Batch, values: jax.Array) -> jax.Array:
        if values.shape[1] == 1:
            return values
        temperature = self.param("log_temperature", nn.initializers.zeros, ()).astype(values.dtype)
        mask = batch.candidate_mask
        real = (mask[:1] if _one_program(batch) else mask[batch.node_graph])[..., None]
        logits = jnp.where(real, values * jnp.exp(-temperature), FAR_BELOW)
        count = jnp.maximum(real.sum(1, keepdims=True), 1).astype(values.dtype)
        return values * jax.nn.softmax(logits, axis=1) * count


class Activate(nn.Module):
    """What follows every linear map of ours: norm, squeeze-excite, attention across candidates, GELU."""

    cross_config: bool = True
    per_candidate: bool = False

    @nn.compact
    def __call__(self, batch: Batch, values: jax.Array) -> jax.Array:
        values, means = GraphNorm(self.per_candidate)(batch, values)
        values = SqueezeExcite()(batch, values, means)
        if self.cross_config:
            values = CrossConfigAttention()(batch, values)
        return nn.gelu(values)


class SAGE(nn.Module):
    """GraphSAGE in both directions: a linear map of the node, of the mean of its producers and of its consumers."""

    features: int

    @nn.compact
    def __call__(self, batch: Batch, values: jax.Array) -> jax.Array:
        found = nn.Dense(self.features, dtype=values.dtype, name="self")(values)
        for of in ("producers", "consumers"):  # the mean of the maps is the map of the means, and is one pass less
            mapped = nn.Dense(self.features, use_bias=False, dtype=values.dtype, name=of)(values)
            found += neighbours(batch, mapped, of=of)
        return found


class GCN(nn.Module):
    """Graph convolution on the graph without directions, with self loops: D^-1/2 (A + I) D^-1/2 X W."""

    features: int

    @nn.compact
    def __call__(self, batch: Batch, values: jax.Array) -> jax.Array:
        producers, consumers = batch.producers, batch.consumers
        degree = (1 + producers.count + consumers.count).astype(values.dtype)
        scaled = nn.Dense(self.features, dtype=values.dtype)(values) * jax.lax.rsqrt(degree)[:, None, None]
        found = scaled + total(producers, consumers, scaled) + total(consumers, producers, scaled)
        return found * jax.lax.rsqrt(degree)[:, None, None]
