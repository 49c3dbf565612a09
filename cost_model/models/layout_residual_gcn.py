"""TpuGraphs' layout baseline: residual graph convolutions over nodes that carry their own configuration.

    nodes ‖ configuration of the node, 0 where it has none → MLP
    → x + MLP(GCN(x)), `layers` times → mean ‖ max ‖ mean over configurable nodes → MLP

Source: Phothilimthana et al., TpuGraphs, NeurIPS 2023, section 4 and its published baselines, written anew.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn

from exla.cost_model.batch import Batch
from exla.cost_model.layers import GCN, MLP, config_node_mean, graph_max, graph_mean, joined, node_inputs
from exla.cost_model.models import MODELS, NODES


@MODELS.register("layout_residual_gcn")
class LayoutResidualGCN(nn.Module):
    """Scores (g + 1, c), lower is faster.

    Fields:
      hidden: channels.
      layers: residual layers.
      opcode_channels: width of the opcode embedding.
    """

    CONFIGURES = NODES

    hidden: int = 64
    layers: int = 3
    opcode_channels: int = 32

    @nn.compact
    def __call__(self, batch: Batch, *, train: bool = False) -> jax.Array:
        of_node = node_inputs(batch, self.opcode_channels)
        real = batch.node_config * batch.config_mask[:, None, None]
        config = jnp.zeros((of_node.shape[0], *real.shape[1:]), real.dtype).at[batch.config_ids].add(real)
        x = MLP((self.hidden, self.hidden), activate_last=True)(joined(of_node, config))
        for _ in range(self.layers):
            x = x + MLP((self.hidden,), activate_last=True)(GCN(self.hidden)(batch, x))
        pooled = [graph_mean(batch, x), graph_max(batch, x), config_node_mean(batch, x)]
        return MLP((self.hidden, 1))(jnp.concatenate(pooled, -1))[..., 0]
