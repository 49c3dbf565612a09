"""Memory as the operating system sees it: `verify="run"`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import exla
from exla.options import Options
from exla.search import attempt, measure
from exla.search.attempt import Attempt
from exla.search.records import RecordStore
from exla.targets.base import TARGETS


def product(x, y):
    return jnp.sum(jnp.exp(x @ y.T), axis=1)


def points(n=3000):
    return tuple(jax.ShapeDtypeStruct((n, 8), jnp.float32) for _ in range(2))


def test_a_process_takes_what_its_values_take():
    grown = measure.measured_bytes(
        lambda x: jnp.outer(x, x), [jax.ShapeDtypeStruct((4000,), jnp.float32)], compiler_options={}
    )
    assert abs(grown - 4 * 4000**2) <= measure.NOISE_BYTES


def test_integers_are_made_up_as_indices_and_donated_arguments_are_used_again():
    structs = [jax.ShapeDtypeStruct((2_000_000,), t) for t in (jnp.float32, jnp.int32)]
    grown = [
        measure.measured_bytes(lambda x, i: (x + x[i], i), structs, donate=donate, compiler_options={})
        for donate in ((), (0,))
    ]
    assert all(g < 3 * 8_000_000 + 2 * measure.NOISE_BYTES for g in grown)


def test_a_chosen_program_is_run_and_what_it_took_is_recorded_and_not_measured_again(monkeypatch):
    f = exla.jit(product, memory_limit="20MiB", verify="run")
    plan = f.plan(*points())
    assert plan.measured_bytes is not None
    assert plan.measured_bytes <= plan.compiled_bytes + measure.NOISE_BYTES
    assert "measured   not" not in str(plan)
    assert any(r.measured_bytes == plan.measured_bytes for r in RecordStore(None).read().records)

    def never(*args, **kwargs):
        raise AssertionError("measured twice")

    monkeypatch.setattr(attempt, "measured_bytes", never)
    again = exla.jit(product, memory_limit="20MiB", verify="run").plan(*points())
    assert again.measured_bytes == plan.measured_bytes and again.source == "record"


@pytest.mark.filterwarnings("ignore:split axis")
def test_what_took_more_than_the_limit_is_refused_however_little_it_was(monkeypatch):
    f = exla.jit(product, memory_limit="20MiB", verify="run", records="off")
    limit = 20 << 20
    for took in (limit, limit + 1):
        monkeypatch.setattr(attempt, "measured_bytes", lambda *a, took=took, **k: took)
        if took <= limit:
            assert f.plan(*points()).measured_bytes == took
            f.clear_cache()
        else:
            with pytest.raises(exla.MemoryLimitError):
                f.plan(*points())


def test_only_one_cpu_is_measured_and_that_is_said_before_anything_is_planned():
    with pytest.raises(exla.MeasureError, match="for one CPU"):
        Attempt(
            call=None, target=TARGETS.get("gpu:h200"), options=Options(verify="run"), limit_bytes=1, store=None, key={}
        )


def test_a_program_that_takes_more_than_was_counted_is_reported_and_not_used(monkeypatch):
    monkeypatch.setattr(attempt, "measured_bytes", lambda *a, **k: 1 << 40)
    with pytest.warns(exla.ExlaWarning, match="took 1099511627776 bytes"), pytest.raises(exla.MemoryLimitError):
        exla.jit(product, memory_limit="20MiB", verify="run", records="off").plan(*points())


def test_a_process_that_dies_or_hangs_is_an_error_that_says_so(monkeypatch):
    structs = [jax.ShapeDtypeStruct((8,), jnp.float32)]
    with pytest.raises(exla.MeasureError, match="did not end within"):
        measure.measured_bytes(jnp.sin, structs, compiler_options={}, timeout_s=0.05)
    with pytest.raises(exla.MeasureError, match="ended with status"):
        measure.measured_bytes(jnp.sin, structs, compiler_options={"no_such_option": "1"})
    with pytest.raises(exla.MeasureError, match="another process"):
        measure.measured_bytes(
            lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct((8,), jnp.float32), x),
            structs,
            compiler_options={},
        )
