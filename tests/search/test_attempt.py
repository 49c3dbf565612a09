"""What a search does with candidates that obey and cannot be used all the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import exla
from exla.report.plan import explain_text
from exla.search import attempt, driver
from exla.search.attempt import Attempt

pytestmark = pytest.mark.usefixtures("compiled_quickly")

REASON = "its devices exchange data 3 times, 0 of them in loops; as jax.jit compiles it, 2 times, 0 of them in loops"


def test_what_exchanges_more_is_compiled_under_no_other_options_and_reported_so(monkeypatch):
    seen = []

    def exchanges_more(self, compiled, untouched):
        obeys = self.target.compiled_bytes(compiled).total <= self.limit_bytes
        is_first = not seen and obeys and " while(" in compiled.as_text()
        seen.extend([compiled] * is_first)
        return REASON if is_first else ""

    monkeypatch.setattr(Attempt, "_exchanges_more", exchanges_more)
    x = jax.ShapeDtypeStruct((1500, 256), jnp.float32)
    f = exla.jit(lambda x: jnp.maximum(x @ x.T, 0).sum(1), memory_limit="6MiB", records="off")
    plan = f.plan(x)
    *_, barred, chosen = plan.tried
    assert barred.error == REASON and barred.compiled_bytes.total <= 6 << 20
    assert barred.what.partition("; compile option")[0] != chosen.what.partition("; compile option")[0]
    assert f"not used, {REASON}: {barred.what}" in explain_text(plan)


def test_a_replay_looks_for_nothing_and_projects_nothing_until_it_is_asked(monkeypatch):
    """What a second process spends beyond tracing and compiling is on replaying what was decided, and checking it."""

    def smooth(x, y, v):
        return jnp.exp(-jnp.sum((x[:, None] - y[None]) ** 2, axis=-1)) @ v

    def projected(*args, **kwargs):
        projections.append(args)
        return original(*args, **kwargs)

    def sought(*args, **kwargs):
        raise AssertionError("a replay searches")

    values = [np.random.default_rng(0).normal(size=s).astype(np.float32) for s in ((600, 16), (600, 16), (600,))]
    first = exla.jit(smooth, memory_limit="400KiB").plan(*values)
    assert first.source == "search" and any("squared_distance" in words for words in first.words)
    projections, original = [], attempt.projected
    monkeypatch.setattr(attempt, "projected", projected)
    monkeypatch.setattr(driver, "make_space", sought)
    again = exla.jit(smooth, memory_limit="400KiB")
    x, y, v = (a.astype(np.float64) for a in values)
    expected = np.exp(-np.sum((x[:, None] - y[None]) ** 2, axis=-1)) @ v
    np.testing.assert_allclose(again(*values), expected, rtol=2e-4, atol=2e-4)
    assert not projections
    plan = again.plan(*values)
    assert (plan.source, plan.decisions) == ("record", first.decisions)
    assert plan.projected_bytes == first.projected_bytes and plan.compiled_bytes == first.compiled_bytes
    assert len(projections) == 1
