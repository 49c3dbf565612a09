"""The promise itself, in fresh processes: the process stays within the cap, and what fits is left alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import exla
from benchmarks import isolate
from benchmarks.fitting import FITTING
from benchmarks.untouched import OPTIONS, examine
from exla.passes.decisions import Split
from tests.sweep import all_but

CAPS_MIB = {"kernel-d3": 64, "knn": 64, "sinkhorn": 256}


@pytest.mark.parametrize("program", all_but(["knn", "sinkhorn"], CAPS_MIB))
def test_a_process_that_runs_a_capped_program_grows_no_further(program):
    """The plain programs take 0.5 to 1.5 GB; growth of the high-water mark, values against float64 NumPy."""
    cap_mib = CAPS_MIB[program]
    row = isolate.call("benchmarks.caps:measure_cap", program=program, cap_mib=cap_mib, search="analytic")
    assert row["status"] == "ok", row
    assert row["growth_bytes"] <= cap_mib * isolate.MIB


CASES = [(program, options) for program in FITTING for options in OPTIONS]
ALIKE = {case for case in CASES if case[1] != "default" and case[0] not in ("attention", "rnn")}


@pytest.mark.parametrize("case", all_but(ALIKE, CASES), ids="-".join)
def test_what_fits_is_compiled_to_the_same_code_and_gives_the_same_bits(case, request):
    program, options = case
    if program != "attention":
        request.getfixturevalue("compiled_quickly")
    row = examine(program, options, rounds=0)
    assert row["same_hlo"], row["difference"]
    assert row["bit_equal"] and not row["decisions"]


@pytest.mark.usefixtures("compiled_quickly")
def test_an_argument_that_is_not_used_counts_for_as_little_as_in_jax():
    def fn(x, parameters):
        return jnp.exp(-jnp.abs(x[:, None] - x)).sum(1) * parameters["scale"]

    x, parameters = np.arange(600, dtype=np.float32), {"scale": np.float32(2), "other": np.ones((900, 900), np.float32)}
    f = exla.jit(fn, memory_limit=200_000)
    plan = f.plan(x, parameters)
    assert plan.decisions and plan.compiled_bytes <= 200_000
    np.testing.assert_allclose(f(x, parameters), jax.jit(fn)(x, parameters), rtol=1e-6)
    assert exla.jit(fn, memory_limit=400_000, verify="run").plan(x, parameters).measured_bytes < 400_000
    with pytest.raises(exla.MemoryLimitError, match="3.1 MiB"):  # where it is used
        exla.jit(lambda x, p: fn(x, p) + p["other"][0, 0], memory_limit=200_000).plan(x, parameters)


@pytest.mark.usefixtures("compiled_quickly")
def test_a_second_factor_is_cut_where_one_is_not_enough():
    def farthest_of_nearest(x, y):
        return jnp.max(jnp.min(jnp.sum(jnp.abs(x[:, None] - y[None]), axis=-1), axis=1))

    x, y = (np.random.default_rng(seed).standard_normal((6000, 2), dtype=np.float32) for seed in (0, 1))
    cap = x.nbytes + y.nbytes + 16_000  # one row of distances is 24,000 bytes, and so is one minimum for each row
    f = exla.jit(farthest_of_nearest, memory_limit=cap)
    plan = f.plan(x, y)
    splits = [d for d in plan.decisions if isinstance(d, Split)]
    assert len(splits) == 2 and splits[1].path, plan
    assert plan.compiled_bytes <= cap
    x64, y64 = x.astype(np.float64), y.astype(np.float64)
    want = max(np.abs(row - y64).sum(1).min() for row in x64)
    np.testing.assert_allclose(f(x, y), want, rtol=1e-5)


@pytest.mark.usefixtures("compiled_quickly")
def test_a_value_that_is_wanted_along_both_axes_is_computed_twice_and_never_whole():
    def both(x, y):
        k = jnp.sin(x[:, None] * y[None])
        return jnp.sort(k, axis=1)[:, :3] * 2, jnp.cumsum(k, axis=0)[-1]

    x, y = (np.random.default_rng(1).standard_normal(n).astype(np.float32) for n in (1000, 1500))
    fixed = x.nbytes + y.nbytes + 1000 * 3 * 4 + 1500 * 4
    f = exla.jit(both, memory_limit=fixed + 200_000)
    plan = f.plan(x, y)
    assert plan.compiled_bytes <= fixed + 200_000
    assert any(d.growth.again for d in plan.decisions if isinstance(d, Split)) and "computed again" in str(plan)
    k = np.sin(x.astype(np.float64)[:, None] * y.astype(np.float64)[None])
    first, last = f(x, y)
    np.testing.assert_allclose(first, np.sort(k, axis=1)[:, :3] * 2, atol=1e-5)
    np.testing.assert_allclose(last, k.sum(0), atol=1e-3)


@pytest.mark.usefixtures("compiled_quickly")
def test_several_values_of_one_size_are_each_cut_to_what_obeys():
    """Cutting one of them leaves the peak where it is: the others hold it."""
    shape = (300, 401)
    drawn = (
        lambda key: jnp.sum(jax.random.exponential(key, shape), axis=1),
        lambda key: jnp.max(jnp.abs(jax.random.laplace(key, shape)), axis=1),
        lambda key: jnp.sum(jax.random.cauchy(key, shape) > 1, axis=1),
        lambda key: jnp.sum(jax.random.randint(key, shape, 0, 9), axis=1),
    )

    def draws(key):
        return [of(key) for of in drawn]

    key = jax.random.key(0)
    taken = jax.jit(draws).lower(key).compile().memory_analysis().temp_size_in_bytes
    f = exla.jit(draws, memory_limit=taken // 4, records="off")
    assert len({d.site.position for d in f.plan(key).decisions if isinstance(d, Split)}) >= len(drawn)
    for got, want in zip(f(key), jax.jit(draws)(key), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_the_default_limit_is_what_the_machine_has():
    plan = exla.jit(lambda x: x + 1).plan(jnp.ones(3))
    assert plan.untouched and plan.limit_bytes > 100 * isolate.MIB


def test_a_refusal_gives_the_numbers_the_lines_and_the_next_step():
    def inverse(x):
        k = jnp.exp(-((x[:, None] - x[None]) ** 2)) + jnp.eye(len(x))
        return jnp.linalg.inv(k)

    with pytest.raises(exla.MemoryLimitError) as caught:
        exla.jit(inverse, memory_limit="1MiB")(np.linspace(0, 1, 600, dtype=np.float32))
    error, text = caught.value, str(caught.value)
    assert error.limit_bytes == 2**20 < error.smallest_peak_bytes
    assert 1 <= len(error.holders) <= 3
    for holder in error.holders:
        assert holder.name in text and holder.blocked in text and holder.bytes > 0
    assert "test_obeys.py" in text and "memory_limit" in text


@pytest.mark.usefixtures("compiled_quickly")
def test_a_refusal_never_blames_exlas_own_loops():
    def triangles(x):
        near = jax.nn.sigmoid(x @ x.T)
        return jnp.sum((near @ near) * near)

    with pytest.raises(exla.MemoryLimitError) as caught:
        exla.jit(triangles, memory_limit="100KiB")(np.ones((300, 8), np.float32))
    assert "exla_split" not in str(caught.value) and "unknown line" not in str(caught.value)


@pytest.mark.usefixtures("compiled_quickly")
def test_a_looser_limit_than_one_that_is_met_is_met():
    """The gradient of a Hausdorff distance: small minima that stay whole tie its loops to the whole matrix."""

    def distance(x, y):
        between = jnp.sqrt(jnp.sum((x[:, None] - y[None]) ** 2, axis=-1))
        return jnp.maximum(between.min(axis=1).max(), between.min(axis=0).max())

    n = 300
    points = [np.random.default_rng(k).standard_normal((n, 3), dtype=np.float32) for k in range(2)]
    gradient = jax.grad(distance, argnums=(0, 1))
    for limit in (int(share * 8 * n * n) for share in (1.1, 1.3, 1.5)):
        f = exla.jit(gradient, memory_limit=limit, records="off")
        assert f.plan(*points).compiled_bytes <= limit
        for got, want in zip(f(*points), gradient(*points), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_a_limit_below_arguments_and_results_says_what_they_take():
    x = np.zeros((1000, 250), np.float32)
    with pytest.raises(exla.MemoryLimitError, match=r"alone take 1\.9 MiB \(2000000 bytes\)") as caught:
        exla.jit(lambda x: jnp.sin(x) * 2, memory_limit="1MiB", records="off")(x)
    assert caught.value.fixed_bytes == caught.value.smallest_peak_bytes == 2 * x.nbytes
    assert "smallest peak" not in str(caught.value)


def test_a_refusal_says_how_much_is_a_bound_on_what_libraries_take():
    """A sort of one long row: 16 bytes for each of its numbers, beside two values and the argument."""
    x = np.zeros(300_000, np.float32)
    with pytest.raises(exla.MemoryLimitError, match="not split further: `sort`") as caught:
        exla.jit(lambda x: jnp.sort(jnp.sin(x))[7], memory_limit="2MiB", records="off")(x)
    (named,) = [line for line in str(caught.value).splitlines() if "libraries may take" in line]
    assert named.startswith("4.6 MiB of it")


@pytest.mark.parametrize("rows", [200, 1])
def test_a_refusal_says_whether_anything_takes_less_than_the_program_as_it_is(rows):
    """A transform cannot be cut; the sums that it transforms can, if they are sums."""
    x = np.linspace(0, 1, 200, dtype=np.float32)

    def fn(x):
        return jnp.fft.fft(jnp.exp(x[:, None] * np.linspace(0, 1, rows, dtype=np.float32)).sum(axis=1)).real.max()

    with pytest.raises(exla.MemoryLimitError) as caught:
        exla.jit(fn, memory_limit="2KiB", records="off")(x)
    assert ("what is counted for the program as it is: nothing" in str(caught.value)) == (rows == 1)


@pytest.mark.usefixtures("compiled_quickly")
def test_a_refusal_names_the_line_that_needs_what_a_loop_has_written():
    def fn(rows):
        counts = jnp.zeros((400, 256)).at[jnp.arange(400)[:, None], rows[:, :17] + 4 * rows[:, 3:]].add(1)
        alike = counts @ counts.T
        return jnp.linalg.norm(alike - alike.mean(0)), jax.lax.top_k(alike, 5)[0]  # this line

    with pytest.raises(exla.MemoryLimitError) as caught:
        exla.jit(fn, memory_limit="300KiB", records="off")(np.random.default_rng(0).integers(0, 4, (400, 20)))
    line = fn.__code__.co_firstlineno + 3
    assert f"for what is computed at {__file__}:{line} (" in str(caught.value)


@pytest.mark.usefixtures("compiled_quickly")
def test_what_prints_is_split_and_prints_as_before(capfd):
    def fn(x, y):
        jax.debug.print("points: {}", x.shape[0])
        near = jnp.exp(-jnp.sum((x[:, None] - y[None]) ** 2, axis=-1))
        return near @ y

    x, y = (np.random.default_rng(k).standard_normal((n, 3), dtype=np.float32) for k, n in ((0, 700), (1, 900)))
    f = exla.jit(fn, memory_limit="300KiB", records="off")
    assert any(isinstance(d, Split) for d in f.plan(x, y).decisions)
    np.testing.assert_allclose(f(x, y), fn(x, y), rtol=1e-4, atol=1e-4)
    jax.effects_barrier()
    assert capfd.readouterr().out.count("points: 700") == 2


def test_what_a_donated_argument_shares_with_a_result_counts_once():
    x = np.zeros((1000, 250), np.float32)
    f = exla.jit(lambda x: jnp.tanh(x) * 2, donate_argnums=0, memory_limit=x.nbytes, records="off")
    assert f.plan(x).untouched and f.plan(x).compiled_bytes == x.nbytes
    with pytest.raises(exla.MemoryLimitError) as caught:
        exla.jit(lambda x: jnp.tanh(x) * 2, donate_argnums=0, memory_limit=x.nbytes - 1, records="off")(x)
    assert caught.value.fixed_bytes == x.nbytes


@pytest.mark.usefixtures("compiled_quickly")
def test_a_refusal_for_what_a_scan_keeps_says_what_may_help():
    def largest(rows, y, wrap):
        def step(best, some):
            return jnp.maximum(best - jnp.max(best), jnp.max(some @ y.T, axis=0)), None

        best, _ = jax.lax.scan(wrap(step), jnp.full(len(y), -1e3, y.dtype), rows)
        return jnp.sum(best**2)

    rows, y = (
        np.random.default_rng(k).standard_normal(s, dtype=np.float32) for k, s in ((0, (4, 64, 12)), (1, (512, 12)))
    )
    plain, saving = (jax.grad(lambda r, wrap=wrap: largest(r, y, wrap)) for wrap in (lambda step: step, jax.checkpoint))
    enough = exla.jit(plain, memory_limit=300_000, records="off")
    np.testing.assert_allclose(enough(rows), plain(rows), rtol=1e-4, atol=1e-4)
    limit = 100_000
    with pytest.raises(exla.MemoryLimitError, match=r"jax\.checkpoint around the body of the scan at .*test_obeys\.py"):
        exla.jit(plain, memory_limit=limit, records="off")(rows)
    f = exla.jit(saving, memory_limit=limit, records="off")
    np.testing.assert_allclose(f(rows), plain(rows), rtol=1e-4, atol=1e-4)

    def ordered(rows):
        made = jax.lax.scan(lambda c, a: (a / jnp.max(c + a),) * 2, rows[0], rows)[1]
        return jnp.sort(made.reshape(-1)) - made[::-1].reshape(-1)

    with pytest.raises(exla.MemoryLimitError, match="from `scan`") as caught:
        exla.jit(ordered, memory_limit=60_000, records="off")(rows)
    assert "jax.checkpoint" not in str(caught.value)  # there is no gradient


def test_a_refusal_tells_values_of_one_kind_once():
    def orders(x):
        pairs = [jnp.sort((x + k)[:, None] * x[None], axis=None) for k in range(4)]
        return sum(p[::-1] * p for p in pairs)[:8]

    with pytest.raises(exla.MemoryLimitError) as caught:
        exla.jit(orders, memory_limit="1MB", records="off")(np.ones(400, np.float32))
    lines = str(caught.value).splitlines()
    told = [line for line in lines if line.startswith("  ") and "not split" not in line]
    assert len(told) == len(set(told)) == len(set(caught.value.holders)) <= 3
    assert any(", 4 such: " in line for line in told) and len(caught.value.holders) > 3


def test_a_refusal_tells_captured_constants_from_arguments():
    captured = np.ones((300, 1000), np.float32)
    f = exla.jit(lambda x: jnp.sum(jnp.sin(x * captured)), memory_limit="1MB", records="off")
    with pytest.raises(
        exla.MemoryLimitError, match=r"f32\[300,1000\] constant\s+not split further: it is a constant that"
    ):
        f(np.ones(1000, np.float32))
    with pytest.raises(exla.MemoryLimitError, match=r"f32\[300,1000\] argument\s+not split further: it is an argument"):
        exla.jit(lambda x: jnp.sum(jnp.sin(x)), memory_limit="1MB", records="off")(captured)
