"""`search="learned"` for a TPU, by the weights that come with exla: three are compiled, and the compiler settles it."""

import re

import pytest

import exla
from exla.search.strategies.learned import RIVALS
from exla.targets.cycles import estimated_cycles
from tests.sweep import all_but
from tests.targets.installed import compiler_of
from tests.targets.test_compilers import N, kernel_product, points

LIMIT = 64 << 20


@pytest.mark.parametrize("target", all_but(["tpu:v6e"], ["tpu:v5e", "tpu:v6e"]))
def test_the_fewest_cycles_are_kept_of_what_is_ranked_first(target, monkeypatch):
    monkeypatch.delenv("EXLA_WEIGHTS", raising=False)
    compiled = exla.compile(
        kernel_product, points(), target=compiler_of(target), memory_limit=LIMIT, search="learned", records="off"
    )
    plan = compiled.plan
    assert plan.decisions and plan.compiled_bytes <= LIMIT < 4 * N * N
    obeying = [t for t in plan.tried if t.peak_bytes is not None and t.peak_bytes <= LIMIT]
    assert len(obeying) == 1 + RIVALS
    (settled,) = (line for line in plan.prediction if "cycles estimated" in line)
    kept, *others = (float(n.replace(",", "")) for n in re.findall(r"\d[\d,]{3,}", settled))
    assert kept == round(estimated_cycles(compiled.as_text()).total) and len(others) == RIVALS and kept <= min(others)
