"""Programs that obey as they are, and what is used instead of them because it is faster."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import exla
from exla.passes.decisions import CompileOption, Reorder
from exla.report.plan import explain_text
from exla.search import driver, faster, weigh
from exla.search.barred import Wrong
from exla.targets import cpu
from exla.targets.base import find_target
from exla.targets.cycles import estimated_cycles
from tests.targets.installed import compiler_of

pytestmark = pytest.mark.usefixtures("compiled_quickly")


def attention(q, k, v):
    weights = jax.nn.softmax(jnp.einsum("qhd,khd->hqk", q, k) / jnp.sqrt(q.shape[-1]), axis=-1)
    return jnp.einsum("hqk,khd->qhd", weights, v)


def bags(table, rows, weights):
    """Weighted bags of rows of a table; as it is, the rows are stored."""
    return jnp.sum(table[rows] * weights[:, :, None], axis=1)


DTYPES = (np.float32, np.int32, np.float32)
WANTED = [jax.ShapeDtypeStruct(s, t) for s, t in zip(((1000, 64), (4000, 50), (4000, 50)), DTYPES, strict=True)]


@pytest.fixture
def two_cores(monkeypatch):
    monkeypatch.setattr(cpu, "_threads", lambda: 2)


@pytest.mark.usefixtures("two_cores")
def test_what_is_predicted_to_be_much_faster_is_used_although_the_program_obeys_as_it_is():
    drawn = np.random.default_rng(0)
    table, weights = (drawn.standard_normal(WANTED[k].shape, dtype=np.float32) for k in (0, 2))
    rows = drawn.integers(0, len(table), WANTED[1].shape, dtype=np.int32)
    plan = exla.jit(bags, memory_limit="8GiB").plan(table, rows, weights)
    plain = exla.jit(bags, memory_limit="8GiB", search="off", records="off").plan(table, rows, weights)
    assert plain.untouched and plain.compiled_bytes <= plain.limit_bytes
    assert not plan.untouched and plan.tried[0].untouched
    assert plan.compiled_bytes < plain.compiled_bytes / 2
    assert "which obeys too: predicted to take 0." in explain_text(plan)
    again = exla.jit(bags, memory_limit="8GiB")
    expected = np.sum(table.astype(np.float64)[rows] * weights.astype(np.float64)[:, :, None], axis=1)
    np.testing.assert_allclose(again(table, rows, weights), expected, rtol=1e-4, atol=1e-5)
    replayed = again.plan(table, rows, weights)
    assert (replayed.source, replayed.decisions, replayed.instead) == ("record", plan.decisions, plan.instead)


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize("kept_bytes", [cpu.KEPT_BYTES, 1 << 40])
def test_what_the_system_hands_out_anew_for_every_run_counts(kept_bytes, monkeypatch):
    """Forces between all pairs: 139 MB of temporaries, which the plain program touches first each time it runs."""
    monkeypatch.setattr(cpu, "KEPT_BYTES", kept_bytes)
    monkeypatch.setattr(cpu, "has_huge_pages", lambda: False)

    def forces(x, m):
        away = x[None] - x[:, None]
        squared = jnp.sum(away * away, -1) + 0.01
        return jnp.sum((m / (squared * jnp.sqrt(squared)))[..., None] * away, 1), jnp.sum(m / squared, 1)

    x, m = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((2000, 3), (2000,)))
    plan = exla.jit(forces, memory_limit="8GiB").plan(x, m)
    plain = plan.tried[0]
    assert plain.untouched and plain.peak_bytes > 100e6
    assert plan.untouched == (kept_bytes > plain.peak_bytes)
    assert plan.untouched or plan.compiled_bytes < 32 << 20


@pytest.mark.parametrize(
    ("options", "untouched"),
    [
        ({}, False),
        ({"search": "off"}, True),
        ({"search": "heuristic"}, True),
        ({"numerics": "exact"}, True),
        ({"memory_limit": None}, True),
    ],
)
def test_who_asks_for_no_more_than_a_limit_gets_the_program_as_it_is(options, untouched, monkeypatch):
    monkeypatch.setattr(cpu, "_threads", lambda: 1)
    monkeypatch.setattr(cpu, "SURE_GAIN", 1.01)
    plan = exla.jit(bags, **{"memory_limit": "16GiB", "records": "off", **options}).plan(*WANTED)
    assert plan.untouched is untouched and bool(plan.instead) is not untouched


@pytest.mark.parametrize("target", ["cpu", "gpu:h200"])
def test_where_no_prediction_was_held_against_a_clock_the_program_stays_as_it_is(target, monkeypatch):
    monkeypatch.setattr(cpu, "_threads", lambda: 64)
    if target != "cpu":
        compiler_of(target)
        assert find_target(target).machine().sure_gain == float("inf")
    assert exla.jit(bags, memory_limit="8GiB", records="off", target=target).plan(*WANTED).untouched


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize(("share", "untouched"), [(0.5, False), (0.99, True), (1.5, True), (None, True)])
def test_where_a_run_is_allowed_the_clock_decides(share, untouched, monkeypatch):
    asked = []

    def timed(attempt, choices):
        asked.append([bool(c.decisions) for c in choices])
        return None if share is None else [1.0, share]

    monkeypatch.setattr(weigh, "_timed", timed)
    monkeypatch.setattr(faster, "LEAST_S", 1e-4)
    monkeypatch.setattr(cpu, "KEPT_BYTES", 0)  # as if the little that this takes were handed out anew
    q, k, v = (jnp.ones((300, 2, 8)) for _ in range(3))
    planned = exla.jit(attention, memory_limit="1GiB", verify="run")
    plan = planned.plan(q, k, v)
    assert asked == [[False, True]]
    assert plan.untouched is untouched and len(plan.tried) >= 2
    assert ("0.50 against 1.00" in plan.instead) is not untouched
    assert exla.jit(attention, memory_limit="1GiB", verify="run").plan(q, k, v).untouched is untouched


@pytest.mark.usefixtures("two_cores")
def test_what_is_not_surely_faster_is_named_and_timed_once_a_run_is_allowed(monkeypatch):
    """A search without a run leaves the program as it is, and its record is no answer to one with a run."""
    monkeypatch.setattr(cpu, "SURE_GAIN", 1e6)
    drawn = np.random.default_rng(0)
    table, weights = (drawn.standard_normal(WANTED[k].shape, dtype=np.float32) for k in (0, 2))
    values = table, drawn.integers(0, len(table), WANTED[1].shape, dtype=np.int32), weights
    plan = exla.jit(bags, memory_limit="8GiB").plan(*values)
    assert plan.untouched and plan.hint.startswith("another is predicted to take 0.") and not plan.instead
    assert f"faster?    {plan.hint}" in explain_text(plan)
    with monkeypatch.context() as patch:
        patch.setattr(driver, "faster", None)  # the next process looks for nothing
        replayed = exla.jit(bags, memory_limit="8GiB").plan(*values)
    assert replayed.untouched and replayed.hint == plan.hint
    monkeypatch.setattr(weigh, "_timed", lambda attempt, choices: [1.0, 0.5])
    timed = exla.jit(bags, memory_limit="8GiB", verify="run").plan(*values)
    assert timed.source == "search" and not timed.untouched and not timed.hint
    for verify in ("run", "compile"):
        again = exla.jit(bags, memory_limit="8GiB", verify=verify).plan(*values)
        assert (again.source, again.decisions, again.instead) == ("record", timed.decisions, timed.instead)
    assert not exla.jit(lambda x: x + 1, memory_limit="8GiB").plan(table).hint


def thresholds(x, radii):
    """How many are near, for each of several radii: a loop of the user's reads what is large."""
    distances = jnp.sqrt(jnp.sum((x[:, None] - x[None]) ** 2, -1))
    return lax.map(lambda radius: jnp.mean(distances < radius), radii)


def until_small(x, radii):
    """A loop of unknown length is around what is large, and in every chunk of it."""

    def halved(row):
        return lax.while_loop(lambda v: jnp.max(v) > 1e-3, lambda v: v * 0.5, jnp.sum((row - x) ** 2, -1))

    return jnp.sum(jax.vmap(halved)(x), 0) * jnp.sum(radii)


def filtered(x, coefficients):
    """Many turns that compute next to nothing in a chunk: what a turn costs beside that is most of it."""

    def step(state, row):
        state = coefficients[0] * row + coefficients[1] * state
        return state, state

    return jnp.sum(lax.scan(step, jnp.zeros(x.shape[0]), x.T)[1] ** 2, axis=0)


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize(
    ("function", "shape", "untouched"),
    [(thresholds, (2000, 3), False), (until_small, (2000, 3), True), (filtered, (2000, 5000), True)],
    ids=["thresholds", "until_small", "filtered"],
)
def test_turns_that_are_counted_are_predicted(function, shape, untouched, monkeypatch):
    monkeypatch.setattr(cpu, "KEPT_BYTES", 0)
    x, radii = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (shape, (8,)))
    plan = exla.jit(function, memory_limit="8GiB", records="off").plan(x, radii)
    assert plan.untouched is untouched
    monkeypatch.setattr(faster, "LEAST_TURN_S", 0)
    again = exla.jit(function, memory_limit="8GiB", records="off").plan(x, radii)
    assert again.untouched is (function is until_small)
    monkeypatch.setattr(faster, "PRICED", faster.PRICED - {"scan"})
    assert exla.jit(function, memory_limit="8GiB", records="off").plan(x, radii).untouched


@pytest.mark.usefixtures("two_cores")
def test_where_a_library_reduces_what_is_never_stored_the_prediction_is_not_believed(monkeypatch):
    """The variance of rows takes half as long again in chunks, and was predicted to take a quarter of the time."""
    x = jax.ShapeDtypeStruct((20_000, 4000), jnp.float32)
    plan = exla.jit(lambda x: x.var(-1), memory_limit="16GiB", records="off").plan(x)
    assert plan.untouched and plan.plain.temporaries < plan.projected_bytes / 4
    monkeypatch.setattr(faster, "surely_s", lambda temporaries, space: space.root.seconds)
    assert not exla.jit(lambda x: x.var(-1), memory_limit="16GiB", records="off").plan(x).untouched


@pytest.mark.usefixtures("two_cores")
def test_what_was_found_wrong_is_not_used(monkeypatch):
    used = exla.jit(bags, memory_limit="8GiB", records="off").plan(*WANTED)
    assert not used.untouched
    monkeypatch.setattr(Wrong, "has", lambda self, decisions: bool(decisions))
    assert exla.jit(bags, memory_limit="8GiB", records="off").plan(*WANTED).untouched


@pytest.mark.usefixtures("two_cores")
def test_a_rewrite_that_is_used_for_its_speed_names_the_line_that_it_is_of():
    def smooth(x, y):
        return jnp.exp(-jnp.sum((x[:, None] - y[None]) ** 2, axis=-1)).sum(1)

    points = [jax.ShapeDtypeStruct((1500, 32), jnp.float32)] * 2
    plan = exla.jit(smooth, memory_limit="16GiB", records="off").plan(*points)
    assert plan.instead and "squared_distance" in plan.words[0] and "test_faster.py" in plan.words[0]


@pytest.mark.usefixtures("two_cores")
def test_products_keep_their_order_in_a_program_that_obeys():
    """The other order may overflow where the program's own does not, and nothing asks for it."""

    def chain(a, b, v):
        return (a @ b) @ v

    a, v = jax.ShapeDtypeStruct((3000, 3000), jnp.float32), jax.ShapeDtypeStruct((3000,), jnp.float32)
    planned = exla.jit(chain, memory_limit="8GiB", records="off")
    assert planned.plan(a, a, v).untouched
    tight = exla.jit(chain, memory_limit=2 * 3000 * 3000 * 4 + (1 << 20), records="off").plan(a, a, v)
    assert any(isinstance(d, Reorder) for d in tight.decisions)


@pytest.mark.usefixtures("two_cores")
def test_calls_of_libraries_are_not_moved_into_loops_for_their_speed():
    """What they cost beside their arithmetic is not predicted."""

    def solved(a, b):
        return jnp.sum(jnp.abs(jax.lax.linalg.triangular_solve(a, b[:, :, None] * b[:, None, :], lower=True)), 0)

    def doubled(a, b):
        return jnp.sum(jnp.abs(jnp.tanh(a) * (b[:, :, None] * b[:, None, :])), 0)

    a, b = jax.ShapeDtypeStruct((20_000, 24, 24), jnp.float32), jax.ShapeDtypeStruct((20_000, 24), jnp.float32)
    found = {}
    for fn in (solved, doubled):
        found[fn] = faster.fastest(exla.jit(fn, memory_limit="8GiB").space(a, b), float("inf"))
    assert found[solved] is None and found[doubled].splits


def test_for_a_tpu_its_compiler_s_estimate_decides():
    compiler_of("tpu:v5e")
    wanted = [jax.ShapeDtypeStruct((6000, 8, 64), jnp.float32)] * 3
    plans = [
        exla.jit(attention, memory_limit="12GiB", target="tpu:v5e", records="off", search=search).plan(*wanted)
        for search in ("off", "analytic")
    ]
    assert plans[0].untouched
    cycles = [estimated_cycles(plan.compiled.as_text()) for plan in plans]
    assert not plans[1].untouched and "cycles estimated" in plans[1].instead
    assert cycles[1].is_whole and cycles[1].total < cycles[0].total


def test_the_plain_program_is_timed_as_it_is_and_others_with_long_sums_in_blocks():
    x = jnp.ones((64, 5000))
    traced = exla.jit(lambda x: jnp.sum(x, axis=-1), memory_limit="1GiB", records="off").lower(x)._planned
    attempt = driver._unrecorded(traced.traced, traced.target, traced.options)
    option = CompileOption(name=cpu.YNN_OPTION, value="")
    written = [
        [e.primitive.name for e in jax.make_jaxpr(attempt.runnable(traced.traced.program, decisions).fn)(x).eqns]
        for decisions in ((), (option,))
    ]
    assert written[0] == ["reduce_sum"] and len(written[1]) > 1
