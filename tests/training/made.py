"""Small files to train on, whose runtimes follow from their configurations, and configs of small runs."""

import os
import sys

import numpy as np

from exla.training.config import make_config
from tests.datasets.made import ROOT, layout_arrays, save, tile_arrays


def layout_file(folder, name="program", *, seed=0, c=24, nc=2, n=6):
    """A layout file: a program is slower, the larger the first number of its nodes' configurations is."""
    arrays = layout_arrays(c=c, nc=nc, n=n, seed=seed)
    feat = arrays["node_feat"].copy()
    feat[:, 21:27], feat[:, 134:140] = [5, 7, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0]  # matrices, by column
    runtime = 10**6 + 1000 * arrays["node_config_feat"][:, :, 0].sum(1).astype(np.int64)
    return save(folder / f"{name}.npz", arrays, node_feat=feat, config_runtime=runtime + np.arange(c))


def tile_file(folder, name="kernel", *, seed=0, c=12, n=5):
    """A tile file: slower, the larger the first number of its configuration is."""
    arrays = tile_arrays(c=c, n=n, seed=seed)
    runtime = 10**6 + 1000 * arrays["config_feat"][:, 0].astype(np.int64) + np.arange(c)
    return save(folder / f"{name}.npz", arrays, config_runtime=runtime)


def layout_files(folder, count=4, **sizes):
    """Paths, as text: each program a node larger than the one before."""
    return [str(layout_file(folder, f"program_{i}", seed=i, **{"n": 6 + i % 2, **sizes})) for i in range(count)]


SMALL = {"hidden": 4, "blocks": 1, "opcode_channels": 2, "value_channels": 2}
GCN = {"name": "layout_residual_gcn", "options": {"hidden": 4, "layers": 1, "opcode_channels": 2}}
"""A model that compiles quickly."""


def values(folder, files, **sections):
    """A small run as nested dicts; `sections` change keys: data={"graphs": 2}."""
    made = {
        "model": {"name": "split_sage", "options": SMALL},
        "data": {"files": [str(f) for f in files], "graphs": 2, "configs": 6, "cache": str(folder / "cache")},
        "held_out": {"by": "folds", "folds": 4},
        "optimiser": {"steps": 8},
        "run": {"folder": str(folder / "run"), "evaluate_every": 4, "checkpoint_every": 4},
    }
    return {name: {**made.get(name, {}), **sections.get(name, {})} for name in {**made, **sections}}


def config(folder, files, **sections):
    return make_config(values(folder, files, **sections))


def child(*words):
    """The words and environment of a Python process that imports this repository."""
    return [sys.executable, *map(str, words)], {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}


def toml(config):
    """A config as the text of a file."""
    lines = []
    for section, found in config.as_json().items():
        lines.append(f"[{section}]")
        lines += [f"{key} = {_text(value)}" for key, value in found.items() if value is not None]
    return "\n".join(lines) + "\n"


def _text(value):
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {_text(v)}" for k, v in value.items()) + " }"
    return repr(value)
