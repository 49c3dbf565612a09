"""The step for TPUs that are not here: compiled by their own compiler for several chips, with what it takes of them."""

import importlib.util
from dataclasses import replace

import jax
import numpy as np
import pytest
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec

from exla.cost_model.batch import collate
from exla.cost_model.losses import LOSSES
from exla.cost_model.models import MODELS
from exla.targets.base import TARGETS
from exla.targets.hlo_text import collectives
from exla.targets.tpu import topology
from exla.training.config import OptimiserConfig, SegmentsConfig
from exla.training.data import open_split
from exla.training.parallel import AXIS, make_mesh, replicated
from exla.training.segments import SegmentSampler, make_segment_step, start_history
from exla.training.step import make_optimiser, make_step, start
from exla.training.train import fit_normaliser
from tests.cost_model.made import fitted, made_sample
from tests.training.made import config, layout_file

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason='no TPU compiler: pip install "exla[compilers]"'
)

CHIPS = {"v5e:2x2": ("tpu:v5e", 4), "v4:2x2x2": ("tpu:v4", 16)}
"""Topology -> (target, devices): a v4 chip has two cores, which are a device each."""
SMALL = made_sample(0)
OURS = {"hidden": 8, "blocks": 1}
STEPS = {
    "tile_mlp": ("tile_mlp", {}),
    "split_sage": ("split_sage", OURS),
    "split_sage in bfloat16, with remat": ("split_sage", {**OURS, "dtype": "bfloat16", "remat": True}),
}
"""Models with options for which the compiler takes seconds; the last is in the sweep."""
LARGE = {"nodes": 1000, "edges": 2000, "config_nodes": 100, "candidates": 64}


@pytest.fixture(params=CHIPS)
def chips(request):
    """A mesh of devices that are not here, and the bytes that one of them has."""
    name, devices = CHIPS[request.param]
    target = TARGETS.get(name)
    topology(target.facts)  # sets what libtpu needs to know
    mesh = make_mesh(topologies.get_topology_desc(request.param, platform="tpu").devices)
    assert mesh.size == devices
    return request.param, mesh, target.usable_bytes()


def lowered(mesh, model, sample):
    """The step, of shapes alone: one program on each device."""
    batch = collate([sample], fitted([sample]))
    return _of_shapes(mesh, model, make_step, batch, batch)


def lowered_by_segments(mesh, model, folder):
    """The step of one segment of each program, likewise."""
    files = [layout_file(folder, n=40)]
    split = open_split(config(folder, files, held_out={"by": "nothing"}))
    given = {"graphs": mesh.size, "configs": 6, "shards": mesh.size, "seed": 0, "steps": 10}
    sampler = SegmentSampler(split.train, fit_normaliser(split), **given, how=SegmentsConfig(size=10))
    assert sampler.most == 4
    batch = sampler.shard(0, 0)
    history = jax.eval_shape(lambda: start_history(sampler.table_size, 2 * model.hidden))
    return _of_shapes(mesh, model, make_segment_step, batch, batch.batch, history=history)


def _of_shapes(mesh, model, make, batch, seen, history=None):
    optimiser = make_optimiser(OptimiserConfig())
    variables = jax.eval_shape(model.init, jax.random.key(0), seen)
    state = replace(jax.eval_shape(lambda v: start(v, optimiser), variables), history=history)
    apart = NamedSharding(mesh, PartitionSpec(AXIS))

    def whole(x):
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=replicated(mesh))

    def stacked(x):
        x = np.asarray(x)
        return jax.ShapeDtypeStruct((mesh.size, *x.shape), jax.dtypes.canonicalize_dtype(x.dtype), sharding=apart)

    step = make(model, LOSSES.get("pairwise_hinge"), optimiser, 0.995, mesh)
    return step.lower(jax.tree.map(whole, state), jax.tree.map(stacked, batch))


def hbm_bytes(compiled):
    """Arguments, outputs and temporaries of one device."""
    memory = compiled.memory_analysis()
    total = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    return total - memory.alias_size_in_bytes


@pytest.mark.parametrize("what", [*list(STEPS)[:2], pytest.param(list(STEPS)[2], marks=pytest.mark.sweep)])
def test_the_step_compiles_for_several_chips_and_sums_gradients_over_them(chips, what, capsys):
    (name, mesh, capacity), (model, options) = chips, STEPS[what]
    compiled = lowered(mesh, MODELS.get(model)(**options), SMALL).compile()
    assert collectives(compiled.as_text()).total > 0
    with capsys.disabled():
        print(f"\n{name}, {what}: {hbm_bytes(compiled) / 2**20:,.2f} MiB of HBM on each of {mesh.size} devices")
    assert 0 < hbm_bytes(compiled) < capacity


@pytest.mark.parametrize("chips", ["v5e:2x2"], indirect=True)
def test_the_step_by_segments_compiles_for_several_chips(chips, tmp_path, capsys):
    name, mesh, capacity = chips
    compiled = lowered_by_segments(mesh, MODELS.get("split_sage")(**OURS), tmp_path).compile()
    assert collectives(compiled.as_text()).total > 0
    with capsys.disabled():
        print(f"\n{name}, split_sage by segments: {hbm_bytes(compiled) / 2**20:,.2f} MiB of HBM on each device")
    assert 0 < hbm_bytes(compiled) < capacity


@pytest.mark.sweep
@pytest.mark.parametrize("options", [{}, {"remat": True}, {"remat": True, "dtype": "bfloat16"}], ids=str)
def test_our_model_fits_the_chips(chips, options, capsys):
    name, mesh, capacity = chips
    model = MODELS.get("split_sage")(hidden=32, blocks=3, **options)
    compiled = lowered(mesh, model, made_sample(0, **LARGE)).compile()
    with capsys.disabled():
        print(f"\n{name}, split_sage {options}: {hbm_bytes(compiled) / 2**20:,.0f} MiB of HBM on each device")
    assert 0 < hbm_bytes(compiled) < capacity
