"""What a search does with candidates that obey and cannot be used all the same."""

import jax
import jax.numpy as jnp
import pytest

import exla
from exla.report.plan import explain_text
from exla.search.attempt import Attempt

pytestmark = pytest.mark.usefixtures("compiled_quickly")

REASON = "its devices exchange data 3 times, 0 of them on every trip of a loop"


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
