"""Small TpuGraphs files that tests write, and the real ones where they are."""

import os
from pathlib import Path

import numpy as np
import pytest

from exla.datasets.tpugraphs_adapter import Layout, read

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("EXLA_SHARED_DATA", ROOT.parent / "shared" / "data")) / "tpugraphs"
REAL = sorted(SHARED.glob("*/*.npz"))


def real_files():
    """Real files as parameters; one that skips where there are none."""
    reason = f"no real TpuGraphs files in {SHARED} (EXLA_SHARED_DATA)"
    return [pytest.param(p, id=p.stem) for p in REAL] or [pytest.param(None, marks=pytest.mark.skip(reason=reason))]


def layout_arrays(c=5, nc=2, n=4, seed=0):
    random = np.random.default_rng(seed)
    return {
        "node_feat": random.integers(0, 9, (n, 140)).astype(np.float32),
        "node_opcode": random.integers(1, 121, n).astype(np.uint8),
        "edge_index": np.stack([np.arange(1, n), np.arange(n - 1)], axis=1),
        "node_config_ids": np.arange(n)[-nc:],
        "config_runtime": random.integers(10**8, 10**9, c),
        "node_config_feat": random.integers(-1, 6, (c, nc, 18)).astype(np.float32),
        "node_splits": np.array([[0, 1, n]]),
    }


def tile_arrays(c=5, n=3, seed=0):
    random = np.random.default_rng(seed)
    arrays = layout_arrays(c=c, n=n, seed=seed)
    return {
        **{k: arrays[k] for k in ("node_feat", "node_opcode", "edge_index", "config_runtime")},
        "config_feat": random.integers(0, 99, (c, 24)).astype(np.float32),
        "config_runtime_normalizers": random.integers(10**8, 10**9, c),
    }


def save(path, arrays, **changes):
    """Write arrays as they are, right or wrong; a change to None leaves one out."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **{k: v for k, v in {**arrays, **changes}.items() if v is not None})
    return path


def arrays_of(file):
    """What a file holds, configurations too, under the file's own keys."""
    graph = file.graph
    arrays = {"node_feat": graph.node_feat, "node_opcode": graph.node_opcode, "edge_index": graph.edge_index}
    arrays["config_runtime"] = file.runtime
    if not isinstance(file, Layout):
        return {**arrays, "config_runtime_normalizers": file.normalizers, "config_feat": file.configs()}
    arrays |= {"node_config_ids": graph.node_config_ids, "node_splits": graph.node_splits.reshape(1, -1)}
    arrays |= {} if file.is_default is None else {"is_default": file.is_default}
    return {**arrays, "node_config_feat": file.configs()}


def assert_same(found, expected):
    """The same keys, dtypes and bits."""
    assert set(found) == set(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape, name
        assert found[name].tobytes() == array.tobytes(), name


def layout_file(folder, name="program", **changes):
    return read(save(folder / f"{name}.npz", layout_arrays(), **changes))


def tile_file(folder, name="kernel", **changes):
    return read(save(folder / f"{name}.npz", tile_arrays(), **changes))
