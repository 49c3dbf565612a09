"""TpuGraphs' tile baseline "early join": the kernel's configuration joins every node before GraphSAGE.

    nodes ‖ configuration → MLP → GraphSAGE with L2 normalisation, `layers` times → mean ‖ max → MLP

Source: Phothilimthana et al., TpuGraphs, NeurIPS 2023, section 4 and its published baselines, written anew;
Kaufman et al., A Learned Performance Model for TPUs, MLSys 2021.
"""

from __future__ import annotations

import jax
from flax import linen as nn

from exla.cost_model.batch import Batch
from exla.cost_model.layers import MLP, SAGE, kernel_node_inputs, mean_and_max, unit_length
from exla.cost_model.models import KERNEL, MODELS


@MODELS.register("tile_early_join_sage")
class TileEarlyJoinSAGE(nn.Module):
    """Scores (g + 1, c), lower is faster.

    Fields:
      hidden: channels.
      layers: GraphSAGE layers.
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
            x = unit_length(nn.relu(SAGE(self.hidden)(batch, x)))
        pooled = mean_and_max(batch, x)
        return MLP((self.hidden, 1))(pooled)[..., 0]
