"""What is compared for equality is computed in one place: derivatives of extremes survive what is offered."""

import itertools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import exla
from exla.call import read
from exla.ir.emit import emit
from exla.ir.memory import Storing, project
from exla.ir.scopes import numbered
from exla.passes import steady as module
from exla.passes.decisions import Growth, to_json
from exla.passes.rounding import SHAPE_DEPENDENT
from exla.passes.split.decide import apply_seed, enumerate_splits
from exla.passes.steady import Steady
from exla.passes.unless import EXPANSIONS
from tests.cost_model.test_split_configs import space

pytestmark = pytest.mark.usefixtures("compiled_quickly")


def largest_shares(x, y):
    """The gradient of the largest shares of a softmax: equality with a maximum, of what a sum is in."""

    def total(z):
        shares = jax.nn.softmax(jnp.sum(jnp.minimum(z[:, None], y[None]), axis=-1), axis=1)
        return jnp.sum(jnp.min(shares, axis=1)) + jnp.sum(jnp.max(shares, axis=0))

    return jax.grad(total)(x)


def nearest(x, y):
    """The gradient of the distances to the nearest: one side of the Chamfer distance."""

    def total(z):
        return jnp.sum(jnp.min(jnp.sum(jnp.abs(z[:, None] - y[None]) ** 1.5, axis=-1), axis=1))

    return jax.grad(total)(x)


def floored(x, y):
    """The gradient of shares that have a floor: each is compared with the larger one of the two."""

    def total(z):
        near = 1 / (1 + jnp.sum((z[:, None] - y[None]) ** 2, axis=-1))
        return jnp.sum(jnp.log(jnp.maximum(near / jnp.sum(near), 1e-4)))

    return jax.grad(total)(x)


def arguments(n=64, m=96):
    generator = np.random.default_rng(0)
    return tuple(generator.standard_normal(shape, dtype=np.float32) for shape in ((n, 5), (m, 5)))


def in_float64(function, values):
    jax.config.update("jax_enable_x64", True)
    try:
        return np.asarray(jax.jit(function)(*(v.astype(np.float64) for v in values)))
    finally:
        jax.config.update("jax_enable_x64", False)


def test_every_candidate_that_is_offered_has_the_right_gradient():
    values = arguments()
    made = space(nearest, values, share=0.1)
    want = in_float64(nearest, values)
    assert made.steady(made.root)
    offered = list(itertools.islice(made.below(made.root), 24))
    assert len(offered) > 8
    for candidate in offered[::4]:
        (got,) = jax.jit(emit(candidate.program, EXPANSIONS))(*values)
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-4 * np.abs(want).max(), err_msg=str(candidate))


def test_some_of_what_is_not_offered_would_have_a_wrong_gradient():
    values = arguments()
    made = space(largest_shares, values, share=0.1)
    want = in_float64(largest_shares, values)
    steady = made.steady(made.root)

    def is_wrong(program):
        (got,) = jax.jit(emit(program, EXPANSIONS))(*values)
        return np.max(np.abs(got - want)) > 1e-3 * np.abs(want).max()

    refused = [p for _, p in split_twice(made) if not steady.holds(p)]
    assert any(map(is_wrong, refused))


def test_a_comparison_inside_a_loop_of_the_users_is_followed():
    def mapped(xs, y):
        return jax.lax.map(lambda x: largest_shares(x, y), xs)

    x, y = arguments()
    values = np.stack([x, x + 1]), y
    made = space(mapped, values, share=0.1)
    want = in_float64(mapped, values)
    steady = made.steady(made.root)
    assert "test_steady.py" in steady.source
    wrong = 0
    for _, program in split_twice(made):
        (got,) = jax.jit(emit(program, EXPANSIONS))(*values)
        if np.max(np.abs(got - want)) > 1e-3 * np.abs(want).max():
            wrong += 1
            assert not steady.holds(program)
    assert wrong


def test_what_a_turn_of_a_loop_is_given_may_come_from_two_places():
    """Backwards the network is computed again from states that were saved: where it starts is not where it went on."""

    def gradient(xs, weights):
        def largest(weights):
            def step(state, x):
                return jnp.maximum(state @ weights + x, 0), None

            last, _ = jax.lax.scan(step, jnp.zeros_like(xs[0]), xs)
            return jnp.max(last)

        return jax.grad(largest)(weights)

    generator = np.random.default_rng(0)
    xs = generator.standard_normal((64, 128, 16), dtype=np.float32)
    weights = 0.2 * generator.standard_normal((16, 16), dtype=np.float32)
    plain = exla.jit(gradient, records="off").plan(xs, weights).compiled_bytes
    limit = xs.nbytes + (plain - xs.nbytes) // 3
    f = exla.jit(gradient, memory_limit=limit, records="off")
    assert f.plan(xs, weights).decisions
    want = in_float64(gradient, (xs, weights))
    np.testing.assert_allclose(f(xs, weights), want, rtol=0, atol=1e-5 * np.abs(want).max())


def end_of_scan(x, y):
    """The gradient of the largest of what a long scan ends with; backwards the scan is computed again in chunks."""

    def total(z):
        def step(state, t):
            return state + jnp.tanh(state @ y[:5] + t) / 50, None

        last, _ = jax.lax.scan(step, z, jnp.arange(200, dtype=z.dtype))
        return jnp.sum(jnp.max(last, axis=1))

    return jax.grad(total)(x)


def test_a_maximum_of_what_a_scan_ends_with_is_compared_where_it_was_computed_though_the_scan_runs_twice():
    values = arguments(n=200)
    want = in_float64(end_of_scan, values)
    plain = exla.jit(end_of_scan, records="off").plan(*values).compiled_bytes
    f = exla.jit(end_of_scan, memory_limit=plain // 4, records="off")
    assert f.plan(*values).decisions
    np.testing.assert_allclose(f(*values), want, rtol=0, atol=1e-4 * np.abs(want).max())


@pytest.mark.parametrize("function", [nearest, floored, end_of_scan], ids=lambda f: f.__name__)
def test_what_holds_is_right_however_it_is_split(function):
    values = arguments()
    made = space(function, values, share=0.1)
    steady = made.steady(made.root)
    assert steady or function is floored  # jax 0.12 compares nothing in that derivative
    want = in_float64(function, values)
    programs = [p for _, p in split_twice(made) if steady is None or steady.holds(p)]
    for program in programs[:: max(len(programs) // 12, 1)]:
        (got,) = jax.jit(emit(program, EXPANSIONS))(*values)
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-4 * np.abs(want).max())
    assert programs


def neighbour_embedding(x, y):
    """The gradient of t-SNE's loss: an element-wise maximum of what a sum over everything divides."""

    def squared(z):
        return jnp.sum((z[:, None] - z[None]) ** 2, axis=-1)

    def loss(x):
        itself = jnp.eye(len(x), dtype=bool)
        given = jax.nn.softmax(jnp.where(itself, -jnp.inf, -squared(y) / 2), axis=1)
        given = (given + given.T) / (2 * len(x))
        near = jnp.where(itself, 0.0, 1 / (1 + squared(x)))
        return jnp.sum(given * jnp.log(jnp.maximum(given, 1e-12) / jnp.maximum(near / near.sum(), 1e-12)))

    return jax.grad(loss)(x)


def test_a_floor_under_what_a_sum_divides_is_no_barrier():
    values = arguments(600, 600)
    f = exla.jit(neighbour_embedding, memory_limit=500_000, records="off")
    assert f.plan(*values).decisions
    want = in_float64(neighbour_embedding, values)
    np.testing.assert_allclose(f(*values), want, rtol=0, atol=1e-5 * np.abs(want).max())


def split_twice(made):
    """The program split once in chunks of 8, and inside that loop again, in every way; with the decisions."""
    growths = [Growth(small_bytes=64, online=online) for online in (False, True)]
    held = made.unfused(made.root).held
    for seed in enumerate_splits(made.root.program, held, growths, values=8):
        if seed.region.size > 8:
            first = apply_seed(made.root.program, seed, 8)
            for inner in enumerate_splits(first, project(first, Storing(fused=False)).held, growths, values=8):
                if inner.decision.path:
                    chunk = max(inner.region.least_chunk, inner.region.size // 2)
                    yield (seed.split(8), inner.split(chunk)), apply_seed(first, inner, chunk)


def rounded_shares(x, y):
    """The gradient of the largest shares of a softmax of what products and sums make of one array."""

    def total(z):
        scores = jnp.sum(jnp.abs(z[:, None] - y[None]), axis=-1)
        shares = jax.nn.softmax(jax.nn.silu(jnp.sqrt(1.0 + jnp.abs(scores))), axis=1)
        return jnp.sum(jnp.min(shares, axis=1)) + jnp.sum(jnp.max(shares, axis=0))

    return jax.grad(total)(x)


def test_a_sum_takes_in_a_product_where_it_sees_it(monkeypatch):
    """Two splits in turn, the first of the sum that makes the array: only elements are computed in two places."""
    if " fma" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this processor rounds every product")
    values = tuple(v[:, :2] for v in arguments(512, 64))  # of which most splits are wrong, without AVX-512 too
    made = space(rounded_shares, values, share=0.1)
    want = in_float64(rounded_shares, values)
    growths = [
        Growth(small_bytes=64, online=online, again=again) for online, again in itertools.product((0, 1), (0, 1))
    ]

    def is_wrong(program):
        (got,) = jax.jit(emit(program, EXPANSIONS))(*values)
        return np.max(np.abs(got - want)) > 1e-3 * np.abs(want).max()

    def in_turn():
        start = made.root.program
        for seed in enumerate_splits(start, made.unfused(made.root).held, growths, values=8):
            if seed.region.size > 2:
                continue
            first = apply_seed(start, seed, 1)
            for other in enumerate_splits(first, project(first, Storing(fused=False)).held, growths, values=8):
                if not other.decision.path and other.region.size > 8:
                    yield apply_seed(first, other, 8)

    jax.config.update("jax_disable_most_optimizations", False)  # it is optimisation that takes products in
    steady = made.steady(made.root)
    wrong = [p for p in in_turn() if is_wrong(p)]
    assert wrong and not any(steady.holds(p) for p in wrong)
    with monkeypatch.context() as patch:
        patch.setattr(module, "depends_on_place", lambda program, eqn: eqn.primitive.name in SHAPE_DEPENDENT)
        for program in wrong:
            program.known.pop("steady", None)
        assert any(Steady(program=steady.program).holds(p) for p in wrong), "sums alone do not tell"


ELEMENTWISE = {
    "a product and a sum": (lambda a, b, c: a * b + c, True),
    "less a product": (lambda a, b, c: c - (-(a * b))[::1], True),
    "a square": (lambda a, b, c: jnp.square(a) - c, True),
    "an exponential": (lambda a, b, c: jnp.exp(a) + c, True),
    "an exact product": (lambda a, b, c: 2.0 * a + c, False),
    "an exact part": (lambda a, b, c: a / 4 + c, False),
    "a bound between": (lambda a, b, c: jnp.maximum(a * b, 0.0) + c, False),
    "sums alone": (lambda a, b, c: a + b - c, False),
    "a quotient": (lambda a, b, c: a / b + c, False),
    "a third": (lambda a, b, c: a / 3.0, True),
    "a third of all": (lambda a, b, c: a / jnp.full_like(a, 3.0), True),
    "a third and a sum": (lambda a, b, c: jnp.sqrt(a / 3.0) + c, True),
    "in 16 bits": (lambda a, b, c: (a.astype(jnp.bfloat16) + b.astype(jnp.bfloat16)) - c.astype(jnp.bfloat16), True),
    "rounded to 16 bits once": (lambda a, b, c: jnp.square(a).astype(jnp.float16), False),
    "rounded to 16 bits and back": (lambda a, b, c: jnp.abs(a).astype(jnp.float16).astype(jnp.float32), True),
    "by a root": (lambda a, b, c: a / jnp.sqrt(jnp.abs(b)), True),
    "by a broadcast root": (lambda a, b, c: a[:, None] / jnp.sqrt(jnp.abs(b)), True),
    "a root": (lambda a, b, c: jnp.sqrt(jnp.abs(b)) / a, False),
    "by an exponential": (lambda a, b, c: a / jnp.exp(b), True),
    "by a power": (lambda a, b, c: a / b**3, True),
    "by quotients": (lambda a, b, c: a / (b / c), True),
    "quotients": (lambda a, b, c: (a / b) / c, True),
    "a product of exponentials": (lambda a, b, c: jnp.exp(a) * jnp.exp(b), True),
    "an exponential and a factor": (lambda a, b, c: jnp.exp(a) * b, False),
    "two constant factors": (lambda a, b, c: 3.0 * jnp.maximum(5.0 * a, a * 7.0), False),
    "constant factors in turn": (lambda a, b, c: 3.0 * -(5.0 * a), True),
    "constants added in turn": (lambda a, b, c: (a + 3.0) - 5.0, True),
    "one less than an exponential": (lambda a, b, c: jnp.exp(a) - 1.0, True),
    "a logarithm of an exponential": (lambda a, b, c: jnp.log(jnp.exp(a)), True),
    "a root of a square": (lambda a, b, c: jnp.sqrt(a * a), True),
    "random numbers": (lambda a, b, c: jax.random.normal(jax.random.key(0), a.shape) * b + c, True),
    "random bits": (lambda a, b, c: jax.random.bits(jax.random.key(0), a.shape), False),
    "indices as numbers": (lambda a, b, c: a * (jnp.arange(3.0) + 1.0), False),
    "integers": (lambda a, b, c: a.astype(int) * b.astype(int) + 1 > 0, False),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_what_is_rounded_once_or_twice_depends_on_its_place(name):
    function, depends = ELEMENTWISE[name]
    program = read(jax.make_jaxpr(function)(*(np.ones(3, np.float32) for _ in range(3))), "cpu")
    assert any(module.depends_on_place(program, eqn) for eqn in program.eqns) == depends


def test_a_saved_plan_that_computes_what_is_compared_twice_is_refused(tmp_path):
    values = arguments()
    path = tmp_path / "plan.json"

    def loaded(function, decisions):
        exla.save(exla.compile(function, values, memory_limit="1GiB"), path)
        saved = json.loads(path.read_text())
        path.write_text(json.dumps({**saved, "decisions": [to_json(d) for d in decisions]}))
        return exla.load(path, function, values)

    made = space(nearest, values, share=0.1)
    want = in_float64(nearest, values)
    got = loaded(nearest, next(made.below(made.root)).decisions)(*values)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-4 * np.abs(want).max())
    made = space(largest_shares, values, share=0.1)
    steady = made.steady(made.root)
    with pytest.raises(exla.PlanError, match="compared for equality in more than one place"):
        loaded(largest_shares, next(d for d, program in split_twice(made) if not steady.holds(program)))


@pytest.mark.parametrize("room", [60_000, 120_000])
@pytest.mark.parametrize("name", ["chamfer", "hausdorff", "softmax"])
def test_gradients_of_extremes_are_right_or_refused_under_a_cap(name, room):
    """Whole programs: at these caps jax 0.12 compares sums of 3 that two loops add up in two orders."""

    def extremes(x, y):
        squared = jnp.sum((x[:, None] - y[None]) ** 2, axis=-1)
        if name == "hausdorff":
            return jnp.max(jnp.min(jnp.sqrt(squared + 1), axis=1))
        if name == "softmax":
            squared = jax.nn.softmax(-squared / 10, axis=1)
            return jnp.sum(jnp.min(squared, axis=1)) + jnp.sum(jnp.max(squared, axis=0))
        return jnp.sum(jnp.min(squared, axis=1)) + jnp.sum(jnp.min(squared, axis=0))

    gradient = jax.grad(extremes)
    x, y = (np.random.default_rng(k).standard_normal((n, 3), dtype=np.float32) for k, n in ((0, 150), (1, 260)))
    try:
        got = exla.jit(gradient, memory_limit=room + 2 * x.nbytes + y.nbytes, records="off")(x, y)
    except exla.MemoryLimitError as error:
        assert "test_steady.py" in error.compared and "compared for equality" in str(error)
        return
    want = in_float64(gradient, (x, y))
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-4 * np.abs(want).max())


def test_programs_that_compare_nothing_of_the_kind_are_free():
    def smooth(x, y):
        return jnp.exp(-jnp.sum((x[:, None] - y[None]) ** 2, axis=-1)).sum(axis=1)

    def equal_to_a_number(x, y):
        return jnp.where(x @ y.T == 0, 1.0, 2.0).sum(axis=1)

    def asked_for_nans(x, y):
        return jax.nn.softplus(x @ y.T).sum(axis=1) + jnp.nansum(jnp.cumsum(x @ y.T, axis=1), axis=1)

    for function in (smooth, equal_to_a_number, asked_for_nans):
        flat = numbered(read(jax.make_jaxpr(function)(*arguments()), "cpu"))
        assert not Steady(program=flat).numbers


def test_the_beam_keeps_nothing_unsteady(monkeypatch):
    made = space(lambda x, y: jnp.exp(-jnp.abs(x[:, None] - y[None])).sum(axis=(1, 2)), arguments(), share=0.1)
    assert made.ranked(made.root)
    monkeypatch.setattr(type(made), "is_steady", lambda self, candidate: False)
    assert not made.ranked(made.root), "where nothing is steady, nothing is tried, however small"
