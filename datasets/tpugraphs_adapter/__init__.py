"""Google's TpuGraphs files: read, checked, written, and ranked as Kaggle does.

    from exla.datasets.tpugraphs_adapter import TpuGraphs, deduplicate, read

    file = read("npz/layout/xla/random/train/resnet50.npz")    # Layout or Tile; configurations stay on disk
    once = deduplicate(file)                                   # each configuration once
    file.configs(once.rows[:64]), once.runtimes[:64]

Runtimes are int64 nanoseconds, lower is faster. What is wrong with a file is a `TpuGraphsError` that lists all of it.
The traps of the data set, and what is done about each, are in docs/tpugraphs.md. Nothing here downloads, needs JAX or
changes values on the way: that is for `exla.cost_model.footing`, through which models see them.

Source: Phothilimthana et al., TpuGraphs: A Performance Prediction Dataset on Large Tensor Computational Graphs,
NeurIPS 2023 (arXiv 2308.13490).
"""

from exla.datasets.tpugraphs_adapter.damaged import DAMAGED, Damaged, damaged
from exla.datasets.tpugraphs_adapter.duplicates import Deduplicated, deduplicate, duplicate_groups
from exla.datasets.tpugraphs_adapter.files import Layout, SplitParts, Tile, check, read
from exla.datasets.tpugraphs_adapter.folder import COLLECTIONS, SPLITS, TpuGraphs, parse_id
from exla.datasets.tpugraphs_adapter.submission import (
    Score,
    check_submission,
    rank,
    read_submission,
    score_submission,
    write_submission,
)
from exla.datasets.tpugraphs_adapter.write import write, write_layout, write_tile
from exla.errors import Problem, TpuGraphsError

__all__ = [
    "COLLECTIONS",
    "DAMAGED",
    "Damaged",
    "Deduplicated",
    "Layout",
    "Problem",
    "SPLITS",
    "Score",
    "SplitParts",
    "Tile",
    "TpuGraphs",
    "TpuGraphsError",
    "check",
    "check_submission",
    "damaged",
    "deduplicate",
    "duplicate_groups",
    "parse_id",
    "rank",
    "read",
    "read_submission",
    "score_submission",
    "write",
    "write_layout",
    "write_submission",
    "write_tile",
]
