"""Bodies of scan, while and cond are split where they are, under what the program around them leaves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import exla
from exla.call import read
from exla.ir.emit import emit
from exla.passes.decisions import Sink, Split
from exla.passes.unless import EXPANSIONS

pytestmark = pytest.mark.usefixtures("compiled_quickly")


def weights(x, y):
    return jnp.exp(-jnp.sum((x[:, None] - y[None]) ** 2, axis=-1) / 2)


def scanned(x, y):
    def body(total, shift):
        row = weights(x + shift, y) @ y
        return total + jnp.sum(row), row

    return lax.scan(body, jnp.zeros((), x.dtype), jnp.arange(3, dtype=x.dtype))


def mean_shift(x, y):
    def step(state):
        points, count = state
        near = weights(points, y)
        return near @ y / jnp.sum(near, axis=1, keepdims=True), count + 1

    return lax.while_loop(lambda state: state[1] < 4, step, (x, 0))[0]


def branched(x, y):
    return lax.cond(
        x[0, 0] > 0, lambda: jnp.sort(weights(x, y), axis=1)[:, 0], lambda: jnp.argmax(weights(x, y), axis=1) * 1.0
    )


def switched(x, y):
    branches = [lambda: jnp.sum(weights(x, y)), lambda: jnp.max(weights(y, x)), lambda: jnp.float32(1) * x[0, 0]]
    return lax.switch(jnp.int32(1), branches)


def mapped(x, y):
    return lax.map(lambda shift: jnp.sum(weights(x + shift, y) ** 2), jnp.arange(3, dtype=x.dtype))


def nested(x, y):
    def outer(i, total):
        return lax.cond(i > 0, lambda: total + jnp.sum(weights(x, y + i), axis=1), lambda: total)

    return lax.fori_loop(0, 3, outer, jnp.zeros(x.shape[0], x.dtype))


CUT_FROM_OUTSIDE = [mean_shift, nested, branched]
"""Those whose loops treat the rows of `x` independently of each other."""

PROGRAMS = [scanned, mean_shift, branched, switched, mapped, nested]


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda f: f.__name__)
def test_the_big_values_of_a_body_never_exist_whole(fn):
    x, y = (np.random.default_rng(k).standard_normal((n, 3), dtype=np.float32) for k, n in ((0, 700), (1, 900)))
    f = exla.jit(fn, memory_limit="300KiB")  # weights are 2.4 MiB
    plan = f.plan(x, y)
    assert plan.compiled_bytes <= 300 * 1024
    assert any(isinstance(d, Split) and (d.path or fn in CUT_FROM_OUTSIDE) for d in plan.decisions)
    assert "while" in plan.compiled.as_text()
    before = jax.config.jax_enable_x64
    got = f(x, y)
    jax.config.update("jax_enable_x64", True)
    try:
        want = fn(jnp.asarray(x, jnp.float64), jnp.asarray(y, jnp.float64))
    finally:
        jax.config.update("jax_enable_x64", before)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), got, want)


def test_a_record_of_a_split_inside_a_body_is_replayed():
    x, y = (np.random.default_rng(k).standard_normal((n, 3), dtype=np.float32) for k, n in ((0, 700), (1, 900)))
    first = exla.jit(mean_shift, memory_limit="300KiB").plan(x, y)
    again = exla.jit(mean_shift, memory_limit="300KiB").plan(x, y)
    assert again.source == "record" and again.decisions == first.decisions


def test_what_a_loop_carries_and_stacks_counts():
    def fn(x):
        return lax.scan(lambda c, _: (c * 1.5, jnp.sort(c)), x, None, length=50)

    x = jnp.ones(10_000)
    with pytest.raises(exla.MemoryLimitError):
        exla.jit(fn, memory_limit=50 * 40_000)(x)
    assert exla.jit(fn, memory_limit=60 * 40_000).plan(x).compiled_bytes >= 52 * 40_000


def test_a_gradient_through_a_scan_with_checkpointed_steps_is_split():
    def loss(x, y):
        def body(total, shift):
            return total + jnp.sum(weights(x + shift, y)), None

        return lax.scan(jax.checkpoint(body), jnp.zeros((), x.dtype), jnp.arange(3, dtype=x.dtype))[0]

    x, y = (np.random.default_rng(k).standard_normal((n, 3), dtype=np.float32) for k, n in ((0, 500), (1, 700)))
    f = exla.jit(jax.grad(loss), memory_limit="300KiB")
    assert f.plan(x, y).compiled_bytes <= 300 * 1024
    np.testing.assert_allclose(f(x, y), jax.grad(loss)(x, y), rtol=1e-3, atol=1e-3)


def test_the_gradient_by_a_field_that_all_members_share_is_cut_along_the_members():
    """Steps of diffusion: the field's gradient is summed over the members, rolled, and added up over the steps."""

    def loss(field, members):
        def step(u, _):
            flux = (field + jnp.roll(field, 1)) * (jnp.roll(u, -1, 1) - u)
            return u + 0.1 * (flux - jnp.roll(flux, 1, 1)) * jnp.exp(-u * u), None

        return jnp.mean(lax.scan(step, members, None, length=20)[0] ** 2)

    rng = np.random.default_rng(0)
    field, members = rng.random(3000), rng.standard_normal((16, 3000))
    small = [v.astype(np.float32) for v in (field, members)]
    f = exla.jit(jax.grad(loss), memory_limit="1.5MiB")
    assert f.plan(*small).compiled_bytes <= 3 << 19  # the members at each step take 3.8 MB
    with jax.enable_x64(True):
        want = jax.jit(jax.grad(loss))(field, members)
    np.testing.assert_allclose(f(*small), want, rtol=1e-3, atol=1e-6 * np.abs(want).max())


def solved_with_a_matrix_made_before(x, y):
    near = weights(x, x)
    return jax.scipy.sparse.linalg.cg(lambda v: near @ v + v, y[: x.shape[0], 0], maxiter=5)[0]


def multiplied_by_a_matrix_made_before(x, y):
    near = weights(x, y)

    def step(carry, row):
        return carry + near @ row, jnp.sum(near.T @ carry)

    return lax.scan(step, jnp.zeros(x.shape[0], x.dtype), jnp.stack([y[:, 0], y[:, 1]]))


def chosen_with_a_matrix_made_before(x, y):
    near = weights(x, y)
    return lax.cond(x[0, 0] > 0, lambda: near @ y[:, 0], lambda: jnp.max(near, axis=1))


@pytest.mark.parametrize(
    "fn",
    [solved_with_a_matrix_made_before, multiplied_by_a_matrix_made_before, chosen_with_a_matrix_made_before],
    ids=lambda f: f.__name__,
)
def test_a_big_value_that_a_loop_reads_is_computed_inside_it(fn):
    """Or the loop is cut as a whole, along what it carries: the matrix is computed once then."""
    x, y = (np.random.default_rng(k).standard_normal((n, 3), dtype=np.float32) for k, n in ((0, 700), (1, 900)))
    f = exla.jit(fn, memory_limit="300KiB")
    plan = f.plan(x, y)
    assert any(isinstance(d, Sink) for d in plan.decisions) or fn is not solved_with_a_matrix_made_before
    with jax.enable_x64(True):
        wants = jax.jit(fn)(x.astype(np.float64), y.astype(np.float64))
    for got, want in zip(jax.tree.leaves(f(x, y)), jax.tree.leaves(wants), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    assert exla.jit(fn, memory_limit="300KiB").plan(x, y).decisions == plan.decisions


def test_a_map_whose_rows_are_computed_again_leaves_no_loop_behind():
    """The gradient of largest elements inside `lax.map`: what is stacked forwards is computed again backwards."""

    def largest(x, y):
        return jnp.sum(lax.map(lambda rows: jnp.max(rows @ y.T, axis=-1), x.reshape(5, -1, 6)))

    x, y = (np.random.default_rng(k).standard_normal((750, 6), dtype=np.float32) for k in range(2))
    gradient = jax.grad(largest, (0, 1))
    plain = exla.jit(gradient).plan(x, y).compiled_bytes
    try:
        got = exla.jit(gradient, memory_limit=plain // 4)(x, y)
    except exla.MemoryLimitError:
        return
    for one, want in zip(got, gradient(x, y), strict=True):
        np.testing.assert_allclose(one, want, rtol=1e-4, atol=1e-4)


def of_a_branch(outer, y):
    """A loss of one of two branches, of which one makes a matrix of kernels."""
    return lambda x: outer(lax.cond(x[0, 0] > 0, lambda: jnp.mean(weights(x, y)), lambda: jnp.mean(jnp.abs(x))))


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("outer", [lambda loss: 3 * loss, lambda loss: jnp.log(1 + loss)], ids=["joined", "again"])
def test_the_gradient_of_a_branch_is_cut_inside_the_branch(outer, sign):
    """Where the derivative of what follows needs the loss first, the branch computes its kernels a second time."""
    x, y = (np.random.default_rng(k).standard_normal((n, 3), dtype=np.float32) for k, n in ((0, 700), (1, 900)))
    x[0, 0] = sign
    gradient = jax.value_and_grad(of_a_branch(outer, y))
    f = exla.jit(gradient, memory_limit="300KiB")
    plan = f.plan(x)
    assert any(d.path for d in plan.decisions if isinstance(d, Split))
    assert any(isinstance(d, Sink) for d in plan.decisions) == (outer(1.0) != 3)
    with jax.enable_x64(True):
        want = jax.value_and_grad(of_a_branch(outer, y.astype(np.float64)))(x.astype(np.float64))
    for one, other in zip(f(x), want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-8)
    assert exla.jit(gradient, memory_limit="300KiB").plan(x).decisions == plan.decisions


def test_conditionals_that_must_stay_apart_do():
    def two(first, second, acts=False):
        def fn(x):
            def step(v):
                if acts:
                    jax.debug.print("{}", v.sum())
                return jnp.sin(v)

            made = lax.cond(first(x), step, jnp.cos, x)
            return lax.cond(second(x), jnp.exp, jnp.tanh, made)

        return fn

    x = np.linspace(-1, 1, 8, dtype=np.float32)
    above, below = (lambda x: x[3] > 0), (lambda x: x[3] < 0)
    counts = {}
    for name, fn in {
        "one number": (lambda x: (lambda p: two(lambda _: p, lambda _: p)(x))(x[3] > 0)),
        "two numbers": two(above, below),
        "acts": (lambda x: (lambda p: two(lambda _: p, lambda _: p, acts=True)(x))(x[3] > 0)),
    }.items():
        program = read(jax.make_jaxpr(fn)(x), "cpu")
        counts[name] = sum(e.primitive.name == "cond" for e in program.eqns)
        np.testing.assert_array_equal(jax.jit(emit(program, EXPANSIONS))(x)[0], jax.jit(fn)(x))
    assert counts == {"one number": 1, "two numbers": 2, "acts": 2}


MIXED = np.random.default_rng(5).standard_normal((16, 16)).astype(np.float32) / 4
SHIFTED = np.linspace(0, 1, 16, dtype=np.float32)


@jax.jit
def pulled(y):
    """Pairs, and an array that the function captures: it is a constant of the body that calls it."""
    return jnp.sum(jnp.sin(y[:, None] - y[None]), axis=1) @ MIXED


@jax.jit
def pushed(y):
    return jnp.sum(jnp.cos(y[:, None] - y[None] + SHIFTED), axis=1)


def pulled_in_turns(y):
    return lax.scan(lambda y, _: (y + 0.01 * pulled(y), None), y, length=3)[0]


def while_small(y):
    def is_small(state):
        return jnp.sum(pushed(state[0])[:1] * SHIFTED) + state[1] < 40

    return lax.while_loop(is_small, lambda s: (s[0] + 0.01 * pulled(s[0]), s[1] + 10.0), (y, 0.0))[0]


def one_or_the_other(y):
    return lax.cond(y[0, 0] > 0, lambda y: pulled(y) + SHIFTED, lambda y: 0.1 * pushed(y), y)


def nested_turns(y):
    def outer(y, _):
        return lax.fori_loop(0, 2, lambda i, y: y + 0.0001 * pulled(y) * pushed(y), y), None

    return lax.scan(outer, y, length=2)[0]


@pytest.mark.parametrize("fn", [pulled_in_turns, while_small, one_or_the_other, nested_turns])
@pytest.mark.parametrize("sign", [-1, 1])
def test_bodies_that_hold_arrays_are_split_inside(fn, sign):
    y = sign * np.random.default_rng(0).standard_normal((300, 16)).astype(np.float32)
    whole = y.nbytes * len(y)
    f = exla.jit(fn, memory_limit=whole // 8)
    plan = f.plan(y)
    assert plan.compiled_bytes <= whole // 8 and any(isinstance(d, Split) and d.path for d in plan.decisions)
    with jax.enable_x64(True):
        want = np.asarray(fn(y.astype(np.float64)))
    np.testing.assert_allclose(f(y), want, rtol=2e-5, atol=max(2e-5, 3e-7 * np.abs(want).max()))
