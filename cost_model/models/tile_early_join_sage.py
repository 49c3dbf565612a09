"""TpuGraphs' tile baseline "early join": the kernel's configuration joins every node before GraphSAGE.

    nodes ‖ configuration → MLP → GraphSAGE with L2 normalisation, `layers` times → mean ‖ max → MLP

Source: Phothilimthana et al., TpuGraphs, NeurIPS 2023, section 4 and its published baselines, written anew;
Kaufman et al., A Learned Performance Model for TPUs, MLSys 2021.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn

from exla.cost_model.batch import Batch
from exla.cost_model.layers import MLP, SAGE, graph_max, graph_mean, joined, node_inputs, of_node, unit_length
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
        x = joined(node_inputs(batch, self.opcode_channels), of_node(batch, batch.graph_config))
        x = MLP((self.hidden, self.hidden), activate_last=True)(x)
        for _ in range(self.layers):
            x = unit_length(nn.relu(SAGE(self.hidden)(batch, x)))
        pooled = jnp.concatenate([graph_mean(batch, x), graph_max(batch, x)], -1)
        return MLP((self.hidden, 1))(pooled)[..., 0]
