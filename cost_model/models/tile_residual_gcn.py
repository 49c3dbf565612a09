"""TpuGraphs' tile baseline of residual graph convolutions, the configuration joined to every node at the start.

    nodes ‖ configuration → MLP → x + MLP(GCN(x)), `layers` times → mean ‖ max → MLP

Source: Phothilimthana et al., TpuGraphs, NeurIPS 2023, section 4 and its published baselines, written anew;
Kipf and Welling, Semi-Supervised Classification with Graph Convolutional Networks, ICLR 2017.
"""

from __future__ import annotations

import jax
from flax import linen as nn

from exla.cost_model.batch import Batch
from exla.cost_model.layers import GCN, MLP, kernel_node_inputs, mean_and_max
from exla.cost_model.models import KERNEL, MODELS


@MODELS.register("tile_residual_gcn")
class TileResidualGCN(nn.Module):
    """Scores (g + 1, c), lower is faster.

    Fields:
      hidden: channels.
      layers: residual layers.
      opcode_channels: width of the opcode embedding.
    """

    CONFIGURES = KERNEL

    hidden: int = 64
    layers: int = 3
    opcode_channels: int = 32

    @nn.compact
    def __call__(self, batch: Batch, *, train: bool = False) -> jax.Array:
        x = kernel_node_inputs(batch, self.opcode_channels)
        x = MLP((self.hidden, self.hidden), activate_last=True)(x)
        for _ in range(self.layers):
            x = x + MLP((self.hidden,), activate_last=True)(GCN(self.hidden)(batch, x))
        pooled = mean_and_max(batch, x)
        return MLP((self.hidden, 1))(pooled)[..., 0]
