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

EPSILON = 1e-5
FAR_BELOW = -1e9
"""Stands for minus infinity where a softmax must skip what is padding: exact infinities make NaN gradients."""


def neighbours(batch: Batch, values: jax.Array, *, of: str) -> jax.Array:
    """Mean over the producers, or over the consumers, of each node: (N, c, h) -> (N, c, h); 0 where it has none."""
    graph = batch.graph
    if of == "producers":
        total = jraph.segment_sum(values[graph.senders], graph.receivers, values.shape[0], indices_are_sorted=True)
    else:
        total = jraph.segment_sum(values[graph.receivers], graph.senders, values.shape[0])
    count = batch.producers if of == "producers" else batch.consumers
    return total / jnp.maximum(count, 1).astype(values.dtype)[:, None, None]


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
    """What each node's program has: (g + 1, c, h) -> (N, c, h)."""
    return jnp.einsum("gn,gch->nch", _members(batch.node_graph, batch.num_graphs, values.dtype), values)


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
    """Node values and the configuration of each candidate, side by side: (N, 1 or c, h), (N, c, k) -> (N, c, h + k)."""
    values = jnp.broadcast_to(values, (*config.shape[:2], values.shape[-1]))
    return jnp.concatenate([values, config], -1)


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
    def __call__(self, batch: Batch, values: jax.Array) -> jax.Array:
        def mean(x: jax.Array) -> jax.Array:
            by_candidate = graph_mean(batch, x)
            if self.per_candidate or x.shape[1] == 1:
                return of_node(batch, by_candidate)
            real = batch.candidate_mask[..., None].astype(x.dtype)
            total = (by_candidate * real).sum(1, keepdims=True)
            return of_node(batch, total / jnp.maximum(real.sum(1, keepdims=True), 1))

        h = values.shape[-1]
        centred = values - mean(values)
        scale = self.param("scale", nn.initializers.ones, (h,)).astype(values.dtype)
        bias = self.param("bias", nn.initializers.zeros, (h,)).astype(values.dtype)
        return centred * (scale * jax.lax.rsqrt(mean(centred**2) + EPSILON)) + bias


class SqueezeExcite(nn.Module):
    """Channels weighed by a gate that each candidate computes from its mean over the program's nodes."""

    ratio: int = 4

    @nn.compact
    def __call__(self, batch: Batch, values: jax.Array) -> jax.Array:
        h = values.shape[-1]
        squeezed = nn.relu(nn.Dense(max(1, h // self.ratio), dtype=values.dtype)(graph_mean(batch, values)))
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
        real = batch.candidate_mask[batch.node_graph][..., None]
        logits = jnp.where(real, values * jnp.exp(-temperature), FAR_BELOW)
        count = jnp.maximum(real.sum(1, keepdims=True), 1).astype(values.dtype)
        return values * jax.nn.softmax(logits, axis=1) * count


class Activate(nn.Module):
    """What follows every linear map of ours: norm, squeeze-excite, attention across candidates, GELU."""

    cross_config: bool = True
    per_candidate: bool = False

    @nn.compact
    def __call__(self, batch: Batch, values: jax.Array) -> jax.Array:
        values = GraphNorm(self.per_candidate)(batch, values)
        values = SqueezeExcite()(batch, values)
        if self.cross_config:
            values = CrossConfigAttention()(batch, values)
        return nn.gelu(values)


class SAGE(nn.Module):
    """GraphSAGE in both directions: a linear map of the node, of the mean of its producers and of its consumers."""

    features: int

    @nn.compact
    def __call__(self, batch: Batch, values: jax.Array) -> jax.Array:
        total = nn.Dense(self.features, dtype=values.dtype, name="self")(values)
        for of in ("producers", "consumers"):
            around = neighbours(batch, values, of=of)
            total += nn.Dense(self.features, use_bias=False, dtype=values.dtype, name=of)(around)
        return total


class GCN(nn.Module):
    """Graph convolution on the graph without directions, with self loops: D^-1/2 (A + I) D^-1/2 X W."""

    features: int

    @nn.compact
    def __call__(self, batch: Batch, values: jax.Array) -> jax.Array:
        graph, n = batch.graph, values.shape[0]
        degree = (1 + batch.producers + batch.consumers).astype(values.dtype)
        scaled = nn.Dense(self.features, dtype=values.dtype)(values) * jax.lax.rsqrt(degree)[:, None, None]
        total = scaled + jraph.segment_sum(scaled[graph.senders], graph.receivers, n)
        total = total + jraph.segment_sum(scaled[graph.receivers], graph.senders, n)
        return total * jax.lax.rsqrt(degree)[:, None, None]
