"""The stored table of programs that are far too big for a card, compiled for it under 1/64 of what they ask for."""

import pytest

from benchmarks.targets import FROM_ZOO, LARGE, TARGETS, programs, stored

ROWS = stored()
pytestmark = pytest.mark.skipif(
    not ROWS, reason="no table is stored for this Python and JAX: python -m benchmarks.targets"
)


def test_every_program_is_there_for_every_device():
    names = {*LARGE, *(f"grad of {name}" for name in LARGE), *FROM_ZOO}
    assert set(programs()) == names and len(names) == 26
    assert set(ROWS) == {(name, target) for name in names for target in TARGETS}


@pytest.mark.parametrize("target", TARGETS)
def test_every_program_obeys_or_is_refused_with_reasons(target):
    for (name, where), row in ROWS.items():
        if where != target:
            continue
        if row["status"] == "refused":
            reasons = ("What holds that peak", "Arguments and results alone take")
            assert row["smallest_bytes"] > row["cap_bytes"] and any(r in row["message"] for r in reasons), name
        else:
            assert row["status"] == "ok" and row["compiled_bytes"] <= row["cap_bytes"], (name, row)


def test_programs_that_plain_jax_cannot_compile_for_a_v5e_fit():
    fit = [name for (name, target), row in ROWS.items() if target == "tpu:v5e" and row["status"] == "ok"]
    refused_by_the_compiler = [name for name in fit if ROWS[name, "tpu:v5e"]["plain"] == "out of memory"]
    assert len(refused_by_the_compiler) >= 5
    for name in refused_by_the_compiler:
        row = ROWS[name, "tpu:v5e"]
        assert row["plain_bytes"] > row["usable_bytes"] and "Ran out of memory" in row["plain_error"]


def test_gpus_take_what_is_projected():
    """In the median; `test_projection.py` says more."""
    for target in ("gpu:a100-40", "gpu:h200"):
        ratios = sorted(
            row["projected_bytes"] / row["compiled_bytes"]
            for (_, where), row in ROWS.items()
            if where == target and row["status"] == "ok"
        )
        assert 0.9 <= ratios[len(ratios) // 2] <= 1.5
