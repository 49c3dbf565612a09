"""TpuGraphs' tile baseline without edges: what a kernel's nodes and its configuration say by themselves.

    nodes ‖ configuration → MLP → mean ‖ max → MLP

Source: Phothilimthana et al., TpuGraphs, NeurIPS 2023, section 4 and its published baselines, written anew.
"""

from __future__ import annotations

import jax
from flax import linen as nn

from exla.cost_model.batch import Batch
from exla.cost_model.layers import MLP, kernel_node_inputs, mean_and_max
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
        x = kernel_node_inputs(batch, self.opcode_channels)
        x = MLP((self.hidden,) * self.layers, activate_last=True)(x)
        pooled = mean_and_max(batch, x)
        return MLP((self.hidden, 1))(pooled)[..., 0]
