"""Nodes and configurations on one footing: what the data set writes in two ways, written in one.

Two things differ between the features of nodes and those of configurations:

- `minor_to_major`, the order of a layout's axes, is filled up to six with 0 in nodes (columns 134 to 139) and with -1
  in layout configurations. 0 is also an axis, so that a node's [0] looks like no layout at all. Here: -1.
- The product of an empty list is 1 in nodes and 0 in tile configurations. Here: 1, which no product of extents hides.

Files are left as they are. Whatever a model sees, in training, evaluation and ranking, comes through
`Inputs.reduced` and `sample_of` (`cost_model/inputs.py`), which call these. Both return copies, and what is on one
footing already is left as it is.
"""

from __future__ import annotations

import numpy as np

from exla.cost_model.graph import TILE_CONFIG_FEATURES

DIMENSIONS = slice(21, 27)
"""Columns of a node's features: the extents of its result's axes, 0 where there is none."""
MINOR_TO_MAJOR = slice(134, 140)
"""Columns of a node's features: its result's layout."""
_BOUNDS = 8
"""Numbers of one list in a tile configuration: six entries, their sum, their product."""


def nodes_on_one_footing(node_feat: np.ndarray) -> np.ndarray:
    """Fill `minor_to_major` up with -1, as configurations do.

    minor_to_major: [1, 0, 0, 0, 0, 0] of a matrix -> [1, 0, -1, -1, -1, -1]

    How many axes a result has is told by its extents and by the layout, whichever says more: a layout [0] looks like
    none, and an axis of extent 0 like no axis.

    Args:
      node_feat: (n, 140).
    """
    extents, layout = node_feat[:, DIMENSIONS], node_feat[:, MINOR_TO_MAJOR]
    place = np.arange(1, layout.shape[1] + 1)
    by_extent = np.where(extents != 0, place, 0).max(axis=1)
    by_layout = np.where(layout.any(axis=1), layout.max(axis=1) + 1, 0)
    axes = np.maximum(by_extent, by_layout)
    out = node_feat.copy()
    out[:, MINOR_TO_MAJOR] = np.where(place <= axes[:, None], layout, -1)
    return out


def tile_configs_on_one_footing(configs: np.ndarray) -> np.ndarray:
    """Make the product of an empty list 1, as in nodes.

    kernel, output and input bounds: [0, 0, 0, 0, 0, 0, sum 0, product 0] -> [0, 0, 0, 0, 0, 0, sum 0, product 1]

    Args:
      configs: (c, 24), three lists of eight numbers: six bounds, their sum, their product.
    """
    lists = configs.reshape(len(configs), TILE_CONFIG_FEATURES // _BOUNDS, _BOUNDS).copy()
    is_empty = ~lists.any(axis=2)
    lists[..., -1][is_empty] = 1
    return lists.reshape(configs.shape)
