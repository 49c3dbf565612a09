"""A first run that takes more of a device than the compiler counted is reported; the allocators here are made up."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import exla
from exla import overrun
from exla.errors import ExlaError, ExlaWarning

MIB = 1 << 20
N = 4_000


def kernel_product(x, v):
    return jnp.exp(-jnp.sum((x[:, None] - x[None]) ** 2, axis=-1)) @ v


def points():
    generator = np.random.default_rng(0)
    return jnp.asarray(generator.normal(size=(N, 3)), jnp.float32), jnp.ones(N, jnp.float32)


class Allocator:
    """Stands for that of the device: answers one after the other, (in use, peak) in MiB."""

    def __init__(self, monkeypatch, *answers):
        self.asked = 0
        self._answers = answers
        monkeypatch.setattr(overrun, "_said", self._said)

    def _said(self, device):
        answer = self._answers[min(self.asked, len(self._answers) - 1)]
        self.asked += 1
        return answer and {"bytes_in_use": answer[0] * MIB, "peak_bytes_in_use": answer[1] * MIB}


@pytest.fixture
def tolerant(monkeypatch):
    monkeypatch.delenv("EXLA_STRICT", raising=False)


@pytest.mark.parametrize(
    ("limit", "numerics"), [("8MiB", "reassociate"), ("2GiB", "exact")], ids=["split", "untouched"]
)
def test_a_run_over_the_count_is_reported_once(monkeypatch, tolerant, limit, numerics):
    allocator = Allocator(monkeypatch, (0, 0), (1, 3_000))
    arguments = points()
    f = exla.jit(kernel_product, memory_limit=limit, numerics=numerics, records="off")
    plan = f.plan(*arguments)
    assert bool(plan.decisions) == (limit == "8MiB")
    with pytest.warns(ExlaWarning, match="kernel_product: the run took .*MiB of .*, over the limit") as caught:
        f(*arguments)
    assert len([w for w in caught if issubclass(w.category, ExlaWarning)]) == 1 and allocator.asked == 2
    f(*arguments)
    assert allocator.asked == 2
    Allocator(monkeypatch, (0, 0), (1, 3_000))
    compiled = exla.compile(kernel_product, arguments, memory_limit=limit, numerics=numerics, records="off")
    with pytest.warns(ExlaWarning, match="compiler had counted"):
        compiled(*arguments)


def test_it_is_an_error_where_exlas_failures_are(monkeypatch):
    monkeypatch.setenv("EXLA_STRICT", "1")
    Allocator(monkeypatch, (0, 0), (1, 3_000))
    with pytest.raises(ExlaError, match="please report"):
        exla.jit(kernel_product, memory_limit="8MiB", records="off")(*points())


@pytest.mark.parametrize(
    "answers",
    [
        [(100, 100), (100, 104)],
        [(100, 3_000), (100, 3_000)],
        [None],
    ],
    ids=["within the count", "below an earlier peak", "an allocator that says nothing"],
)
def test_nothing_is_reported_of_other_runs(monkeypatch, answers):
    Allocator(monkeypatch, *answers)
    x, v = points()
    got = exla.jit(kernel_product, memory_limit="8MiB", records="off")(x, v)
    np.testing.assert_allclose(got, jax.jit(kernel_product)(x, v), rtol=1e-4)


def test_what_a_device_has_already_is_part_of_the_count():
    device = jax.devices()[0]
    x = jnp.zeros(MIB, jnp.float32)
    assert overrun._present_bytes(device, [x, x, np.zeros(5)]) == 4 * MIB


def test_an_allocator_that_grows_may_hand_out_twice_what_is_asked_for():
    whole, growing = {"pool_bytes": 4 * MIB, "bytes_limit": 4 * MIB}, {"pool_bytes": 2 * MIB, "bytes_limit": 4 * MIB}
    assert overrun.most_handed_out(MIB, whole) == overrun.most_handed_out(MIB, {}) == MIB
    assert overrun.most_handed_out(MIB, growing) == 2 * MIB


@pytest.mark.parametrize(("pool", "is_reported"), [(16, False), (1 << 20, True)], ids=["grows", "has all"])
def test_what_a_growing_allocator_rounds_up_is_no_bug(monkeypatch, tolerant, pool, is_reported):
    plan = exla.jit(kernel_product, memory_limit="64MiB", records="off").plan(*points())
    peak = int(1.8 * plan.compiled_bytes) + overrun.SLACK_BYTES
    said = {"pool_bytes": pool * MIB, "bytes_limit": 1 << 40}
    answers = [{"bytes_in_use": 0, "peak_bytes_in_use": p, **said} for p in (0, peak)]
    monkeypatch.setattr(overrun, "_said", lambda device: answers.pop(0))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exla.jit(kernel_product, memory_limit="64MiB", records="off")(*points())
    assert not answers and is_reported == any("the run took" in str(w.message) for w in caught)
