"""Learning on graphs. Edges are pairs of index vectors, as in jraph."""

import jax
import jax.numpy as jnp


def graph_convolution(nodes, senders, receivers, weights):
    """A graph convolution with symmetric normalisation (Kipf and Welling, ICLR 2017, eq. 2)."""
    ones = jnp.ones(len(senders), nodes.dtype)
    degree_out = jax.ops.segment_sum(ones, senders, num_segments=len(nodes)) + 1
    degree_in = jax.ops.segment_sum(ones, receivers, num_segments=len(nodes)) + 1
    messages = (nodes @ weights)[senders] / jnp.sqrt(degree_out[senders])[:, None]
    return jax.ops.segment_sum(messages, receivers, num_segments=len(nodes)) / jnp.sqrt(degree_in)[:, None]


def graph_attention(nodes, senders, receivers, weights, source, target):
    """A graph attention layer (Veličković et al., *GAT*, ICLR 2018, eq. 3; jraph's GAT)."""
    projected = nodes @ weights
    logits = jax.nn.leaky_relu((projected @ source)[senders] + (projected @ target)[receivers], 0.2)
    largest = jax.ops.segment_max(logits, receivers, num_segments=len(nodes))
    unnormalised = jnp.exp(logits - largest[receivers])
    total = jax.ops.segment_sum(unnormalised, receivers, num_segments=len(nodes))
    coefficients = unnormalised / total[receivers]
    return jax.ops.segment_sum(coefficients[:, None] * projected[senders], receivers, num_segments=len(nodes))


def continuous_filter(positions, features, first, second):
    """A continuous-filter convolution over all pairs (Schütt et al., *SchNet*, NIPS 2017, sec. 4.2)."""
    distance = jnp.sqrt(jnp.sum((positions[:, None] - positions[None]) ** 2, axis=-1) + 1e-6)
    centres = jnp.linspace(0, 4, first.shape[0], dtype=positions.dtype)
    basis = jnp.exp(-10 * (distance[..., None] - centres) ** 2)
    filters = jax.nn.softplus(basis @ first) @ second
    return jnp.sum(filters * features[None], axis=1)


def equivariant_layer(positions, features, message, coordinate):
    """Coordinate update of an E(n) network over all pairs (Satorras et al., *EGNN*, ICML 2021, eqs. 3 and 4)."""
    difference = positions[:, None] - positions[None]
    squared = jnp.sum(difference**2, axis=-1, keepdims=True)
    n, width = features.shape
    pairs = jnp.concatenate(
        [
            jnp.broadcast_to(features[:, None], (n, n, width)),
            jnp.broadcast_to(features[None], (n, n, width)),
            squared,
        ],
        axis=-1,
    )
    messages = jax.nn.silu(pairs @ message)
    moved = positions + jnp.mean(difference * (messages @ coordinate), axis=1)
    return moved, jnp.sum(messages, axis=1)


def edge_network(nodes, edges, senders, receivers, network):
    """Messages through one matrix for each edge (Gilmer et al., ICML 2017, the edge network)."""
    width = nodes.shape[1]
    matrices = (jnp.tanh(edges) @ network).reshape(len(edges), width, width)
    messages = jnp.einsum("eij,ej->ei", matrices, nodes[senders])
    return jax.ops.segment_sum(messages, receivers, num_segments=len(nodes))
