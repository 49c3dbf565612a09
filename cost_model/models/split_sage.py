"""Ours: bidirectional GraphSAGE whose layers compare candidates, for layouts and splits alike.

    nodes:   features, opcode embedding, layout embedding ─┐
    configs: the same embedding of the 18 numbers ─────────┴ linear → activate
    blocks:  x + activate(SAGE(x)),  `blocks` times
    wide:    linear(nodes) · linear(configs), added after the blocks where it is asked for
    score:   linear(mean over nodes, mean over configurable nodes, and a prediction that the model is to improve)

*activate* is graph norm → squeeze-excite → attention across candidates → GELU (`layers.Activate`). Layout
and configuration share one embedding table: rounded values from -2 to 37, where -1 is "does not apply" and
-2 is "not configurable"; the exact value goes in as a number beside it. Everything that does not depend on the
candidate is computed once for all of them: the configuration's part of the first layer on the configurable
nodes only.

Source: the design of the first-place solution of the Kaggle competition "Google - Fast or Slow?" (2023),
written anew; GraphSAGE: Hamilton et al., 2017; squeeze-and-excitation: Hu et al., 2018.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from exla.cost_model.batch import Batch
from exla.cost_model.graph import NODE_CONFIG_FEATURES, OPCODES
from exla.cost_model.layers import GCN, SAGE, Activate, config_node_max, config_node_mean, graph_mean
from exla.cost_model.models import MODELS, NODES

NOT_CONFIGURABLE = -2
LARGEST_VALUE = 37


@MODELS.register("split_sage")
class SplitSAGE(nn.Module):
    """Scores (g + 1, c), lower is faster.

    Fields:
      hidden: channels.
      blocks: residual blocks after the first layer.
      opcode_channels, value_channels: widths of the embeddings.
      cross_config, embed_config, sage: False takes the part away, for ablation: no attention across
        candidates; configurations as plain numbers; GCN instead of GraphSAGE.
      prior: column of the configurations that holds the logarithm of a predicted time, the same in all nodes that are
        the candidate's; scores begin as this prediction, and training moves them away from it. -1 = none.
      per_candidate_norm: see `layers.GraphNorm`.
      wide: add to the blocks' values of configurable nodes a product of two linear maps, of the node and of its
        configuration: what the configuration alone is worth there needs no block then.
      remat: recompute each block in the backward pass (`jax.checkpoint`).
      dtype: "float32" or "bfloat16", what the blocks compute in; parameters stay float32.
    """

    CONFIGURES = NODES

    hidden: int = 64
    blocks: int = 3
    opcode_channels: int = 16
    value_channels: int = 4
    cross_config: bool = True
    embed_config: bool = True
    sage: bool = True
    prior: int = -1
    per_candidate_norm: bool = False
    wide: bool = False
    remat: bool = False
    dtype: str = "float32"

    def setup(self) -> None:
        if self.prior >= NODE_CONFIG_FEATURES:
            raise ValueError(f"prior = {self.prior}: configurations have columns 0 to {NODE_CONFIG_FEATURES - 1}")
        self.backbone = Backbone(
            hidden=self.hidden,
            blocks=self.blocks,
            opcode_channels=self.opcode_channels,
            value_channels=self.value_channels,
            cross_config=self.cross_config,
            embed_config=self.embed_config,
            sage=self.sage,
            per_candidate_norm=self.per_candidate_norm,
            wide=self.wide,
            remat=self.remat,
            dtype=self.dtype,
        )
        self.head = nn.Dense(1) if self.prior < 0 else nn.Dense(1, kernel_init=_only_the_last)

    def __call__(self, batch: Batch, *, train: bool = False) -> jax.Array:
        return self.score(self.summary(batch))

    def summary(self, batch: Batch) -> jax.Array:
        """What the score is made of, (g + 1, c, f) float32.

        The mean over nodes ‖ that over configurable nodes ‖ the prior, where there is one; f is 2 hidden or one more.
        """
        x = self.backbone(batch)
        parts = [graph_mean(batch, x), config_node_mean(batch, x)]
        if self.prior >= 0:
            parts.append(config_node_max(batch, batch.node_config[..., self.prior])[..., None])
        return jnp.concatenate([part.astype(jnp.float32) for part in parts], -1)

    def score(self, summary: jax.Array) -> jax.Array:
        """(…, f) -> (…)."""
        return self.head(summary)[..., 0]


def _only_the_last(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
    """A head that says what the last of its inputs says."""
    return jnp.asarray(_last(shape, dtype))


def _last(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    found = np.zeros(shape, dtype)
    found[-1] = 1
    return found


def trusted(variables: Mapping[str, Any], trust: float) -> dict[str, Any]:
    """The variables of a model with a prior, its head moved a part of the way from where it began: the prior alone.

    Source: Wortsman et al., "Robust fine-tuning of zero-shot models", 2022, of the last layer alone, in which that is
    the mean of the scores before and after.

    Args:
      variables: as trained.
      trust: 0 = the prior alone, 1 = as trained.
    """
    head = variables["params"]["head"]
    kernel = _last(head["kernel"].shape, head["kernel"].dtype)
    moved = {"kernel": kernel + trust * (head["kernel"] - kernel), "bias": trust * head["bias"]}
    return {**variables, "params": {**variables["params"], "head": moved}}


class Backbone(nn.Module):
    """Values of nodes, (N, c, hidden) in the model's dtype; the fields are those of `SplitSAGE`."""

    hidden: int
    blocks: int
    opcode_channels: int
    value_channels: int
    cross_config: bool
    embed_config: bool
    sage: bool
    per_candidate_norm: bool
    wide: bool
    remat: bool
    dtype: str

    @nn.compact
    def __call__(self, batch: Batch) -> jax.Array:
        parts = (self.cross_config, self.per_candidate_norm)
        x, wide = self.first(batch)
        x = Activate(*parts)(batch, x)
        block = nn.remat(Block) if self.remat else Block
        for i in range(self.blocks):
            x = block(self.hidden, self.sage, *parts, name=f"block_{i}")(batch, x)
        return x if wide is None else x.at[batch.config_ids].add(wide)

    def first(self, batch: Batch) -> tuple[jax.Array, jax.Array | None]:
        """Values before the first layer's activation, and the wide part, (K, c, hidden), if there is one."""
        table = nn.Embed(LARGEST_VALUE - NOT_CONFIGURABLE + 1, self.value_channels, name="values")

        def embedded(values: jax.Array) -> jax.Array:
            if not self.embed_config:
                return values / 8
            index = jnp.clip(jnp.round(values), NOT_CONFIGURABLE, LARGEST_VALUE).astype(jnp.int32) - NOT_CONFIGURABLE
            both = jnp.concatenate([table(index), values[..., None] / 8], -1)
            return both.reshape(*values.shape[:-1], -1)

        nodes = batch.graph.nodes
        opcode = nn.Embed(OPCODES, self.opcode_channels, name="opcodes")(nodes["opcode"])
        of_node = jnp.concatenate([nodes["feat"], opcode, embedded(nodes["layout"])], -1)
        x = nn.Dense(self.hidden, name="nodes")(of_node)[:, None]

        configs = nn.Dense(self.hidden, use_bias=False, name="configs")
        none = configs(embedded(jnp.full((1, 1, batch.node_config.shape[-1]), float(NOT_CONFIGURABLE))))
        delta = (configs(embedded(batch.node_config)) - none) * batch.config_mask[:, None, None]
        x = jnp.broadcast_to(x + none, (x.shape[0], delta.shape[1], self.hidden))
        x = x.at[batch.config_ids].add(delta).astype(self.dtype)
        if not self.wide:
            return x, None
        node = nn.Dense(self.hidden, name="wide_nodes")(of_node[batch.config_ids])[:, None]
        config = nn.Dense(self.hidden, use_bias=False, name="wide_configs")(embedded(batch.node_config))
        return x, (node * config * batch.config_mask[:, None, None]).astype(self.dtype)


class Block(nn.Module):
    features: int
    sage: bool
    cross_config: bool
    per_candidate: bool

    @nn.compact
    def __call__(self, batch: Batch, x: jax.Array) -> jax.Array:
        conv = SAGE if self.sage else GCN
        return x + Activate(self.cross_config, self.per_candidate)(batch, conv(self.features)(batch, x))
