"""Scales features: sizes become logarithms, and each feature has mean 0 and deviation 1 over the training programs.

The numbers of a node run from flags to products of dimensions beyond 1e9, so each is first compressed,
`sign(x) log2(1 + |x|)`, then standardised. What never varies in training is dropped (a scale of 0): a model
has no idea what its other values mean. The statistics belong to a model and are saved with it.

What TpuGraphs writes in one way in nodes and in another in configurations is the same before it comes here
(`cost_model/footing.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from exla.cost_model.graph import NODE_FEATURES, TILE_CONFIG_FEATURES, Graph

LARGEST = 4.0
"""Deviations from the mean beyond which a feature is cut off: an unseen size must not drown the rest."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Normaliser:
    """Statistics of compressed features.

    Fields:
      mean, scale: (140,) float32; scale is 1 / deviation, or 0 where the feature never varied.
      config_mean, config_scale: (24,) float32, the same of tile configurations.
    """

    mean: np.ndarray
    scale: np.ndarray
    config_mean: np.ndarray
    config_scale: np.ndarray

    @classmethod
    def fit(cls, graphs: Iterable[Graph], graph_configs: Iterable[np.ndarray] = ()) -> Normaliser:
        """Statistics of the nodes of `graphs`, and of the rows of `graph_configs`, each (c, 24)."""
        mean, scale = _statistics([g.node_feat for g in graphs], NODE_FEATURES)
        config_mean, config_scale = _statistics(list(graph_configs), TILE_CONFIG_FEATURES)
        return cls(mean=mean, scale=scale, config_mean=config_mean, config_scale=config_scale)

    def node_feat(self, graph: Graph) -> np.ndarray:
        """(n, 140) float32."""
        return _scaled(graph.node_feat, self.mean, self.scale)

    def graph_config(self, values: np.ndarray) -> np.ndarray:
        """(c, 24) -> (c, 24) float32."""
        return _scaled(values, self.config_mean, self.config_scale)


def compressed(values: np.ndarray) -> np.ndarray:
    """sign(x) log2(1 + |x|), float32."""
    values = np.asarray(values, np.float64)
    return (np.sign(values) * np.log2(1 + np.abs(values))).astype(np.float32)


def _statistics(parts: list[np.ndarray], width: int) -> tuple[np.ndarray, np.ndarray]:
    if not parts:
        return np.zeros(width, np.float32), np.zeros(width, np.float32)
    values = compressed(np.concatenate(parts))
    deviation = values.std(axis=0)
    varies = deviation > 1e-6
    return values.mean(axis=0), np.where(varies, 1 / np.where(varies, deviation, 1), 0).astype(np.float32)


def _scaled(values: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return np.clip((compressed(values) - mean) * scale, -LARGEST, LARGEST)
