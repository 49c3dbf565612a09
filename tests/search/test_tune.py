"""Searches that measure: what is measured once, what wins, and what survives a kill."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import exla
from exla.ir.emit import emit
from exla.ir.fingerprint import fingerprint
from exla.passes.decisions import CompileOption, Split
from exla.passes.unless import EXPANSIONS
from exla.search import attempt, tune
from exla.search.barred import as_recorded
from exla.search.measure import Timing
from exla.search.records import RecordStore
from exla.search.smaller import smaller
from exla.search.trials import Budget, Listener, listener
from exla.targets.base import TARGETS
from tests.sweep import all_but

pytestmark = pytest.mark.usefixtures("compiled_quickly")

SHAPES = tuple(jax.ShapeDtypeStruct((400, 3), jnp.float32) for _ in range(2))
PROGRAM = """
import jax.numpy as jnp
def farthest(x, y):
    return jnp.max(jnp.min(jnp.sum(jnp.abs(x[:, None] - y[None]), axis=-1), axis=1))
"""


def farthest(x, y):
    return jnp.max(jnp.min(jnp.sum(jnp.abs(x[:, None] - y[None]), axis=-1), axis=1))


COMPILED = {}


@pytest.fixture(autouse=True)
def compiled_once(monkeypatch):
    """These tests search the same few candidates: each is compiled once."""
    emitted, compiled = attempt.emit, attempt.compile_for

    def emit_program(program, expansions, **how):
        run = emitted(program, expansions, **how)
        run.program = program
        return run

    def compile_once(target, fn, structs, *, compiler_options, **kwargs):
        key = fingerprint(fn.program), tuple(sorted(compiler_options.items()))
        if key not in COMPILED:
            COMPILED[key] = compiled(target, fn, structs, compiler_options=compiler_options, **kwargs)
        return COMPILED[key]

    monkeypatch.setattr(attempt, "emit", emit_program)
    monkeypatch.setattr(attempt, "compile_for", compile_once)


class Clock:
    """Stands in for processes: a time for each candidate by its chunks, `plain_s` for the plain program."""

    def __init__(self, monkeypatch, plain_s=1.0, seconds=lambda chunks: 0.5 + 1 / max(chunks), wrong=()):
        self.asked, self.plain_s, self.seconds, self.wrong = [], plain_s, seconds, wrong
        monkeypatch.setattr(tune, "timed", self.timed)
        original = tune.Tuning._measured

        def measured(tuning, trial, *rest):
            self.now = trial.decisions
            return original(tuning, trial, *rest)

        monkeypatch.setattr(tune.Tuning, "_measured", measured)

    def timed(self, program, *, reference=None, **kwargs):
        chunks = tuple(d.chunk for d in self.now if isinstance(d, Split))
        self.asked.append(self.now)
        if chunks and chunks[0] in self.wrong:
            return Timing(status="wrong_result", error=0.5)
        run_s = self.seconds(chunks) if chunks else self.plain_s
        return Timing(status="ok", run_s=run_s, reference_s=self.plain_s if reference else None, rounds=9, error=0.0)


def search(limit="64KiB", seed=0, trials=6, **options):
    """The plan, and what the search found."""
    found = []
    token = listener.set(Listener(seed=seed, done=found.append))
    try:
        f = exla.jit(farthest, memory_limit=limit, **{"search": "measured", "search_trials": trials, **options})
        return f.plan(*SHAPES), found[0]
    finally:
        listener.reset(token)


def test_the_fastest_that_obeys_wins_and_the_next_process_uses_it_unasked(monkeypatch):
    clock = Clock(monkeypatch)
    plan, found = search()
    timed = [t for t in found.trials if t.run_s is not None]
    best = min(t.run_s for t in timed)
    won = next(t for t in found.trials if t.decisions == plan.decisions)
    assert won.run_s <= best * (1 + tune.NOISE) and plan.compiled_bytes <= 64 << 10
    assert found.trials[0].decisions == () and found.trials[0].status == "over_limit"
    assert found.stop == "trials" and len(found.trials) == 7
    count = len(clock.asked)
    again = exla.jit(farthest, memory_limit="64KiB").plan(*SHAPES)
    assert again.decisions == plan.decisions and again.source == "record" and len(clock.asked) == count


def test_what_was_measured_is_not_measured_again_and_more_trials_go_on(monkeypatch):
    clock = Clock(monkeypatch)
    _, first = search(trials=5)
    count = len(clock.asked)
    _, second = search(trials=5)
    assert len(clock.asked) == count and [t.decisions for t in second.trials] == [t.decisions for t in first.trials]
    assert {t.source for t in second.trials[1:]} == {"record"}
    _, third = search(trials=7)
    assert third.trials[: len(first.trials) - 1] and len(third.trials) == 8 and len(clock.asked) > count
    assert max(Counter(clock.asked).values()) == 1


def test_what_compiles_to_the_same_code_is_measured_once(monkeypatch):
    clock = Clock(monkeypatch)
    _, found = search(trials=7)
    twins = [t for t in found.trials if t.source == "twin"]
    measured = [t for t in found.trials if t.source == "measured" and t.run_s is not None]
    assert twins and len(clock.asked) == len(measured)


def test_a_wrong_candidate_is_reported_with_a_file_that_replays_it_and_never_wins(monkeypatch):
    _, found = search_with_wrong(monkeypatch)
    wrong = [t for t in found.trials if t.status == "wrong_result"]
    assert wrong and found.choice.decisions not in [t.decisions for t in wrong]
    folder = Path(os.environ["EXLA_RECORDS_DIR"]) / "wrong"
    path = next(folder.glob("*.plan.json"))
    assert exla.load(path, farthest, SHAPES).plan.decisions in [t.decisions for t in wrong]


class All:
    """Chunks of every size."""

    def __contains__(self, chunk):
        return True


def changes(decisions):
    return tuple(d for d in decisions if not isinstance(d, CompileOption))


@pytest.mark.parametrize("records", ["append", "off"])
def test_what_was_wrong_is_not_chosen_by_prediction_either_now_or_by_another_process(monkeypatch, records):
    Clock(monkeypatch, wrong=All())
    with pytest.warns(exla.ExlaWarning, match="values differ"):
        plan, found = search(trials=3, records=records)
    wrong = {changes(t.decisions) for t in found.trials if t.status == "wrong_result"}
    assert wrong and changes(plan.decisions) not in wrong and plan.compiled_bytes <= 64 << 10
    again = exla.jit(farthest, memory_limit="64KiB", records=records).plan(*SHAPES)
    assert (changes(again.decisions) in wrong) == (records == "off")  # nobody can know


def test_what_was_chosen_before_is_not_replayed_once_it_is_known_to_be_wrong(monkeypatch):
    chosen = exla.jit(farthest, memory_limit="64KiB").plan(*SHAPES)
    assert exla.jit(farthest, memory_limit="64KiB").plan(*SHAPES).source == "record"
    store = RecordStore()
    last = store.read().records[-1]
    store.append(replace(last, status="wrong_result", run_s=None))
    again = exla.jit(farthest, memory_limit="64KiB").plan(*SHAPES)
    assert again.source == "search" and changes(again.decisions) != changes(chosen.decisions)


def test_a_report_that_cannot_be_written_costs_nothing_but_the_report(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(tune, "default_directory", lambda: tmp_path / "file" / "below")
    Clock(monkeypatch, wrong=All())
    with pytest.warns(exla.ExlaWarning, match="could not be written"):
        plan, _ = search(trials=2)
    assert plan.compiled_bytes <= 64 << 10


def test_what_compiles_to_code_that_another_process_measured_is_its_twin(monkeypatch):
    clock = Clock(monkeypatch)
    _, found = search(trials=7)
    twin = next(t for t in found.trials if t.source == "twin")
    folder = RecordStore().directory
    plain = as_recorded(twin.decisions)
    for path in folder.glob("*.jsonl"):
        kept = [line for line in path.read_text().splitlines() if json.loads(line)["decisions"] != plain]
        path.write_text("".join(f"{line}\n" for line in kept))
    count = len(clock.asked)
    _, again = search(trials=7)
    assert next(t for t in again.trials if t.decisions == twin.decisions).source == "twin"
    assert len(clock.asked) == count


@pytest.fixture
def interruptible():
    """What is started in the background of a shell ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_that_a_callback_swallowed_still_ends_the_search(monkeypatch):
    Clock(monkeypatch)
    seen = []

    def swallow(trial, best):
        seen.append(trial)
        if len(seen) == 3:
            with contextlib.suppress(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(5)

    found = []
    token = listener.set(Listener(trial=swallow, done=found.append))
    try:
        plan = exla.jit(farthest, memory_limit="64KiB", search="measured", search_trials=20).plan(*SHAPES)
    finally:
        listener.reset(token)
    assert found[0].stop == "interrupted" and len(seen) == 3 and plan.decisions
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_while_the_winner_is_measured_again_keeps_it(monkeypatch):
    clock = Clock(monkeypatch, plain_s=0.1, seconds=lambda chunks: 0.05)
    original = clock.timed

    def timed(program, *, seconds, **kwargs):
        if seconds > tune.TURN_S:
            raise KeyboardInterrupt
        return original(program, **kwargs)

    monkeypatch.setattr(tune, "timed", timed)
    plan, found = search(limit="1GiB", trials=4)
    assert found.stop == "interrupted" and plan.decisions
    assert exla.jit(farthest, memory_limit="1GiB").plan(*SHAPES).decisions == plan.decisions


def search_with_wrong(monkeypatch):
    first = []
    Clock(monkeypatch, seconds=lambda chunks: first.append(chunks) or 1.0)
    _, probe = search(trials=3, records="off")
    best = next(t for t in probe.trials if t.decisions and t.run_s)
    chunk = next(d.chunk for d in best.decisions if isinstance(d, Split))
    Clock(monkeypatch, seconds=lambda chunks: 0.01 if chunks[0] == chunk else 1.0, wrong=(chunk,))
    with pytest.warns(exla.ExlaWarning, match="values differ"):
        return search(trials=8)


def test_nothing_slower_than_the_plain_program_is_kept_where_that_obeys(monkeypatch):
    Clock(monkeypatch, plain_s=0.1, seconds=lambda chunks: 0.2)
    plan, found = search(limit="1GiB", trials=4)
    assert plan.untouched and found.trials[0].run_s == 0.1 and len(found.trials) > 1


def beside(monkeypatch, slow):
    """A search whose candidates take turns with the plain program; the machine is ten times slower beside some."""
    clock = Clock(monkeypatch, plain_s=0.1, seconds=lambda chunks: 0.08)
    original, timed_too = clock.timed, []

    def timed(program, *, reference=None, seconds, **kwargs):
        found = original(program, reference=reference, **kwargs)
        if reference is None or seconds != tune.TURN_S:
            return found
        timed_too.append(clock.now)
        is_slow = slow(len(timed_too))
        return replace(found, reference_s=1.0, run_s=0.8 if is_slow == "both" else 0.08) if is_slow else found

    monkeypatch.setattr(tune, "timed", timed)
    _, found = search(limit="1GiB", trials=6)
    return timed_too, {
        round(t.run_s, 9) for t in found.trials if any(isinstance(d, Split) for d in t.decisions) and t.run_s
    }


def test_what_was_timed_while_the_machine_was_disturbed_is_timed_again(monkeypatch):
    """As if the second candidate were ten times as fast as it is."""
    timed, found = beside(monkeypatch, lambda count: count == 2)
    assert timed.count(timed[1]) == 2 and len(timed) == len(set(timed)) + 1 > 3 and found == {0.08}


def test_a_machine_that_has_become_slower_is_no_disturbance_for_long(monkeypatch):
    timed, found = beside(monkeypatch, lambda count: "both")
    assert len(timed) <= len(set(timed)) + 2 and found == {0.08}


def test_a_winner_that_does_not_win_again_gives_way_to_the_plain_program(monkeypatch):
    clock = Clock(monkeypatch, plain_s=0.1, seconds=lambda chunks: 0.05)
    original, rounds = clock.timed, []

    def timed(program, *, reference=None, seconds, **kwargs):
        rounds.append(seconds)
        if seconds > tune.TURN_S:
            return Timing(status="ok", run_s=0.2, reference_s=0.1, rounds=9)
        return original(program, reference=reference, **kwargs)

    monkeypatch.setattr(tune, "timed", timed)
    plan, _ = search(limit="1GiB", trials=4)
    assert max(rounds) > tune.TURN_S and plan.untouched
    assert exla.jit(farthest, memory_limit="1GiB").plan(*SHAPES).untouched


def test_an_interrupted_search_keeps_the_best_so_far(monkeypatch):
    clock = Clock(monkeypatch)
    original = clock.timed

    def timed(*args, **kwargs):
        if len(clock.asked) == 2:
            raise KeyboardInterrupt
        return original(*args, **kwargs)

    monkeypatch.setattr(tune, "timed", timed)
    plan, found = search()
    assert found.stop == "interrupted" and plan.decisions
    monkeypatch.setattr(tune, "timed", original)
    _, again = search()
    assert max(Counter(clock.asked).values()) == 1 and again.stop == "trials"


def test_crashes_and_hangs_cost_only_their_candidate(monkeypatch):
    statuses = iter(["crash", "timeout", "oom", "compile_error"])
    clock = Clock(monkeypatch)
    original = clock.timed

    def timed(*args, **kwargs):
        status = next(statuses, None)
        return original(*args, **kwargs) if status is None else Timing(status=status, said="gone")

    monkeypatch.setattr(tune, "timed", timed)
    plan, found = search()
    assert {"crash", "timeout", "oom"} <= {t.status for t in found.trials} and plan.decisions
    kept = RecordStore().read().records
    assert {"crash", "timeout", "oom"} <= {r.status for r in kept} and all(
        r.run_s is None for r in kept if r.status != "ok"
    )


def test_seconds_end_a_search_and_an_unmeasurable_target_is_an_error(monkeypatch):
    Clock(monkeypatch)
    plan, found = search(search_seconds=1e-9)
    assert found.stop == "seconds" and len(found.trials) == 1 and found.choice is None
    assert plan.compiled_bytes <= 64 << 10, "what measuring had no time for is predicted"
    elsewhere = SimpleNamespace(target=TARGETS.get("tpu:v5e"), call=SimpleNamespace(devices=1), where="tpu:v5e")
    with pytest.raises(exla.MeasureError, match="one CPU are measured, not for tpu:v5e"):
        tune.tune(elsewhere, None, Budget())


@pytest.mark.parametrize("name", ["random", "evolutionary", "exhaustive"])
def test_every_strategy_that_measures_gives_a_program_that_obeys(monkeypatch, name):
    Clock(monkeypatch)
    plan, found = search(search=name, trials=4)
    assert plan.compiled_bytes <= 64 << 10 and not plan.untouched
    assert any(isinstance(d, CompileOption) for d in plan.decisions) and len(found.trials) == 5


def kernel(x, y):
    return jnp.exp(-jnp.sum((x[:, None] - y[None]) ** 2, axis=-1)) @ y


@pytest.mark.parametrize("fn", all_but([farthest], [farthest, kernel]))
def test_candidates_of_a_program_that_does_not_fit_the_machine_are_tried_at_smaller_sizes(fn):
    f = exla.jit(fn, memory_limit="4MiB")
    shapes = tuple(jax.ShapeDtypeStruct((6000, 3), jnp.float32) for _ in range(2))
    space = f.space(*shapes)
    small = smaller(space, lambda change: f._shrunk(change, shapes, shapes, {}, "cpu"), 1 << 20)
    assert small.divisor >= 4 and space.peak(small.program, fused=False).bytes <= 1 << 20
    found = [(c, small.of(c)) for c in space.ranked(space.rewritten)[:4]]
    assert all(made is not None for _, made in found)
    for candidate, made in found:
        assert [s.axis for s in made.splits] == [s.axis for s in candidate.splits]
        values = np.random.default_rng(0).standard_normal((2, 6000 // small.divisor, 3)).astype(np.float32)
        got = jax.jit(emit(made.program, EXPANSIONS))(*made.program.consts, *values)
        np.testing.assert_allclose(got[0], fn(*values.astype(np.float64)), rtol=1e-4, atol=1e-4)


def test_a_function_of_one_size_has_no_smaller_instance():
    f = exla.jit(lambda x: jnp.sum(jnp.outer(x, x) * np.ones((600, 600), np.float32)), memory_limit="64KiB")
    shapes = (jax.ShapeDtypeStruct((600,), jnp.float32),)
    assert smaller(f.space(*shapes), lambda change: f._shrunk(change, shapes, shapes, {}, "cpu"), 1000) is None


def test_wrong_values_at_a_smaller_size_are_wrong(monkeypatch):
    clock = Clock(monkeypatch)
    monkeypatch.setattr(tune.Tuning, "_runs_plain", lambda self: False)
    original, compared = clock.timed, []

    def timed(program, *, seconds, **kwargs):
        if seconds == 0:
            compared.append(program.structs[-1].shape)
            return Timing(status="wrong_result" if len(compared) == 1 else "ok", error=0.5, run_s=None)
        return original(program, seconds=seconds, **kwargs)

    monkeypatch.setattr(tune, "timed", timed)
    monkeypatch.setattr(tune, "SMALL_BYTES", 100_000)
    with pytest.warns(exla.ExlaWarning, match="values differ"):
        _, found = search(trials=3)
    assert len(compared) >= 2 and all(shape[0] < 400 for shape in compared)
    wrong = [t.source for t in found.trials if t.status == "wrong_result"]
    assert wrong[0] == "measured" and set(wrong[1:]) <= {"twin"} and found.choice is not None


def test_a_search_killed_in_the_middle_goes_on_and_two_at_once_do_no_harm(tmp_path):
    (tmp_path / "far.py").write_text(PROGRAM)
    words = ["tune", "far.py:farthest", "--shapes", "f32[400,3] f32[400,3]", "--memory-limit", "64KiB"]
    command = [sys.executable, "-m", "exla.cli", *words, "--search-trials", "2", "--search", "exhaustive", "--json"]
    root = str(Path(exla.__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": root, "JAX_PLATFORMS": "cpu", "EXLA_STRICT": "1"}

    def start():
        return subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)

    store, killed, other = RecordStore(), start(), start()
    end = time.monotonic() + 120
    while not any(r.run_s for r in store.read().records) and time.monotonic() < end:
        time.sleep(0.1)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    out, _ = other.communicate(timeout=240)
    assert other.returncode == 0
    before = store.read()
    again = start()
    lines = [json.loads(line) for line in again.communicate(timeout=240)[0].splitlines()]
    assert again.returncode == 0 and lines[-2]["winner"]["status"] == "ok"
    after = store.read()
    assert after.records[: len(before.records)] == before.records and not after.bad
    assert {row["source"] for row in lines[1:-2]} <= {"record", "twin"}, "everything was measured before"
    by_candidate = Counter(json.dumps(list(r.decisions)) for r in after.records if "winner" not in r.extra)
    assert max(by_candidate.values()) <= 2, "two processes may measure the same candidate at once, and no third time"
    values = np.random.default_rng(0).standard_normal((2, 400, 3)).astype(np.float32)
    got = exla.jit(farthest, memory_limit="64KiB")(*values)
    np.testing.assert_allclose(got, farthest(*values.astype(np.float64)), rtol=1e-5)
