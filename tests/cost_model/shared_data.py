"""Where the published files of TpuGraphs are, on a machine that has them."""

import os
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
TPUGRAPHS = Path(os.environ.get("EXLA_SHARED_DATA", ROOT.parent / "shared" / "data")) / "tpugraphs"
LAYOUT = ("alexnet_train_batch_32", "testdata_main_10904")
TILE = (
    *("copy.24_715d6c5d784f9262", "copy.25_4d1e36cc29e3e6d8", "fusion.181_f2ca5bc7aa21a637"),
    *("fusion.191_4ae805e53b8d2b8a", "fusion.205_11d55dfd21d1a19c", "fusion.206_cff932f2fd058d3c"),
    *("fusion.209_6506960125603509", "fusion.245_caba9ef5f8c0115a", "fusion.261_f758aa847a9184c5"),
    *("reshape.37_24aa8731e7561309", "reshape.38_f96da6532232f278", "reshape.39_8bed682d57fcedf9"),
)
FILES = (*(f"layout/{name}.npz" for name in LAYOUT), *(f"tile/{name}.npz" for name in TILE))


def shared(name):
    """The path of a file; the test is skipped where it is not."""
    path = TPUGRAPHS / name
    if not path.is_file():
        pytest.skip(f"needs {name} of TpuGraphs, which is not at {TPUGRAPHS}; EXLA_SHARED_DATA says where it is")
    return path


def load_graph(name):
    """The arrays of a published graph but those of its configurations."""
    with np.load(shared(name), allow_pickle=False) as arrays:
        wanted = ("node_feat", "node_opcode", "edge_index", "node_splits")
        return {key: arrays[key] for key in wanted if key in arrays.files}
