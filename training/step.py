"""One step of training: loss of a batch, gradient, AdamW, and the average of the parameters.

    optimiser = make_optimiser(config.optimiser)
    state = start(variables, optimiser)
    step = make_step(model, LOSSES.get("pairwise_hinge"), optimiser, config.optimiser.ema, mesh)
    state, measured = step(state, spread(mesh, shards))

`apply_gradients` is the part that is the same however a gradient was made.

A batch is *shards* of one shape on a leading axis, one on each device of a mesh; parameters are on all of them. Each
device scores its own programs, and the loss is taken of all scores together, so that it is the mean over the programs
of the whole batch, however many a device has: with any number of devices it is the loss of one device up to the order
of float32 sums (relative difference below 1e-5).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax.sharding import Mesh, PartitionSpec

from exla.cost_model.batch import Batch
from exla.cost_model.losses import Loss
from exla.training.config import OptimiserConfig
from exla.training.parallel import AXIS, replicated

Variables = Mapping[str, Any]
"""{"params": nested dicts of float32 arrays}, as flax has it."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class State:
    """What a step changes.

    Fields:
      step: () int32, how many steps were taken.
      variables: what is trained.
      ema: their moving average, which is evaluated and exported.
      optimiser: state of the optimiser.
      history: what `training/segments.py` remembers of segments; None where programs are trained on whole.
    """

    step: jax.Array
    variables: Variables
    ema: Variables
    optimiser: Any
    history: Any = None


def learning_rate(config: OptimiserConfig) -> optax.Schedule:
    """Step -> learning rate: linear warm-up, then a cosine to 0."""
    return optax.warmup_cosine_decay_schedule(
        init_value=0.0,
        peak_value=config.learning_rate,
        warmup_steps=round(config.warm_up * config.steps),
        decay_steps=config.steps,
    )


def make_optimiser(config: OptimiserConfig) -> optax.GradientTransformation:
    """AdamW of gradients cut to a length; only matrices decay."""

    def decays(variables: Variables) -> Variables:
        return jax.tree.map(lambda x: x.ndim > 1, variables)

    adamw = optax.adamw(learning_rate(config), weight_decay=config.weight_decay, mask=decays)
    return optax.chain(optax.clip_by_global_norm(config.clip_norm), adamw) if config.clip_norm else adamw


def start(variables: Variables, optimiser: optax.GradientTransformation) -> State:
    """The state before the first step."""
    ema = jax.tree.map(jnp.array, variables)  # buffers of its own: a step overwrites both
    return State(step=jnp.zeros((), jnp.int32), variables=variables, ema=ema, optimiser=optimiser.init(variables))


def apply_gradients(state: State, gradients: Variables, optimiser: optax.GradientTransformation, ema: float) -> State:
    """Change the parameters and their average.

    Args:
      state: before.
      gradients: of the loss, by `state.variables`.
      optimiser: that made `state.optimiser`.
      ema: see `OptimiserConfig`; in the first steps less of the average stays, so that it forgets where it began.
    """
    updates, optimiser_state = optimiser.update(gradients, state.optimiser, state.variables)
    variables = optax.apply_updates(state.variables, updates)
    stays = jnp.minimum(ema, (1 + state.step) / (10 + state.step))
    average = jax.tree.map(lambda old, new: stays * old + (1 - stays) * new, state.ema, variables)
    return replace(state, step=state.step + 1, variables=variables, ema=average, optimiser=optimiser_state)


def make_apply(model: nn.Module, mesh: Mesh, **how: Any) -> Callable[[Variables, Batch], jax.Array]:
    """A function of variables and D shards: what the model gives for each, (D, g + 1, c, …), from its own device.

    Args:
      model, mesh: the model, and the D devices.
      **how: keyword arguments of `model.apply`: `train`, or the `method`.
    """

    def of_shard(variables: Variables, batch: Batch) -> jax.Array:
        one = jax.tree.map(lambda x: x[0], batch)
        return model.apply(variables, one, **how)[None]

    everywhere, apart = PartitionSpec(), PartitionSpec(AXIS)
    return jax.shard_map(of_shard, mesh=mesh, in_specs=(everywhere, apart), out_specs=apart)


def make_loss(model: nn.Module, loss: Loss, mesh: Mesh) -> Callable[[Variables, Batch], jax.Array]:
    """A function of variables and D shards: the mean over all their programs that have something to rank."""
    scores_of = make_apply(model, mesh, train=True)

    def value(variables: Variables, batch: Batch) -> jax.Array:
        scores = scores_of(variables, batch)
        flat = (-1, scores.shape[-1])
        return loss(scores.reshape(flat), *(x.reshape(flat) for x in (batch.rank, batch.delay, batch.candidate_mask)))

    return value


def make_step(
    model: nn.Module, loss: Loss, optimiser: optax.GradientTransformation, ema: float, mesh: Mesh
) -> Callable[[State, Batch], tuple[State, dict[str, jax.Array]]]:
    """The compiled step.

    Args:
      model: scores a batch.
      loss: of scores, places and what is real.
      optimiser: that made the state's.
      ema: see `OptimiserConfig`.
      mesh: the devices.

    Returns:
      A jitted function of a state, which it takes over, and of D shards: the state after the step, and {"loss",
      "gradient_norm"}, () float32 each.
    """
    value = make_loss(model, loss, mesh)

    def step(state: State, batch: Batch) -> tuple[State, dict[str, jax.Array]]:
        found, gradients = jax.value_and_grad(value)(state.variables, batch)
        measured = {"loss": found, "gradient_norm": optax.tree.norm(gradients)}
        return apply_gradients(state, gradients, optimiser, ema), measured

    return jax.jit(step, donate_argnums=0, out_shardings=replicated(mesh))
