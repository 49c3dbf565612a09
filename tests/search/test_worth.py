"""Whether a change of a program pays by the model."""

import jax
import jax.numpy as jnp
import pytest

from exla.call import read
from exla.datasets.profiling.zoo.programs import ZOO
from exla.passes.collect import enumerate_collections
from exla.passes.fold import enumerate_folds
from exla.passes.reorder import enumerate_reorders
from exla.passes.replace import Declined, enumerate_replacements, names
from exla.passes.replay import replay
from exla.passes.swap import enumerate_swaps
from exla.search import worth
from exla.search.cost import projected
from exla.search.rewriting import rewrite
from exla.search.worth import Before
from exla.targets.base import find_target


def F(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


MACHINES = {name: find_target(name).machine() for name in ("cpu", "tpu:v5e", "gpu:h100")}


def every_change(program):
    found = enumerate_replacements(program, names(False, ()))
    yield from (each[0] for each in found if not isinstance(each, Declined))
    yield from (each[0] for each in enumerate_reorders(program, lambda *counts: float(sum(counts)), 0))
    yield from enumerate_collections(program)
    yield from enumerate_swaps(program)
    yield from enumerate_folds(program, 1)


@pytest.mark.parametrize("target", MACHINES)
def test_what_is_left_of_a_peak_is_bounded_by_what_is_not_changed(target):
    """But for what comes to lie on a TPU's chip in another order; what holds most there may be the code."""
    machine, tight = MACHINES[target], 0
    for name in ("sgpr_gradient", "newton_step", "block_training_step", "neighbourhood_attention", "sinkhorn_fori"):
        zoo = ZOO[name]
        before = Before(read(jax.make_jaxpr(zoo.function)(*zoo.arguments(zoo.fitting)), "cpu"), machine)
        for decision in every_change(before.program):
            changed = replay(before.program, decision)
            least, needed = before.least_bytes(changed), projected(changed, machine).bytes
            assert least <= 1.05 * needed, (name, str(decision))
            tight += least > 0.9 * before.peak.bytes
    assert tight > 5 or target == "tpu:v5e"


def far_from_the_peak(x, small):
    """What takes most is not what can be changed: a chain of small products that would be faster the other way."""
    return jnp.sin(x), jnp.cos(x), jnp.sum(jnp.square(small @ small @ small[:, :1]))


def test_a_change_far_from_the_peak_is_not_projected(monkeypatch):
    program = read(jax.make_jaxpr(far_from_the_peak)(F(2000, 2000), F(100, 100)), "cpu")
    calls = []
    monkeypatch.setattr(worth, "projected", lambda p, machine: calls.append(p) or projected(p, machine))
    before = Before(program, MACHINES["cpu"])
    (decision,) = (d for d, _ in enumerate_reorders(program, lambda *counts: float(sum(counts)), 0))
    assert not before.pays(replay(program, decision))
    assert calls == [program]


def three_times(x):
    """Distances that take little beside what else there is, at one line in three sizes."""
    squares = [jnp.exp(-jnp.sum((x[:n, None] - x[None]) ** 2, axis=-1)) for n in (10, 20, 30)]
    return squares, jnp.sum(jnp.sort(jnp.sin(x @ x.T), axis=0))


def test_what_would_not_pay_is_said_once_for_a_line():
    program = read(jax.make_jaxpr(three_times)(F(1000, 2)), "cpu")
    declined = rewrite(program, MACHINES["cpu"], exact=False).declined
    assert [(d.rule, "would not pay" in d.reason) for d in declined] == [("squared_distance", True)]
