"""The step for TPUs that are not here: compiled by their own compiler for several chips, with what it takes of them."""

import importlib.util

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
from exla.training.config import OptimiserConfig
from exla.training.parallel import AXIS, make_mesh, replicated
from exla.training.step import make_optimiser, make_step, start
from tests.cost_model.made import fitted, made_sample

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason='no TPU compiler: pip install "exla[compilers]"'
)

CHIPS = {"v5e:2x2": ("tpu:v5e", 4), "v4:2x2x2": ("tpu:v4", 16)}
"""Topology -> (target, devices): a v4 chip has two cores, which are a device each."""
SMALL = made_sample(0)
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
    optimiser = make_optimiser(OptimiserConfig())
    variables = jax.eval_shape(model.init, jax.random.key(0), batch)
    state = jax.eval_shape(lambda v: start(v, optimiser), variables)
    apart = NamedSharding(mesh, PartitionSpec(AXIS))

    def whole(x):
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=replicated(mesh))

    def stacked(x):
        x = np.asarray(x)
        return jax.ShapeDtypeStruct((mesh.size, *x.shape), jax.dtypes.canonicalize_dtype(x.dtype), sharding=apart)

    step = make_step(model, LOSSES.get("pairwise_hinge"), optimiser, 0.995, mesh)
    return step.lower(jax.tree.map(whole, state), jax.tree.map(stacked, batch))


def hbm_bytes(compiled):
    """Arguments, outputs and temporaries of one device."""
    memory = compiled.memory_analysis()
    total = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    return total - memory.alias_size_in_bytes


def test_the_step_compiles_for_several_chips_and_sums_gradients_over_them(chips, capsys):
    name, mesh, capacity = chips
    compiled = lowered(mesh, MODELS.get("tile_mlp")(), SMALL).compile()
    assert collectives(compiled.as_text()).total > 0
    with capsys.disabled():
        print(f"\n{name}, tile_mlp: {hbm_bytes(compiled) / 2**20:,.1f} MiB of HBM on each of {mesh.size} devices")
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
