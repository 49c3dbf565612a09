"""TpuGraphs' tile baseline without edges: what a kernel's nodes and its configuration say by themselves.

    nodes ‖ configuration → MLP → mean ‖ max → MLP

Source: Phothilimthana et al., TpuGraphs, NeurIPS 2023, section 4 and its published baselines, written anew.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn

from exla.cost_model.batch import Batch
from exla.cost_model.layers import MLP, graph_max, graph_mean, joined, node_inputs, of_node
from exla.cost_model.models import KERNEL, MODELS


@MODELS.register("tile_mlp")
class TileMLP(nn.Module):
    """Scores (g + 1, c), lower is faster.

    Fields:
      hidden: channels.
      layers: dense layers of each node.
      opcode_channels: width of the opcode embedding.
    """

    CONFIGURES = KERNEL

    hidden: int = 64
    layers: int = 3
    opcode_channels: int = 32

    @nn.compact
    def __call__(self, batch: Batch, *, train: bool = False) -> jax.Array:
        x = joined(node_inputs(batch, self.opcode_channels), of_node(batch, batch.graph_config))
        x = MLP((self.hidden,) * self.layers, activate_last=True)(x)
        pooled = jnp.concatenate([graph_mean(batch, x), graph_max(batch, x)], -1)
        return MLP((self.hidden, 1))(pooled)[..., 0]
