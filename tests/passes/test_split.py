"""Splitting changes no value, whatever is cut, into whatever chunks, on however many passes and levels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from exla.errors import ReplayMiss
from exla.ir.check import check
from exla.ir.emit import emit
from exla.ir.memory import Held, Storing, project
from exla.ir.program import canonical
from exla.passes.decisions import Growth, from_json, to_json
from exla.passes.split.apply import split_program
from exla.passes.split.decide import apply_split, enumerate_splits, growths
from exla.passes.split.grow import grow
from exla.passes.unless import EXPANSIONS
from tests.passes.programs import random_function

pytestmark = pytest.mark.usefixtures("compiled_quickly")


def program_of(fn, args):
    return check(canonical(jax.make_jaxpr(fn)(*args)))


def run_program(program, args):
    return jax.jit(emit(program, EXPANSIONS))(*program.consts, *args)


def run_all(programs, args):
    """The results of each program, all compiled as one."""
    return jax.jit(lambda *a: [emit(p, EXPANSIONS)(*p.consts, *a) for p in programs])(*args)


def split_and_plain(program, function, args):
    """The results of a program and those of the plain function, both compiled as one."""
    return jax.jit(lambda *a: (emit(program, EXPANSIONS)(*program.consts, *a), function(*a)))(*args)


def everything_held(program):
    values = [v for eqn in program.eqns for v in eqn.outvars] + list(program.invars)
    return [Held(program=program, path=(), var=v, bytes=1) for v in values if hasattr(v.aval, "shape")]


def assert_same(results, expected, *, rtol=1e-9):
    for a, b in zip(jax.tree.leaves(results), jax.tree.leaves(expected), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=rtol, atol=1e-9)


@settings(max_examples=18, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), seed=st.integers(0, 10_000))
def test_any_split_of_any_program_gives_the_plain_values(x64, data, seed):
    function, args = random_function(seed)
    program = program_of(function, args)
    seeds = list(enumerate_splits(program, everything_held(program), growths((1, 100)), values=100))
    if not seeds:
        return
    chosen = seeds[data.draw(st.integers(0, len(seeds) - 1))]
    if chosen.region.least_chunk >= chosen.region.size:
        return
    chunk = data.draw(st.integers(chosen.region.least_chunk, chosen.region.size - 1))
    split = apply_split(program, from_json(to_json(chosen.split(chunk))))
    assert_same(*split_and_plain(split, function, args))


@settings(max_examples=9, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), seed=st.integers(0, 10_000))
def test_a_second_factor_nests_inside_the_first(x64, data, seed):
    function, args = random_function(seed)
    program = program_of(function, args)
    for _ in range(2):
        held = [h for h in project(program, Storing(fused=False)).held]
        found = enumerate_splits(program, held, growths((1,)), values=6)
        seeds = [s for s in found if s.region.least_chunk < s.region.size]
        if not seeds:
            break
        chosen = seeds[data.draw(st.integers(0, len(seeds) - 1))]
        chunk = data.draw(st.integers(chosen.region.least_chunk, chosen.region.size - 1))
        program = apply_split(program, chosen.split(chunk))
    assert_same(*split_and_plain(program, function, args))


def largest_value_bytes(program):
    """Bytes of the largest value that exists at any one time, fused or not, inside loops too."""
    return max(h.bytes for h in project(program, Storing(fused=False)).held)


def gaussian_product(x, y, v):
    return jnp.exp(-((x[:, None, :] - y[None, :, :]) ** 2).sum(-1) / 2) @ v


def arguments(*shapes, seed=0):
    generator = np.random.default_rng(seed)
    return tuple(jax.device_put(generator.normal(size=s)) for s in shapes)


def split_value(program, primitive, axis, chunk, small=1):
    """Cut an axis of the first value that a primitive makes."""
    position = next(i for i, e in enumerate(program.eqns) if e.primitive.name == primitive)
    var = program.eqns[position].outvars[0]
    held = [Held(program=program, path=(), var=var, bytes=1)]
    for seed in enumerate_splits(program, held, growths((small,))):
        if seed.decision.axis == axis:
            return apply_split(program, seed.split(chunk)), seed.region
    raise AssertionError(f"axis {axis} of {primitive} cannot be cut")


@pytest.mark.parametrize("chunk", [1, 3, 5, 7, 10])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_every_factor_of_a_kernel_product_can_be_cut(x64, axis, chunk):
    args = arguments((11, 11), (11, 11), (11,))
    program = program_of(gaussian_product, args)
    split, _ = split_value(program, "sub", axis, chunk)
    assert_same(run_program(split, args), gaussian_product(*args))


def test_the_compiled_code_holds_a_loop_and_no_copy_of_its_body(x64):
    args = arguments((64, 3), (64, 3), (64,))
    program = program_of(gaussian_product, args)
    sizes = []
    for chunk in (1, 32):
        split, _ = split_value(program, "sub", 0, chunk)
        text = jax.jit(emit(split, EXPANSIONS)).lower(*args).as_text()
        assert "while" in text
        sizes.append(text.count("stablehlo.exponential"))
    assert sizes == [1, 1]


def test_one_input_is_cut_in_one_role_and_whole_in_another(x64):
    def fn(x):
        return jnp.exp(x @ x.T).sum(1)

    args = arguments((13, 4))
    split, region = split_value(program_of(fn, args), "dot_general", 0, 5)
    assert region.size == 13
    assert_same(run_program(split, args), fn(*args))


def test_both_roles_of_one_big_value_are_computed_in_the_loop(x64):
    def fn(x):
        k = jnp.exp(-((x[:, None, :] - x[None, :, :]) ** 2).sum(-1))
        return (k + 2 * k.T).sum(1)

    args = arguments((13, 4))
    split, region = split_value(program_of(fn, args), "sub", 0, 5)
    assert len({axis for _, axis in region.makers}) > 1
    assert largest_value_bytes(split) < 13 * 13 * 4 * 8
    assert_same(run_program(split, args), fn(*args))


def test_a_reduction_that_feeds_back_becomes_two_loops_with_recomputation(x64):
    def fn(x, y, v):
        k = jnp.exp(-((x[:, None, :] - y[None, :, :]) ** 2).sum(-1))
        return (k / k.sum()) @ v

    args = arguments((30, 3), (40, 3), (40,))
    split, region = split_value(program_of(fn, args), "sub", 0, 7)
    assert region.levels == [0, 1]
    assert largest_value_bytes(split) < 30 * 40 * 8
    assert_same(run_program(split, args), fn(*args))


def test_double_centring_of_a_kernel_matrix_never_holds_it(x64):
    def fn(x, v):
        k = jnp.tanh(x @ x.T)
        k = k - k.mean(0) - k.mean(1)[:, None] + k.mean()
        return k @ v

    args = arguments((40, 3), (40,))
    split, region = split_value(program_of(fn, args), "tanh", 0, 8)
    assert largest_value_bytes(split) < 40 * 40 * 8
    assert_same(run_program(split, args), fn(*args))


def test_a_row_softmax_stays_one_loop(x64):
    def fn(q, k, v):
        return jax.nn.softmax(q @ k.T, axis=-1) @ v

    args = arguments((33, 4), (29, 4), (29, 5))
    split, region = split_value(program_of(fn, args), "exp", 0, 8)
    assert region.levels == [0]
    assert_same(run_program(split, args), fn(*args))


def test_several_outputs_share_one_loop(x64):
    def fn(z, x, y):
        k = jnp.exp(-((z[:, None] - x[None]) ** 2).sum(-1))
        return k @ k.T, k @ y

    args = arguments((5, 2), (50, 2), (50,))
    split, region = split_value(program_of(fn, args), "exp", 1, 16)
    assert len(region.outputs) == 2 and region.levels == [0]
    assert sum(e.primitive.name == "exla_split" for e in split.eqns) == 1
    assert_same(run_program(split, args), fn(*args))


def test_a_big_output_is_written_in_place(x64):
    def fn(x, y):
        return jnp.exp(-((x[:, None, :] - y[None, :, :]) ** 2).sum(-1))

    args = arguments((64, 50), (64, 50))
    for axis in (0, 1):
        split, _ = split_value(program_of(fn, args), "sub", axis, 9)
        compiled = jax.jit(emit(split, EXPANSIONS)).lower(*args).compile()
        assert compiled.memory_analysis().temp_size_in_bytes < 64 * 64 * 8 + 9 * 64 * 50 * 8
        assert_same(run_program(split, args), fn(*args))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.uint8, np.bool_])
@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "all", "any", "argmax", "argmin"])
def test_every_combiner_merges_chunks_in_every_dtype(x64, name, dtype):
    data = np.random.default_rng(0).integers(0, 3, size=(6, 37)).astype(dtype)

    def fn(x, y):
        return getattr(jnp, name)(x[:, None, :] * y[None, :, :], axis=2)

    args = (jnp.asarray(data), jnp.asarray(data[:4]))
    program = program_of(fn, args)
    primitive = "mul" if dtype != np.bool_ else "and"
    splits = [split_value(program, primitive, 2, chunk)[0] for chunk in (1, 5, 36)]
    for results in run_all(splits, args):
        assert_same(results, fn(*args), rtol=1e-6)


SPECIAL = {
    "ties": [1.0, 3.0, 3.0, 2.0, 3.0, -1.0, 3.0],
    "nan": [1.0, np.nan, 3.0, np.nan, 9.0, -np.inf, 0.0],
    "minus infinity": [-np.inf] * 7,
    "infinity": [np.inf] * 7,
    "all nan": [np.nan] * 7,
    "zeros of both signs": [-0.0, 0.0, -0.0, 0.0, -0.0, 0.0, 0.0],
}


@pytest.mark.parametrize("values", SPECIAL.values(), ids=SPECIAL)
@pytest.mark.parametrize("function", [jnp.argmax, jnp.argmin, jnp.max, jnp.min])
def test_ties_and_special_values_come_out_as_in_lax(function, values):
    args = (jnp.asarray(values, jnp.float32)[None].repeat(3, 0),)

    def fn(x):
        return function(x * 1, axis=1)

    splits = [split_value(program_of(fn, args), "mul", 1, chunk)[0] for chunk in (1, 2, 3, 6)]
    for (result,) in run_all(splits, args):
        np.testing.assert_array_equal(result, fn(*args))


@pytest.mark.parametrize("values", SPECIAL.values(), ids=SPECIAL)
@pytest.mark.parametrize("chunk", [2, 3, 4, 6])
def test_top_k_over_chunks_is_bit_equal_to_lax(values, chunk):
    args = (jnp.asarray(values, jnp.float32)[None].repeat(3, 0),)

    def fn(x):
        return jax.lax.top_k(x * 1, 2)

    split, _ = split_value(program_of(fn, args), "mul", 1, chunk)
    for a, b in zip(run_program(split, args), fn(*args), strict=True):
        np.testing.assert_array_equal(np.asarray(a).view(np.int32), np.asarray(b).view(np.int32))


@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 4),
    size=st.integers(2, 40),
    k=st.integers(1, 6),
    chunk=st.integers(1, 39),
    seed=st.integers(0, 99),
)
def test_remainder_chunk_is_stable_for_top_k(rows, size, k, chunk, seed):
    k, chunk = min(k, size - 1), min(chunk, size - 1)
    chunk = max(chunk, k)
    values = np.random.default_rng(seed).integers(0, 4, size=(rows, size)).astype(np.float32)

    def fn(x):
        return jax.lax.top_k(x * 1, k)

    split, _ = split_value(program_of(fn, (values,)), "mul", 1, chunk)
    for a, b in zip(*split_and_plain(split, fn, (values,)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_narrow_floats_are_summed_in_float32_between_chunks():
    args = (jnp.full((2, 4096), 0.01, jnp.bfloat16),)

    def fn(x):
        return (x * 1).sum(1)

    split, _ = split_value(program_of(fn, args), "mul", 1, 8)
    np.testing.assert_allclose(
        np.asarray(run_program(split, args)[0], np.float64), np.asarray(fn(*args), np.float64), rtol=2**-7
    )


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("chunk", [1, 16])
def test_a_point_has_no_distance_to_itself_in_a_loop_either(again, chunk):
    def log_likelihood(scale, x):
        z = x / scale
        squared = jnp.sum((z[:, None] - z[None]) ** 2, axis=-1)
        return jnp.mean(jax.nn.logsumexp(-squared / 2, axis=1))

    gradient = jax.grad(log_likelihood)
    x = (np.random.default_rng(0).normal(size=(512, 8)) * 0.3 + 1e3).astype(np.float32)
    scale = np.full(8, 2.01, np.float32)
    with jax.enable_x64(True):
        expected = np.asarray(gradient(scale.astype(np.float64), x.astype(np.float64)))
    program = canonical(jax.make_jaxpr(gradient)(scale, x))
    big = next(v for eqn in program.eqns for v in eqn.outvars if v.aval.shape == (512, 512, 8))
    region = grow(program, big, 0, Growth(small_bytes=8192, again=again))
    assert any(region.given(level) for level in region.levels)
    (got,) = jax.jit(emit(split_program(region, chunk), EXPANSIONS))(scale, x)
    np.testing.assert_allclose(got, expected, rtol=1e-3)


def primitives_of_loops(program):
    """The names of what each chunk loop computes."""
    return [[e.primitive.name for e in q.params["loop"].body.eqns] for q in program.eqns if "loop" in q.params]


def test_what_stays_there_whole_is_sliced_by_later_loops_and_not_computed_again(x64):
    """The scores are a result; the loop after the one that finds their maximum reads them."""

    def fn(x, w):
        scores = jnp.tanh(x @ w)
        return scores, jnp.sum(jnp.exp(scores - scores.max()), axis=1)

    x, w = np.linspace(-2, 2, 40 * 8).reshape(40, 8), np.linspace(1, -1, 8 * 30).reshape(8, 30)
    program = program_of(fn, (x, w))
    scores = next(e.outvars[0] for e in program.eqns if e.primitive.name == "tanh")
    split = split_program(grow(program, scores, 0, Growth(small_bytes=2000)), 7)
    first, second = primitives_of_loops(split)
    assert {"dot_general", "tanh"} <= set(first) and not {"dot_general", "tanh"} & set(second)
    assert_same(*split_and_plain(split, fn, (x, w)))


def test_what_a_loop_reads_along_another_axis_is_sliced_along_its_own_too(x64):
    """Rows of a triangular solve's result can be computed in chunks; its columns want all of it."""

    def fn(low, x):
        k = jax.lax.linalg.triangular_solve(low, jnp.sin(x), left_side=False, lower=True)
        return jnp.sum((k + k.T) ** 2, axis=1)

    low = np.tril(np.linspace(1, 2, 900).reshape(30, 30))
    x = np.linspace(-3, 3, 900).reshape(30, 30)
    program = program_of(fn, (low, x))
    solved = next(e.outvars[0] for e in program.eqns if e.primitive.name == "triangular_solve")
    split = split_program(grow(program, solved, 0, Growth(small_bytes=2000, again=True)), 7)
    (loop,) = primitives_of_loops(split)
    assert "triangular_solve" not in loop
    assert [e.primitive.name for e in split.eqns].count("triangular_solve") == 1
    assert_same(*split_and_plain(split, fn, (low, x)))


def column_added(k, h, at):
    return k + jax.lax.dynamic_update_slice(jnp.zeros_like(k), h[:, None], (jnp.zeros_like(at), at))


def row_added(k, h, at):
    return k + jax.lax.dynamic_update_slice(jnp.zeros_like(k), h[None], (at, jnp.zeros_like(at)))


def block_written(k, h, at):
    return jax.lax.dynamic_update_slice(k, jnp.sin(k[:5, :3]) * h[0], (at, at))


def turns(step, reverse=False):
    def fn(k, h, at):
        return jax.lax.scan(lambda c, z: (step(c, *z), c[2]), k, (h, at), reverse=reverse)

    return fn


UPDATES = {
    "columns of a scan": turns(column_added),
    "rows of a scan": turns(row_added),
    "both, from the last": turns(lambda k, h, at: row_added(column_added(k, h, at), h, at), reverse=True),
    "blocks of a scan": turns(block_written),
    "both, and what is turned": lambda k, h, at: (lambda m: m + m.T)(
        row_added(column_added(k, h[0], at[0]), h[1], at[1])
    ),
    "a block": lambda k, h, at: block_written(jnp.cos(k), h[0], at[3]),
}


@pytest.mark.parametrize("name", UPDATES)
def test_what_is_written_in_one_place_is_cut_wherever_that_is(x64, name):
    """At places before the beginning and beyond the end, too, along both axes."""
    rng = np.random.default_rng(0)
    args = (rng.normal(size=(12, 12)), rng.normal(size=(4, 12)), np.array([3, 5, -2, 40], np.int32))
    program, fn = program_of(UPDATES[name], args), UPDATES[name]
    expected, count = jax.jit(fn)(*args), 0
    for seed in enumerate_splits(program, everything_held(program), growths((1, 100)), values=100):
        for chunk in (1, 5):
            if seed.region.least_chunk <= chunk < seed.region.size:
                assert_same(run_program(apply_split(program, seed.split(chunk)), args), expected)
                count += 1
    assert count


@pytest.mark.parametrize("again", [False, True])
def test_what_a_batch_has_in_common_is_computed_outside_and_its_states_in_one_loop(x64, again):
    """Filters of many series share their covariances, which the scan of the smoother reads: not the series' states."""

    def smooth(y, a):
        def forward(carry, y_t):
            mean, p = carry
            p = a * p * a + 0.1
            gain = p / (p + 1)
            mean = a * mean
            mean = mean + gain * (y_t - mean)
            return (mean, p * (1 - gain)), (mean, p)

        def backward(later, both):
            mean, p = both
            gain = p / (p + 0.3)
            later = mean + gain * (later - mean)
            return later, later

        (last, _), stacked = jax.lax.scan(forward, (jnp.zeros(3), jnp.ones(3)), y[:, None] * jnp.ones(3))
        return jax.lax.scan(backward, last, stacked, reverse=True)[1]

    fn = jax.vmap(smooth, in_axes=(0, None))
    args = (np.linspace(-1, 1, 50 * 20).reshape(50, 20), np.array([0.9, 0.5, 0.1]))
    program = program_of(fn, args)
    states = next(v for e in program.eqns for v in e.outvars if v.aval.shape == (20, 50, 3))
    split = split_program(grow(program, states, 1, Growth(small_bytes=2000, again=again)), 7)
    outside = [v.aval.shape for e in split.eqns for v in e.outvars if e.primitive.name == "scan"]
    assert [names.count("scan") for names in primitives_of_loops(split)] == [2]
    assert outside and all(50 not in shape for shape in outside)
    assert_same(*split_and_plain(split, fn, args))


def test_what_has_no_rule_is_a_barrier_that_is_named():
    def fn(x):
        k = jnp.exp(x[:, None] - x[None])
        return jnp.linalg.svd(k, compute_uv=False) + k.sum()

    args = (jnp.arange(12.0),)
    program = program_of(fn, args)
    var = next(e.outvars[0] for e in program.eqns if e.primitive.name == "exp")
    region = grow(program, var, 0, Growth(small_bytes=1))
    assert region is not None and "svd" in region.blocked[var]


def test_an_axis_of_one_index_is_not_cut():
    program = program_of(lambda x: jnp.exp(x).sum(), (jnp.ones((1, 5)),))
    assert grow(program, program.eqns[0].outvars[0], 0, Growth(small_bytes=1)) is None


def test_a_decision_for_another_program_is_a_miss_with_a_reason():
    args = (jnp.ones((8, 3)), jnp.ones((9, 3)), jnp.ones(9))
    program = program_of(gaussian_product, args)
    seed = next(enumerate_splits(program, everything_held(program), growths((1,))))
    other = program_of(lambda x, y, v: jnp.cos(x @ y.T) @ v, args)
    with pytest.raises(ReplayMiss):
        apply_split(other, seed.split(2))
    with pytest.raises(ReplayMiss, match="chunks must be"):
        apply_split(program, seed.split(10_000))


def test_room_for_what_loops_write_is_not_made_before_it_is_needed():
    """Of loops one after the other, each of which reads what the one before wrote, two arrays are there at a time."""

    def sorted_four_times(x):
        found = jnp.exp(x[:, None] * x)
        for axis in (1, 0, 1, 0):
            found = jnp.sort(jnp.sin(found), axis=axis)
        return found

    n = 512
    x = jnp.linspace(-1.0, 1.0, n, dtype=jnp.float32)
    program = program_of(sorted_four_times, (x,))
    for k in range(4):
        position = [i for i, e in enumerate(program.eqns) if e.primitive.name == "sort"][0]
        held = [Held(program=program, path=(), var=program.eqns[position].outvars[0], bytes=1)]
        seeds = enumerate_splits(program, held, growths((n * n,)))
        program = apply_split(program, next(s for s in seeds if s.decision.axis == k % 2).split(100))
    assert [e.primitive.name for e in program.eqns].count("exla_split") == 4
    compiled = jax.jit(emit(program, EXPANSIONS)).lower(x).compile()
    assert 2 <= compiled.memory_analysis().temp_size_in_bytes / (4 * n * n) < 2.5
    np.testing.assert_array_equal(compiled(x)[0], jax.jit(sorted_four_times)(x))
