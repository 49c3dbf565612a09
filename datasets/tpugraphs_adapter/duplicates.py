"""Configurations that occur more than once in a file, and what they say of the noise.

Many files list a configuration several times, each with a runtime of its own. A loss that ranks one of them above the
other learns noise. `deduplicate` makes one of each, or leaves all of them out, and reports how far measurements of the
same thing are apart.

Configurations are the same if all their numbers are. A tile file whose configurations are all 0 (some reshapes) is one
configuration by that measure, though the runtimes differ twofold: its features do not say what was varied.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

import numpy as np

from exla.cost_model.metrics import NoiseFloor, noise_floor
from exla.datasets.tpugraphs_adapter.files import Layout, Tile
from exla.errors import OptionError


@dataclass(frozen=True, kw_only=True, eq=False)
class Deduplicated:
    """The configurations that stay.

    Attributes:
      rows: (r,) int64, ascending rows of the file.
      runtimes: (r,) int64, their runtimes in nanoseconds.
      groups: (c,) int64, for each row of the file the first row with the same configuration.
      noise: how far repeats are apart, and the Kendall tau that this allows.
    """

    rows: np.ndarray
    runtimes: np.ndarray
    groups: np.ndarray
    noise: NoiseFloor

    @property
    def num_dropped(self) -> int:
        """How many rows of the file are left out."""
        return len(self.groups) - len(self.rows)

    def __str__(self) -> str:
        noise = self.noise
        if noise.num_groups == 0:
            return f"{noise.num_configs} configurations, none of them twice"
        return (
            f"{self.num_dropped} of {noise.num_configs} rows left out: {noise.num_groups} configurations are in "
            f"{noise.num_repeated} of them; their runtimes differ by {noise.median_spread:.2g} of the smaller (median) "
            f"and {noise.largest_spread:.2g} (most), which allows a Kendall tau of {noise.kendall_tau:.3f}"
        )


def duplicate_groups(file: Layout | Tile) -> np.ndarray:
    """For each configuration the first row that has the same: (c,) int64. Streams; only hashes are kept.

    Raises:
      TpuGraphsError: if the file is damaged.
    """
    first: dict[bytes, int] = {}
    groups: np.ndarray = np.empty(file.num_configs, np.int64)
    row = 0
    for block in file.blocks():
        for config in block + np.float32(0):  # -0.0 becomes 0.0
            groups[row] = first.setdefault(hashlib.blake2b(config.tobytes(), digest_size=16).digest(), row)
            row += 1
    return groups


def deduplicate(file: Layout | Tile, keep: Literal["minimum", "drop"] = "minimum") -> Deduplicated:
    """Leave each configuration in a file once at most.

    Args:
      file: an open file whose runtimes are there.
      keep: "minimum": of each configuration the row with the smallest target, the first of them if several are;
        "drop": no row of a configuration that is there more than once.

    Raises:
      TpuGraphsError: if the file is damaged, or its runtimes are withheld.
      OptionError: for another `keep`.
      MissingExtraError: without scipy, if there are repeats.
    """
    if keep not in ("minimum", "drop"):
        raise OptionError(f'keep={keep!r} is unknown; there are "minimum" and "drop"')
    target = file.runtime if isinstance(file, Layout) and file.has_target else file.target
    groups = duplicate_groups(file)
    if keep == "minimum":
        order = np.lexsort((np.arange(len(groups)), target, groups))
        is_first = np.r_[True, np.diff(groups[order]) > 0]
        rows = np.sort(order[is_first])
    else:
        rows = np.flatnonzero(np.bincount(groups, minlength=len(groups))[groups] == 1)
    return Deduplicated(rows=rows, runtimes=file.runtime[rows], groups=groups, noise=noise_floor(groups, target))
