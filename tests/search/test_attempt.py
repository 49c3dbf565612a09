"""What a search does with candidates that obey and cannot be used all the same."""

import json
import pickle
import threading
from collections import Counter
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import exla
from exla.passes.decisions import Split
from exla.report.plan import explain_text
from exla.search import attempt, driver, patience, records
from exla.search.attempt import Attempt
from exla.search.record import Record
from exla.search.records import RecordStore
from exla.search.strategy import STRATEGIES
from exla.targets.cpu import Cpu

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


@pytest.mark.parametrize(("beyond", "times"), [("temporaries", 1), ("unaccounted", 2)])
def test_what_no_library_is_to_blame_for_is_compiled_under_no_other_options(beyond, times, monkeypatch):
    """Options decide what libraries take beside the buffers, and nothing else."""
    compiled = []
    counted_of, compile_one = Cpu.compiled_bytes, Attempt._compile

    def counted(self, program):
        found = counted_of(self, program)
        return replace(found, **{beyond: getattr(found, beyond) + (1 << 40)})

    def noted(self, program, changes, seeds, options, source):
        compiled.append((tuple(changes), tuple(options)))
        return compile_one(self, program, changes, seeds, options, source)

    monkeypatch.setattr(Cpu, "compiled_bytes", counted)
    monkeypatch.setattr(Attempt, "_compile", noted)
    x = jax.ShapeDtypeStruct((1500, 256), jnp.float32)
    with pytest.raises(exla.MemoryLimitError):
        exla.jit(lambda x: jnp.maximum(x @ x.T, 0).sum(1), memory_limit="6MiB", records="off").plan(x)
    split = [changes for changes, _ in compiled if any(isinstance(d, Split) for d in changes)]
    assert split and set(Counter(split).values()) == {times}


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


def test_an_improvement_that_does_not_obey_is_no_end_of_what_is_improved(monkeypatch):
    """Chunks of 500 rows are over the limit and those of 100 obey, after those of 10 did."""

    def layers(x, y):
        return jnp.tanh(x @ y.T) @ y

    def proposed(space, generator):
        (rows,) = next(c.splits for c in space.below(space.root) if len(c.splits) == 1 and c.splits[0].axis == 0)
        for seconds, chunk in ((3.0, 10), (2.0, 500), (1.0, 100)):
            yield replace(space.build([replace(rows, chunk=chunk)]), seconds=seconds)

    monkeypatch.setitem(STRATEGIES._entries, "analytic", replace(STRATEGIES.get("analytic"), propose=proposed))
    x, y = (np.random.default_rng(0).normal(size=(n, 8)).astype(np.float32) / 4 for n in (1000, 2000))
    f = exla.jit(layers, memory_limit=x.nbytes * 2 + y.nbytes + 2_000_000, records="off")
    plan = f.plan(x, y)
    assert [d.chunk for d in plan.decisions if isinstance(d, Split)] == [100]
    assert {t.decisions[0].chunk: t.peak_bytes <= plan.limit_bytes for t in plan.tried if t.decisions} == {
        10: True,
        500: False,
        100: True,
    }
    expected = np.tanh(x.astype(np.float64) @ y.T.astype(np.float64)) @ y
    np.testing.assert_allclose(f(x, y), expected, rtol=1e-5, atol=1e-4)


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """Ships records as if other code of exla had made them, changed by a function, and empties the user's own."""

    def ship(change):
        own = RecordStore()
        made = [change(replace(r, key={**r.key, "exla": "0" * 16})) for r in own.read().records]
        monkeypatch.setattr(records, "PACKAGED", tmp_path / "packaged")
        records.PACKAGED.mkdir()
        (records.PACKAGED / "cpu.jsonl").write_text("".join(r.to_line() + "\n" for r in made))
        for path in own.files():
            path.unlink()
        return made

    return ship


def chunked(x):
    return jnp.sum(jnp.exp(x @ x.T), axis=1)


POINTS = jax.ShapeDtypeStruct((1500, 8), jnp.float32)


def other_chunk(record):
    """The record with chunks of 77, which no search chooses."""
    decisions = json.loads(json.dumps(record.decisions))
    for decision in decisions:
        decision.update({"chunk": 77} if decision["kind"] == "Split" else {})
    return replace(record, decisions=decisions)


def test_what_comes_with_exla_from_other_code_is_replayed_once_and_then_the_users_own(shipped):
    assert exla.jit(chunked, memory_limit="2MiB").plan(POINTS).source == "search"
    shipped(other_chunk)
    first, second = (exla.jit(chunked, memory_limit="2MiB").plan(POINTS) for _ in range(2))
    assert (first.source, second.source) == ("shipped", "record")
    assert [d.chunk for d in first.decisions if isinstance(d, Split)] == [77]
    assert first.decisions == second.decisions and len(first.tried) == 1
    assert "jax.jit    not compiled: this was found by a search before exla's release, and comes with it" in str(first)
    (own,) = RecordStore().read().records
    assert own.compiled_bytes == first.compiled_bytes and own.key["exla"] != "0" * 16
    assert exla.jit(chunked, memory_limit="2MiB", records="off").plan(POINTS).source == "search"


@pytest.mark.parametrize("differs", ["jax", "device", "limit", "program"])
def test_what_comes_with_exla_for_something_else_is_not_replayed(shipped, differs):
    exla.jit(chunked, memory_limit="2MiB").plan(POINTS)
    shipped(lambda r: replace(r, key={**r.key, differs: "1" * 16}))
    assert exla.jit(chunked, memory_limit="2MiB").plan(POINTS).source == "search"


def test_what_the_users_own_search_found_counts_more_than_what_comes_with_exla(shipped):
    plan = exla.jit(chunked, memory_limit="2MiB").plan(POINTS)
    own = RecordStore().read().records
    shipped(other_chunk)
    RecordStore().add(own)
    again = exla.jit(chunked, memory_limit="2MiB").plan(POINTS)
    assert again.source == "record" and again.decisions == plan.decisions


def test_of_what_comes_with_exla_only_decisions_are_believed(shipped, monkeypatch):
    """What other code counted, measured or found to be wrong says nothing of what this code makes of it."""
    exla.jit(chunked, memory_limit="2MiB").plan(POINTS)
    shipped(lambda r: replace(r, measured_bytes=1, compiled_bytes=1))
    asked, took = [], 1_500_000
    monkeypatch.setattr(attempt, "measured_bytes", lambda *a, **k: asked.append(a) or took)
    plan = exla.jit(chunked, memory_limit="2MiB", verify="run").plan(POINTS)
    assert plan.source == "shipped" and len(asked) == 1 and plan.measured_bytes == took and plan.compiled_bytes > 1


def test_what_comes_with_exla_and_is_over_the_limit_or_does_not_apply_costs_a_search(shipped):
    exla.jit(chunked, memory_limit="2MiB").plan(POINTS)

    def changed(record: Record) -> Record:
        decisions = json.loads(json.dumps(record.decisions))
        for decision in decisions:
            decision.update({"chunk": 1499} if decision["kind"] == "Split" else {})
        return replace(record, decisions=decisions)

    shipped(changed)
    plan = exla.jit(chunked, memory_limit="2MiB").plan(POINTS)
    assert plan.source == "search" and plan.compiled_bytes <= 2 << 20


@pytest.fixture
def finds_nothing(monkeypatch):
    """From when it is called, the search asks for no candidate."""

    def nothing(space, generator):
        yield from ()

    return lambda: monkeypatch.setitem(
        STRATEGIES._entries, "analytic", replace(STRATEGIES.get("analytic"), propose=nothing)
    )


def test_what_was_counted_under_another_limit_is_used_where_a_search_finds_nothing(finds_nothing):
    tight = exla.jit(chunked, memory_limit="2MiB").plan(POINTS)
    finds_nothing()
    with pytest.raises(exla.MemoryLimitError, match="and some room: what is found depends on it"):
        exla.jit(chunked, memory_limit="3MiB", records="off").plan(POINTS)
    found, again = (exla.jit(chunked, memory_limit=tight.compiled_bytes).plan(POINTS) for _ in range(2))
    assert (found.source, again.source) == ("search", "record")
    assert found.decisions == again.decisions == tight.decisions and found.limit_bytes == tight.compiled_bytes
    with pytest.raises(exla.MemoryLimitError) as refused:
        exla.jit(chunked, memory_limit=tight.compiled_bytes - 1).plan(POINTS)
    assert refused.value.smallest_peak_bytes == tight.compiled_bytes
    for error in (refused.value, pickle.loads(pickle.dumps(refused.value))):
        assert error.is_kept and f"{tight.compiled_bytes} bytes are enough: the records keep" in str(error)
    with pytest.raises(exla.MemoryLimitError, match="Arguments and results alone take") as too_small:
        exla.jit(chunked, memory_limit=5000).plan(POINTS)
    assert too_small.value.smallest_peak_bytes < tight.compiled_bytes


@pytest.mark.parametrize(
    "change",
    [
        lambda r: replace(r, status="wrong_result"),
        lambda r: replace(r, measured_bytes=4 << 20),
        lambda r: replace(r, strategy="heuristic"),
        lambda r: replace(r, key={**r.key, "program": "1" * 16}),
        lambda r: replace(r, decisions=[{"kind": "Split"}]),
        lambda r: replace(other_chunk(r), decisions=[{**d, "axis": 7} for d in r.decisions if d["kind"] == "Split"]),
    ],
    ids=["wrong", "measured above", "of another strategy", "of another program", "hostile", "does not apply"],
)
def test_what_must_not_be_used_of_other_limits_is_not(finds_nothing, change):
    exla.jit(chunked, memory_limit="2MiB").plan(POINTS)
    known = [change(r) for r in RecordStore().read().records]
    for path in RecordStore().files():
        path.unlink()
    RecordStore().add(known)
    finds_nothing()
    with pytest.raises(exla.MemoryLimitError):
        exla.jit(chunked, memory_limit="3MiB").plan(POINTS)


def test_a_search_that_takes_long_says_so_and_what_it_has_found(monkeypatch):
    said, told, ask = list[str](), threading.Event(), driver._ask
    monkeypatch.setattr(patience, "FIRST_S", 0.001)
    monkeypatch.setattr(patience.LOGGER, "warning", lambda text, *values: said.append(text % values) or told.set())

    def slow(attempt, *arguments):
        told.clear()
        found = ask(attempt, *arguments)
        assert told.wait(60)
        return found

    monkeypatch.setattr(driver, "_ask", slow)
    plan = exla.jit(chunked, memory_limit="2MiB").plan(POINTS)
    count = len(said)
    assert "exla has searched for 0 s: test_attempt.py:" in said[0] and "within 2.0 MiB" in said[0]
    assert any("compiled so far, the smallest takes" in text and "replayed the next time" in text for text in said)
    again = exla.jit(chunked, memory_limit="2MiB").plan(POINTS)
    assert again.source == "record" and again.decisions == plan.decisions and len(said) == count
    exla.jit(chunked, memory_limit="2MiB", records="off").plan(POINTS)
    assert "recorded" not in said[-1] and len(said) > count
