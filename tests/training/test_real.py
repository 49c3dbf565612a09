"""Real files of TpuGraphs, where they are: read, pruned, put in batches, and trained on."""

import jax
import numpy as np
import pytest

from exla.datasets.tpugraphs_adapter import read
from exla.training.train import make_run
from tests.datasets.made import REAL, SHARED
from tests.training.made import GCN, config


def real(kind, count):
    files = [path for path in REAL if path.parent.name == kind][:count]
    if len(files) < count:
        pytest.skip(f"no real TpuGraphs files in {SHARED} (EXLA_SHARED_DATA)")
    return files


def test_a_real_program_with_layouts_becomes_a_batch(tmp_path):
    (path,) = real("layout", 1)
    rows = {"prune_hops": 1, "train_rows": 50, "held_out_rows": 20, "graphs": 1, "configs": 8}
    run = make_run(config(tmp_path, [path], model=GCN, held_out={"by": "rows"}, data=rows))
    batch, file = run.sampler.shard(0, 0), read(path)
    (chosen,), (part,) = run.sampler.chosen(0), run.split.train
    nodes = int(batch.node_mask.sum())
    assert file.graph.num_config_nodes < nodes < file.graph.num_nodes and len(part.rows) == 50
    configs = file.configs(part.program.file_rows[part.rows[chosen.rows]])
    real_nodes = np.flatnonzero(batch.config_mask)
    np.testing.assert_array_equal(batch.node_config[real_nodes].swapaxes(0, 1), configs)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(batch))


def test_real_kernels_with_tiles_become_a_batch(tmp_path):
    paths = real("tile", 4)
    made = config(tmp_path, paths, model={"name": "tile_mlp", "options": {}}, held_out={"by": "nothing"})
    run = make_run(made)
    for step in range(run.sampler.steps_per_epoch):
        batch = run.sampler.shard(step, 0)
        for row, chosen in enumerate(run.sampler.chosen(step)):
            part = run.split.train[chosen.part]
            runtime = part.runtime[chosen.rows]
            found = batch.rank[row, : len(runtime)]
            assert batch.candidate_mask[row].sum() == len(runtime)
            np.testing.assert_array_equal(np.argsort(found, kind="stable"), np.argsort(runtime, kind="stable"))
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(batch))
