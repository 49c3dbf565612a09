"""Memory as the operating system sees it: `verify="run"`."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import exla
from exla.options import Options
from exla.search import attempt, child, measure, values
from exla.search.attempt import Attempt
from exla.search.measure import Runnable
from exla.search.records import RecordStore
from exla.search.values import Allowed
from exla.targets.base import TARGETS
from tests.sweep import all_but


def product(x, y):
    return jnp.sum(jnp.exp(x @ y.T), axis=1)


def points(n=3000):
    return tuple(jax.ShapeDtypeStruct((n, 8), jnp.float32) for _ in range(2))


def test_a_process_takes_what_its_values_take():
    structs = [jax.ShapeDtypeStruct((4000,), jnp.float32)]
    grown = measure.measured_bytes(Runnable(fn=lambda x: jnp.outer(x, x), structs=structs, options={}))
    assert abs(grown - 4 * 4000**2) <= measure.NOISE_BYTES


@pytest.mark.parametrize("donate", all_but([()], [(), (0,)]))
def test_integers_are_made_up_as_indices_and_donated_arguments_are_used_again(donate):
    structs = [jax.ShapeDtypeStruct((2_000_000,), t) for t in (jnp.float32, jnp.int32)]
    program = Runnable(fn=lambda x, i: (x + x[i], i), structs=structs, donate=donate, options={})
    assert measure.measured_bytes(program) < 3 * 8_000_000 + 2 * measure.NOISE_BYTES


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
        measure.measured_bytes(Runnable(fn=jnp.sin, structs=structs, options={}), timeout_s=0.05)
    with pytest.raises(exla.MeasureError, match="ended with compile_error"):
        measure.measured_bytes(Runnable(fn=jnp.sin, structs=structs, options={"no_such_option": "1"}))
    with pytest.raises(exla.MeasureError, match="another process"):
        outside = jax.ShapeDtypeStruct((8,), jnp.float32)
        callback = Runnable(fn=lambda x: jax.pure_callback(np.sin, outside, x), structs=structs, options={})
        measure.measured_bytes(callback)


def test_a_timed_program_is_compared_before_it_is_timed():
    structs = [jax.ShapeDtypeStruct((500, 500), jnp.float32)]
    plain = Runnable(fn=lambda x: x @ x, structs=structs, options={})
    halves = Runnable(fn=lambda x: x[:, :250] @ x[:250] + x[:, 250:] @ x[250:], structs=structs, options={})
    wrong = Runnable(fn=lambda x: (x @ x).at[3, 4].add(10.0), structs=structs, options={})
    good = measure.timed(halves, reference=plain, seconds=0.2, allowed=Allowed(tolerance=1e-4))
    assert good.status == "ok" and good.run_s > 0 and good.reference_s > 0 and good.rounds >= 1
    assert 0 <= good.error < 1e-5
    bad = measure.timed(wrong, reference=plain, seconds=0.2, allowed=Allowed(tolerance=1e-4))
    assert bad.status == "wrong_result" and bad.run_s is None and bad.error > 1e-3


def test_constants_cross_over_with_their_values():
    table = (jnp.arange(1000) % 256).astype(jnp.bfloat16)
    structs = [jax.ShapeDtypeStruct((1000,), jnp.bfloat16), jax.ShapeDtypeStruct((1000,), jnp.float32)]
    taken = Runnable(fn=lambda c, x: c.astype(jnp.float32) + x, structs=structs, consts=[table], options={})
    alone = Runnable(fn=lambda x: (jnp.arange(1000) % 256).astype(jnp.float32) + x, structs=structs[1:], options={})
    assert measure.timed(taken, reference=alone, seconds=0.1, allowed=Allowed(tolerance=1e-6)).status == "ok"


def test_a_candidate_is_right_that_agrees_with_the_reference_under_other_options(monkeypatch):
    """XLA's libraries are not always right, and the plain program is not either then."""
    avals = [jax.ShapeDtypeStruct((30, 30), jnp.float32)]
    wrong, right, off = (
        child.Loaded(compiled=jax.jit(f), consts=(), avals=avals, read=(0,))
        for f in (lambda x: (x + 1,), lambda x: (x,), lambda x: (x + 2,))
    )
    how = {"seconds": 0.1, "takes_turns": True, "best_s": None, "allowed": Allowed(tolerance=1e-3)}
    assert child.measure_time([wrong, right], **how)["status"] == "wrong_result"
    assert child.measure_time([wrong, right], others=iter([off, right]), **how)["status"] == "ok"
    assert child.measure_time([wrong, right], others=iter([off]), **how)["status"] == "wrong_result"


def test_keys_are_made_up_too():
    key = jax.eval_shape(lambda: jax.random.split(jax.random.key(0, impl="rbg"), 3))
    program = Runnable(fn=lambda k: jax.random.uniform(k[1], (8,)), structs=[key], options={})
    found = measure.timed(program, reference=program, seconds=0.1, allowed=Allowed(tolerance=0.0))
    assert found.status == "ok" and found.run_s is not None


ENDLESS = """
import jax, jax.numpy as jnp
from exla.search.measure import Runnable, timed
def endless(x):
    return jax.lax.while_loop(lambda x: x[0] < 2, lambda x: jnp.sin(x), x)
timed(Runnable(fn=endless, structs=[jax.ShapeDtypeStruct((300_000,), jnp.float32)], options={}))
"""


def processes_of(folder):
    """Those whose command line names something in a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(folder) in path.read_bytes().decode(errors="replace"):
                found.append(path.parent.name)
    return found


def wait_for(condition):
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        time.sleep(0.1)
    assert condition()


def test_a_process_that_measures_ends_with_the_one_that_started_it(tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    parent = subprocess.Popen([sys.executable, "-c", ENDLESS], env=environment)
    wait_for(lambda: processes_of(tmp_path))
    time.sleep(2)  # it has begun to run
    assert processes_of(tmp_path)
    parent.kill()
    parent.wait()
    wait_for(lambda: not processes_of(tmp_path))
    wait_for(lambda: not list(tmp_path.glob("exla-*")))


def test_two_searches_take_turns_in_measuring_and_do_without_where_no_lock_can_be_kept(monkeypatch, tmp_path):
    program = Runnable(fn=jnp.sin, structs=[jax.ShapeDtypeStruct((8,), jnp.float32)], options={})
    ended = []

    def measuring():
        ended.append(measure.timed(program, seconds=0.01).status)

    with measure._alone():
        other = threading.Thread(target=measuring)
        other.start()
        time.sleep(3)
        assert other.is_alive() and not ended
    other.join()
    assert ended == ["ok"]
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(measure, "default_directory", lambda: tmp_path / "file" / "below")
    measuring()
    assert ended == ["ok", "ok"]


def test_a_hopeless_candidate_is_given_up_after_one_turn():
    avals = [jax.ShapeDtypeStruct((30, 30), jnp.float32)]
    program = child.Loaded(compiled=lambda x: (jnp.sort(x),), consts=(), avals=avals, read=(0,))
    how = {"seconds": 5, "takes_turns": True, "allowed": None}
    assert child.measure_time([program], best_s=1e-9, **how)["rounds"] == 1
    assert child.measure_time([program], best_s=None, **how)["rounds"] >= child.LEAST_ROUNDS


def test_a_process_above_its_ceiling_is_stopped_and_one_that_crashes_is_a_status():
    big = Runnable(
        fn=lambda x: jnp.sum(jnp.sort(jnp.outer(x, x), axis=1)[:, ::2]),
        structs=[jax.ShapeDtypeStruct((20_000,), jnp.float32)],
        options={},
    )
    assert measure.timed(big, seconds=1, ceiling_bytes=600 << 20).status == "oom"
    assert measure.timed(big, seconds=1, timeout_s=0.05).status == "timeout"
    crash = Runnable(fn=lambda x: x, structs=[jax.ShapeDtypeStruct((1 << 45,), jnp.float32)], options={})
    assert measure.timed(crash, seconds=1).status in ("crash", "oom")


@pytest.mark.parametrize(
    ("want", "got", "expected"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.0], [1.0, 2.2], 0.1),
        ([0.0, 0.0], [0.0, 1e-30], np.inf),
        ([np.nan, 2.0], [np.nan, 2.0], 0.0),
        ([np.nan, 2.0], [1.0, 2.0], np.inf),
        ([np.inf, 2.0], [-np.inf, 2.0], np.inf),
        ([1, 2, 3, 4], [1, 2, 3, 5], (0.0, 0.25)),
        ([], [], 0.0),
    ],
)
def test_the_difference_of_two_results(want, got, expected):
    pair = expected if isinstance(expected, tuple) else (expected, 0.0)
    assert values.difference([np.array(want)], [np.array(got)]) == pytest.approx(pair)
    assert values.difference([np.array(want)], [np.array([*got, 1])]) == (np.inf, 1.0)


@pytest.mark.parametrize(("times", "precise"), [([1.0] * 4, False), ([1.0] * 5, True), ([1.0, 1.2] * 5, False)])
def test_the_spread_of_a_median_is_that_of_its_order_statistics(times, precise):
    assert (child.spread(times) < child.PRECISE) == precise
