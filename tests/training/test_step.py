"""One step: schedule, decay of matrices alone, averaging, and the same loss whichever way a batch is cut."""

import dataclasses
import json
import os
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from exla.training.config import OptimiserConfig
from exla.training.step import apply_gradients, learning_rate, make_optimiser, start
from tests.training.made import ROOT, child

VARIABLES = {"params": {"kernel": jnp.full((2, 2), 2.0), "bias": jnp.full(2, 2.0)}}


def taken(config, gradients, steps=1):
    optimiser = make_optimiser(config)
    states = [start(VARIABLES, optimiser)]
    for _ in range(steps):
        states.append(apply_gradients(states[-1], gradients, optimiser, config.ema))
    return states


def test_the_learning_rate_rises_and_falls_to_nothing():
    rate = learning_rate(OptimiserConfig(steps=100, warm_up=0.1, learning_rate=0.5))
    np.testing.assert_allclose([rate(0), rate(5), rate(10), rate(55), rate(100)], [0, 0.25, 0.5, 0.25, 0], atol=1e-6)


def test_matrices_decay_and_biases_do_not():
    config = OptimiserConfig(learning_rate=0.5, warm_up=0.0, weight_decay=0.1)
    zeros = jax.tree.map(jnp.zeros_like, VARIABLES)
    after = taken(config, zeros)[-1].variables["params"]
    np.testing.assert_allclose(after["kernel"], 2.0 * (1 - 0.5 * 0.1), rtol=1e-6)
    np.testing.assert_array_equal(after["bias"], 2.0)


def test_long_gradients_are_cut():
    gradients = jax.tree.map(lambda x: jnp.full_like(x, 100.0), VARIABLES)
    moments = []
    for clip in (1.0, 0.0):
        state = taken(OptimiserConfig(clip_norm=clip), gradients)[-1]
        (adam,) = [s for s in jax.tree.leaves(state.optimiser, is_leaf=is_adam) if is_adam(s)]
        moments.append(optax.tree.norm(adam.mu))
    np.testing.assert_allclose(moments, [0.1 * 1.0, 0.1 * 100 * 6**0.5], rtol=1e-5)


def is_adam(state):
    return isinstance(state, optax.ScaleByAdamState)


def test_the_average_follows_by_its_formula_and_forgets_the_start():
    config = OptimiserConfig(learning_rate=0.1, warm_up=0.0, ema=0.5)
    gradients = jax.tree.map(jnp.ones_like, VARIABLES)
    states = taken(config, gradients, 12)
    expected = np.float64(2.0)
    for step, state in enumerate(states[1:]):
        stays = min(0.5, (1 + step) / (10 + step))
        expected = stays * expected + (1 - stays) * np.float64(state.variables["params"]["bias"][0])
        np.testing.assert_allclose(state.ema["params"]["bias"], expected, rtol=1e-5)
    assert [int(s.step) for s in states] == list(range(13))
    assert dataclasses.fields(states[0])[0].name == "step"


ON_EIGHT = """
import json, sys
from pathlib import Path
import jax, numpy as np
from exla.cost_model.losses import LOSSES
from exla.training import train
from exla.training.parallel import make_mesh, spread
from exla.training.step import make_loss, make_optimiser
from tests.training.made import GCN, config, layout_files

folder = Path(sys.argv[1])
files = layout_files(folder, 4)
found = []
for graphs in (3, 11):  # fewer than devices; more, and not a multiple
    made = config(folder, files, model=GCN, data={"graphs": graphs}, held_out={"by": "nothing"})
    for devices in (1, 8):
        run = train.make_run(made, make_mesh(jax.devices()[:devices]))
        variables = run.start(make_optimiser(made.optimiser)).variables
        loss = jax.jit(jax.value_and_grad(make_loss(run.model, LOSSES.get(made.optimiser.loss), run.mesh)))
        value, gradient = loss(variables, spread(run.mesh, [run.sampler.shard(0, i) for i in range(devices)]))
        gradient = np.concatenate([np.ravel(g) for g in jax.tree.leaves(gradient)])
        found.append({"devices": len(value.sharding.device_set), "loss": float(value), "gradient": gradient.tolist()})
print(json.dumps(found))
"""


@pytest.mark.usefixtures("compiled_once")
def test_eight_devices_have_the_loss_and_gradient_of_one(tmp_path):
    words, environment = child("-c", ON_EIGHT, tmp_path)
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    done = subprocess.run(words, env={**environment, "XLA_FLAGS": flags}, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)
    assert [f["devices"] for f in found] == [1, 8, 1, 8] and found[0]["loss"] != found[2]["loss"]
    for one, eight in zip(found[::2], found[1::2], strict=True):
        np.testing.assert_allclose(eight["loss"], one["loss"], rtol=1e-5)
        scale = np.abs(one["gradient"]).max()
        np.testing.assert_allclose(eight["gradient"], one["gradient"], rtol=1e-4, atol=1e-5 * scale)
