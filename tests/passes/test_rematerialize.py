"""What a scan stacks for another one is computed again there, of the least that has to be kept."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import exla
from exla import _compat
from exla.call import read
from exla.errors import ReplayMiss
from exla.ir.emit import emit
from exla.ir.memory import Held
from exla.ir.program import value_bytes
from exla.passes.decisions import Rematerialize
from exla.passes.rematerialize import enumerate_rematerializations
from exla.passes.replay import replay
from tests.passes.programs import assert_computes

pytestmark = pytest.mark.usefixtures("compiled_quickly")

N, M, TURNS = 40, 30, 6
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(N, 3)), RNG.normal(size=(M, 3))
ROWS = RNG.normal(size=(TURNS, N))


def log_domain(x, y):
    """Sinkhorn's iterations: a matrix of probabilities for each turn, made of two vectors and the cost."""
    cost = ((x[:, None] - y[None]) ** 2).sum(-1)

    def turn(state, _):
        g = -jax.nn.logsumexp(state[None] - cost, 1)
        return -jax.nn.logsumexp(g[:, None] - cost, 0), g.mean()

    end, means = lax.scan(turn, jnp.zeros(len(y)), None, length=TURNS)
    return end.mean() + means.sum()


def forces(x, v):
    """A few steps of bodies that attract each other."""

    def step(state, _):
        x, v = state
        apart = x[None] - x[:, None]
        v = v + 0.01 * (apart / ((apart**2).sum(-1) + 0.1)[..., None] ** 1.5).sum(1)
        return (x + 0.01 * v, v), None

    return (lax.scan(step, (x, v), None, length=TURNS)[0][0] ** 2).sum()


def gated(weights, inputs):
    """A recurrent layer of several gates: its state is what its gates are made of."""

    def step(h, x):
        forget, add = jax.nn.sigmoid(jnp.sin(x * h)), jnp.tanh(x + h @ weights)
        return forget * h + (1 - forget) * add * jnp.cos(h), None

    h = lax.scan(step, jnp.zeros((20, N)), inputs)[0]
    return (h**2).mean()


def in_a_loop(x, y):
    """All of it in the body of another loop."""
    return lax.fori_loop(0, 2, lambda _, x: x - 0.01 * jax.grad(log_domain)(x, y), x)


def read_as_a_whole(x, y):
    """Rows of a matrix for each turn, which somebody reads all at once, and another scan backwards."""

    def turn(f, row):
        return jnp.sin(f + row), (jnp.exp(-((f[:, None] - y[:, 0]) ** 2)), f.sum())

    _, (matrices, sums) = lax.scan(turn, x[:, 0], jnp.asarray(ROWS, x.dtype), reverse=True)
    along, _ = lax.scan(lambda s, m: (s + m @ y[:, 1], None), jnp.zeros(len(x), x.dtype), matrices, reverse=True)
    return jnp.tanh(matrices).sum((0, 2)), along, sums


def the_same_on_every_turn(x, y):
    """What is stacked does not depend on the turn."""

    def turn(f, row):
        return f * row.sum(), (jnp.exp(x @ y.T) * f.sum(), jnp.cos(x @ y.T))

    _, (varying, fixed) = lax.scan(turn, x[:, 0], jnp.asarray(ROWS, x.dtype))
    return varying.sum(0), fixed.sum(0)


def two_readers(x, y):
    def turn(f, row):
        made = jnp.exp(-((f[:, None] - y[:, 0]) ** 2))
        return made.sum(1) * row, (made, jnp.sin(made))

    _, (matrices, sines) = lax.scan(turn, x[:, 0], jnp.asarray(ROWS, x.dtype))
    forth, rows = lax.scan(lambda s, m: (s + m @ y[:, 1], s), x[:, 1], matrices)
    back, _ = lax.scan(lambda s, m: (jnp.cos(s) + (m[0] * m[1]).sum(1), None), forth, (sines, matrices), reverse=True)
    return back, rows


def drawn(x, y):
    """Random numbers, drawn on each turn."""
    keys = jax.random.split(jax.random.key(0), TURNS)

    def turn(f, key):
        noisy = jnp.tanh(f[:, None] * y[:, 0]) * jax.random.normal(key, (len(x), len(y)), x.dtype)
        return noisy.sum(1), None

    return (lax.scan(turn, x[:, 0], keys)[0] ** 2).sum()


STACKS = {
    "gradient of Sinkhorn of logarithms": (jax.grad(log_domain, (0, 1)), (X, Y)),
    "gradient of forces": (jax.grad(forces, (0, 1)), (X, X * 0.1)),
    "gradient of gates": (jax.grad(gated, (0, 1)), (RNG.normal(size=(N, N)) / 6, RNG.normal(size=(TURNS, 20, N)))),
    "in a loop": (in_a_loop, (X, Y)),
    "read as a whole": (read_as_a_whole, (X, Y)),
    "the same on every turn": (the_same_on_every_turn, (X, Y)),
    "two readers": (two_readers, (X, Y)),
    "random numbers": (jax.grad(drawn, (0, 1)), (X, Y)),
}
"""Name -> (function, arguments)."""


def returned(x, y):
    rows = jnp.asarray(ROWS, x.dtype)
    matrices = lax.scan(lambda f, r: (jnp.sin(f + r), jnp.outer(f, y[:, 0])), x[:, 0], rows)[1]
    return lax.scan(lambda s, m: (s + m @ y[:, 1], None), x[:, 0], matrices)[0], matrices


def only_states(x, y):
    """A state is made of the one before, and of nothing less."""
    states = lax.scan(lambda f, r: (jnp.sin(f + r), f), x[:, 0], jnp.asarray(ROWS, x.dtype))[1]
    return lax.scan(lambda s, f: (s + jnp.cos(f), None), x[:, 0], states, reverse=True)[0]


def almost_as_much(x, y):
    """Five rows that are made of four."""

    def turn(state, row):
        a, b, c, d = state
        return (jnp.sin(d + row), a * b, b - c, c), (a + b, b * c, c - d, d * a, a / (2 + c * c))

    start = (x[:, 0], x[:, 1], x[:, 2], x[:, 0])
    made = lax.scan(turn, start, jnp.asarray(ROWS, x.dtype))[1]
    return lax.scan(lambda s, m: (s + jnp.cos(sum(m)), None), x[:, 0], made, reverse=True)[0]


def of_what_is_returned(x, y):
    """Matrices that are made of states which are returned."""

    def turn(f, row):
        return jnp.sin(f + row), (f, jnp.exp(-((f[:, None] - y[:, 0]) ** 2)))

    _, (states, matrices) = lax.scan(turn, x[:, 0], jnp.asarray(ROWS, x.dtype))
    return lax.scan(lambda s, m: (s + m @ y[:, 1], None), x[:, 0], matrices, reverse=True)[0], states


def smallest_of(x, y):
    """The gradient of a minimum knows by equality which one it was."""

    def turn(f, row):
        least = jnp.min((f[:, None] * x) @ (y * row.sum()).T, axis=1)
        return jnp.sin(0.1 * least), None

    return lax.scan(turn, x[:, 0], 0.1 * jnp.asarray(ROWS, x.dtype))[0].sum()


NONE = {"returned": returned, "only states": only_states, "almost as much": almost_as_much}


def program_of(fn, *args):
    return read(jax.make_jaxpr(fn)(*args), "cpu")


def as_float32(args):
    return [np.asarray(a, np.float32) for a in args]


def held_everywhere(program, path=()):
    """Every value of a program, as if it were live at the peak, and those of bodies."""
    for position, eqn in enumerate(program.eqns):
        for var in eqn.outvars:
            yield Held(program=program, path=path, var=var, bytes=value_bytes(var), at=position)
        for k, body in enumerate(_compat.bodies(eqn)):
            yield from held_everywhere(
                dataclasses.replace(program, jaxpr=body.jaxpr, consts=()), (*path, (position, k))
            )


def offered(program, small_bytes=0):
    return list(enumerate_rematerializations(list(held_everywhere(program)), small_bytes))


def stacked_bytes(program):
    """Bytes that the scans of a program stack, those in bodies too."""
    return sum(
        value_bytes(eqn.outvars[k])
        for eqn in dict.fromkeys(h.program.eqns[h.at] for h in held_everywhere(program))
        for k in _compat.stacked_by_scan(eqn)
        if not _compat.is_drop(eqn.outvars[k])
    )


@pytest.mark.parametrize("name", STACKS)
def test_results_are_the_same_and_less_is_stacked(name):
    fn, args = STACKS[name]
    with jax.enable_x64(True):
        program = program_of(fn, *args)
        decision = offered(program)[0]
        changed = replay(program, decision)
        assert_computes(changed, fn, args)
    assert stacked_bytes(changed) * 4 / 3 <= stacked_bytes(program)
    assert decision not in offered(changed)


@pytest.mark.parametrize("name", NONE)
def test_what_is_returned_or_made_of_nothing_less_stays(name):
    assert not offered(program_of(NONE[name], *as_float32((X, Y))))


def test_what_is_returned_is_not_kept_twice():
    program = program_of(of_what_is_returned, *as_float32((X, Y)))
    (decision,) = offered(program)
    assert stacked_bytes(replay(program, decision)) == TURNS * N * 4


def test_small_values_stay():
    fn, args = STACKS["two readers"]
    program = program_of(fn, *as_float32(args))
    assert offered(program, TURNS * N * M * 4 - 1)
    assert not offered(program, TURNS * N * M * 4)


def test_what_does_not_apply_is_a_miss():
    fn, args = STACKS["two readers"]
    program = program_of(fn, *as_float32(args))
    (decision,) = offered(program)
    for wrong in (
        dataclasses.replace(decision, site=program.site(len(program.eqns) - 1)),
        dataclasses.replace(decision, site=program.site(0)),
        dataclasses.replace(decision, path=((decision.site.position, 0),)),
    ):
        with pytest.raises(ReplayMiss):
            replay(program, wrong)


LARGE = {
    "gradient of Sinkhorn of logarithms": (jax.grad(log_domain, (0, 1)), (500, 400)),
    "gradient of forces": (jax.grad(forces, (0, 1)), (300, 300)),
}


@pytest.mark.parametrize("name", LARGE)
def test_gradients_of_loops_fit_a_tenth(name):
    fn, (rows, columns) = LARGE[name]
    args = RNG.normal(size=(rows, 3)), RNG.normal(size=(columns, 3))
    with jax.enable_x64(True):
        want = jax.tree.leaves(jax.jit(fn)(*args))
    small = as_float32(args)
    memory = jax.jit(fn).lower(*small).compile().memory_analysis()
    limit = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes // 10
    limited = exla.jit(fn, memory_limit=limit, records="off")
    plan = limited.plan(*small)
    assert plan.compiled_bytes <= limit
    assert any(isinstance(d, Rematerialize) for d in plan.decisions)
    for got, a, b in zip(limited(*small), jax.jit(fn)(*small), want, strict=True):
        assert np.abs(got - b).max() <= 4 * np.abs(a - b).max() + 1e-5 * np.abs(b).max()


def test_what_is_found_by_equality_is_not_decided_in_two_places():
    fn = jax.grad(smallest_of, (0, 1))
    args = RNG.normal(size=(300, 3)), RNG.normal(size=(400, 3))
    small = as_float32(args)
    want = jax.jit(fn)(*small)
    space = exla.jit(fn, memory_limit="1MiB", records="off").space(*small)
    changed = [c for c in space.uncut if any(isinstance(d, Rematerialize) for d in c.decisions)]
    steady = [c.program for c in changed if space.is_steady(c)]
    assert steady
    for program in steady:
        got = jax.jit(lambda *xs, p=program: emit(p, {})(*p.consts, *xs))(*small)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * np.abs(b).max())
