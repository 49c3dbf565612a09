"""TpuGraphs' tile baseline "late join": GraphSAGE sees the kernel only; the configuration joins its summary.

    nodes → MLP → GraphSAGE with L2 normalisation, `layers` times → mean ‖ max ‖ configuration → MLP

The graph is walked once for all candidates, which makes it the fastest of the baselines.

Source: Phothilimthana et al., TpuGraphs, NeurIPS 2023, section 4 and its published baselines, written anew.
"""

from __future__ import annotations

import jax
from flax import linen as nn

from exla.cost_model.batch import Batch
from exla.cost_model.layers import MLP, SAGE, joined, mean_and_max, node_inputs, unit_length
from exla.cost_model.models import KERNEL, MODELS


@MODELS.register("tile_late_join_sage")
class TileLateJoinSAGE(nn.Module):
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
        x = MLP((self.hidden, self.hidden), activate_last=True)(node_inputs(batch, self.opcode_channels))
        for _ in range(self.layers):
            x = unit_length(nn.relu(SAGE(self.hidden)(batch, x)))
        pooled = mean_and_max(batch, x)
        return MLP((self.hidden, self.hidden, 1))(joined(pooled, batch.graph_config))[..., 0]
