"""A big sum that a loop carries is made after it, of small rows, and is the same sum."""

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
from exla.ir.program import value_bytes
from exla.ir.scans import Scan
from exla.ir.smallest import smallest_values
from exla.passes.collect import enumerate_collections
from exla.passes.decisions import Collect
from exla.passes.replay import replay
from tests.passes.programs import assert_computes

pytestmark = pytest.mark.usefixtures("compiled_quickly")

N, M, TURNS = 60, 50, 4
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(N, 3)), RNG.normal(size=(M, 3))
U, V = RNG.normal(size=(TURNS, N)), RNG.normal(size=(TURNS, M))
B = RNG.normal(size=N)


def kernel(x, y):
    return jnp.exp(-((x[:, None] - y[None]) ** 2).sum(-1))


def sinkhorn(x, y):
    k = kernel(x, y)

    def turn(_, scales):
        _, v = scales
        u = 1 / len(x) / (k @ v)
        return u, 1 / len(y) / (k.T @ u)

    u, v = lax.fori_loop(0, TURNS, turn, (jnp.ones(len(x)), jnp.ones(len(y))))
    return (u[:, None] * k * v * ((x[:, None] - y[None]) ** 2).sum(-1)).sum()


def conjugate_gradients(x, b):
    k = kernel(x, x)

    def turn(state, _):
        solution, rest, along, size = state
        image = k @ along + 0.1 * along
        step = size / (along @ image)
        rest = rest - step * image
        return (solution + step * along, rest, rest + rest @ rest / size * along, rest @ rest), None

    (solution, *_), _ = lax.scan(turn, (jnp.zeros_like(b), b, b, b @ b), None, length=TURNS)
    return b @ solution


def log_domain(x, y):
    cost = ((x[:, None] - y[None]) ** 2).sum(-1)

    def turn(state, _):
        g = -jax.nn.logsumexp(state[None] - cost, 1)
        return -jax.nn.logsumexp(g[:, None] - cost, 0), g.mean()

    end, means = lax.scan(turn, jnp.zeros(M), None, length=TURNS)
    return end.mean() + means.sum()


def over_turns(term, start=None, **how):
    """A loop that adds a term of each turn's row of two vectors, and the sum's exponential."""

    def loop(u, v):
        def turn(total, row):
            return term(total, *row), row[0].sum()

        begin = jnp.zeros((N, M), u.dtype) if start is None else start(u, v)
        total, sums = lax.scan(turn, begin, (u, v), **how)
        return jnp.exp(-(total**2)).sum(1), sums

    return loop


SUMS = {
    "gradient of Sinkhorn": (jax.grad(sinkhorn, (0, 1)), (X, Y)),
    "gradient of conjugate gradients": (jax.grad(conjugate_gradients, (0, 1)), (X, B)),
    "gradient of Sinkhorn of logarithms": (jax.grad(log_domain, (0, 1)), (X, Y)),
    "outer products": (over_turns(lambda s, u, v: s + jnp.outer(u, v)), (U, V)),
    "products of broadcasts": (over_turns(lambda s, u, v: u[:, None] * v + s), (U, V)),
    "differences": (over_turns(lambda s, u, v: s - jnp.outer(u, v)), (U, V)),
    "several terms": (over_turns(lambda s, u, v: s + jnp.outer(u, v) - jnp.outer(u * u, v) + 1.5), (U, V)),
    "backwards": (over_turns(lambda s, u, v: s + jnp.outer(u, v), reverse=True), (U, V)),
    "two turns at once": (over_turns(lambda s, u, v: s + jnp.outer(u, v), unroll=2), (U, V)),
    "from what is not zero": (
        over_turns(lambda s, u, v: s + jnp.outer(u, v), lambda u, v: jnp.outer(u[0], v[1])),
        (U, V),
    ),
    "transposed, scaled and negated": (over_turns(lambda s, u, v: s + -(jnp.outer(v, u).T * 0.5) / 3.0), (U, V)),
    "sums of linear maps": (over_turns(lambda s, u, v: s + (jnp.outer(u, v) - jnp.outer(2.0 * u, v))[::-1]), (U, V)),
    "not linear": (over_turns(lambda s, u, v: s + jnp.cos(jnp.outer(u, v))), (U, V)),
    "over sums": (over_turns(lambda s, u, v: s + u.sum() / (1 + jnp.outer(u, v) ** 2)), (U, V)),
    "divided by what varies": (over_turns(lambda s, u, v: s + 2.0 / (2 + jnp.outer(u, v) ** 2)), (U, V)),
    "the same on every turn": (over_turns(lambda s, u, v: s + jnp.outer(jnp.arange(N), jnp.ones(M)) + u.sum()), (U, V)),
    "contracted": (over_turns(lambda s, u, v: s + jnp.stack([u, u * u], 1) @ jnp.stack([v, v + 1])), (U, V)),
    "masked by indices": (
        over_turns(lambda s, u, v: s + jnp.where(jnp.arange(N)[:, None] >= jnp.arange(M), jnp.outer(u, v), 0)),
        (U, V),
    ),
}
"""Name -> (function, arguments): loops with one sum each that can be made after them."""


def with_a_counter(x, y):
    """A sum of several kernels, of the number of the turn."""
    add = lambda i, total: total + jnp.cos((1.0 + i) * (x @ y.T))  # noqa: E731
    return lax.fori_loop(0, TURNS, add, jnp.zeros((N, M))).sum(1)


def in_a_loop(x, y):
    """The sum is in the body of another loop."""
    outer = lambda y, _: (y + with_a_counter(x, y)[:M, None] * 1e-3, None)  # noqa: E731
    return lax.scan(outer, y, None, length=2)[0]


def counted(u, v):
    """A sum of whole numbers."""
    turn = lambda total, row: (total + jnp.outer(*row), None)  # noqa: E731
    return lax.scan(turn, jnp.zeros((N, M), jnp.int32), (u, v))[0]


WHOLE = (U * 9).astype(np.int32), (V * 9).astype(np.int32)
SUMS |= {
    "of the turn's number": (with_a_counter, (X, Y)),
    "in a loop": (in_a_loop, (X, Y)),
    "whole numbers": (counted, WHOLE),
}


def read_on_the_way(u, v):
    def turn(total, row):
        return total + jnp.outer(*row), total[0, 0]

    return lax.scan(turn, jnp.zeros((N, M)), (u, v))


def stacked_as_well(u, v):
    def turn(total, row):
        total = total + jnp.outer(*row)
        return total, total.sum(1)

    return lax.scan(turn, jnp.zeros((N, M)), (u, v))


def decaying(u, v):
    return over_turns(lambda s, u, v: 0.9 * s + jnp.outer(u, v))(u, v)


def large_terms(u, v):
    """The next state is as large as the sum."""

    def turn(state, row):
        total, matrix = state
        return (total + matrix, jnp.cos(matrix) * row[0][:, None]), None

    return lax.scan(turn, (jnp.zeros((N, M)), jnp.ones((N, M))), (u, v))[0]


def of_the_largest(u, v):
    """What is compared with its own maximum is not computed in two places."""

    def turn(total, row):
        distances = kernel(row[0][:, None], row[1][:, None])
        return total + jnp.where(distances == distances.max(1)[:, None], row[1].sum(), 0.0), None

    return lax.scan(turn, jnp.zeros((N, M)), (u, v))[0]


def never_read(u, v):
    def turn(state, row):
        return (state[0] + jnp.outer(*row), state[1] + row[0]), None

    return lax.scan(turn, (jnp.zeros((N, M)), jnp.zeros(N)), (u, v))[0][1]


NONE = [read_on_the_way, stacked_as_well, decaying, large_terms, of_the_largest]


def program_of(fn, *args):
    return read(jax.make_jaxpr(fn)(*args), "cpu")


def as_float32(args):
    return [np.asarray(a, a.dtype if a.dtype.kind == "i" else np.float32) for a in args]


def most_carried_bytes(program):
    """Bytes of the largest value that a scan of a program carries, those of bodies too."""
    most = 0
    for eqn in program.eqns:
        scan = Scan.of(eqn)
        if scan is not None:
            most = max([most, most_carried_bytes(scan.body), *map(value_bytes, scan.carried)])
    return most


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_is_the_same_and_no_loop_carries_it(name):
    fn, args = SUMS[name]
    with jax.enable_x64(True):
        program = program_of(fn, *args)
        (decision,) = enumerate_collections(program)
        collected = replay(program, decision)
        assert_computes(collected, fn, args)
    assert most_carried_bytes(program) >= N * M * 4 > 4 * most_carried_bytes(collected)
    assert not list(enumerate_collections(collected))


@pytest.mark.parametrize("fn", NONE, ids=lambda f: f.__name__)
def test_other_loops_stay_as_they_are(fn):
    assert not list(enumerate_collections(program_of(fn, *as_float32((U, V)))))


def test_a_sum_that_nobody_reads_is_no_longer_there():
    program = program_of(never_read, *as_float32((U, V)))
    (decision,) = enumerate_collections(program)
    (scan,) = (e for e in program.eqns if e.primitive.name == "scan")
    assert (decision.result, len(scan.outvars)) == (0, 1)


def test_nothing_is_collected_in_narrow_types_and_of_a_single_turn():
    fn, args = SUMS["outer products"]
    assert not list(enumerate_collections(program_of(fn, *(jnp.asarray(a, jnp.bfloat16) for a in args))))
    assert not list(enumerate_collections(program_of(fn, *(a[:1] for a in as_float32(args)))))


def test_rows_must_be_small_beside_the_sum():
    fn, _ = SUMS["outer products"]
    few, many = (program_of(lambda u: fn(u, u[:, :M]), jnp.ones((turns, N))) for turns in (4, 4000))
    cut = lambda p: [d for d in enumerate_collections(p)]  # noqa: E731
    assert len(cut(few)) == len(cut(many)) == 1, "rows of operands are there anyway"
    computed = over_turns(lambda s, u, v: s + jnp.outer(jnp.cos(u), jnp.cos(v)) ** 2)
    (decision,) = cut(program_of(computed, *as_float32((U, V))))
    assert decision.result == 0
    carried = lambda u, v: lax.scan(  # noqa: E731
        lambda s, _: ((s[0] + jnp.outer(s[1], s[2]), jnp.cos(s[1]), jnp.cos(s[2])), None),
        (jnp.zeros((N, M)), u[0], v[0]),
        None,
        length=N * M,
    )[0][0]
    assert not cut(program_of(carried, *as_float32((U, V))))


def test_a_term_that_was_multiplied_in_full_precision_still_is():
    program = program_of(over_turns(lambda s, u, v: s + jnp.tensordot(u, v, 0)), *as_float32((U, V)))
    collected = replay(program, next(enumerate_collections(program)))
    (product,) = [e for e in collected.eqns if e.primitive.name == "dot_general"]
    assert set(product.params["precision"]) == {lax.Precision.HIGHEST}
    assert product.params["dimension_numbers"] == (((0,), (0,)), ((), ()))


def test_what_does_not_apply_is_a_miss():
    fn, args = SUMS["outer products"]
    program = program_of(fn, *as_float32(args))
    decision = next(enumerate_collections(program))
    for wrong in (
        dataclasses.replace(decision, result=1),
        dataclasses.replace(decision, result=-1),
        dataclasses.replace(decision, result=99),
        dataclasses.replace(decision, site=program.site(0 if decision.site.position else 1)),
        dataclasses.replace(decision, path=((0, 0),)),
    ):
        with pytest.raises(ReplayMiss):
            replay(program, wrong)


def asked(fn, args, share, **options):
    """`exla.jit` of a function with room for a share of what `jax.jit` needs beside arguments and results."""
    memory = jax.jit(fn).lower(*args).compile().memory_analysis()
    fixed = memory.argument_size_in_bytes + memory.output_size_in_bytes
    limit = int(fixed + share * memory.temp_size_in_bytes)
    return exla.jit(fn, memory_limit=limit, records="off", **options), limit


@pytest.mark.parametrize("name", ["gradient of Sinkhorn", "gradient of conjugate gradients"])
def test_gradients_of_loops_that_read_a_kernel_fit_a_tenth(name):
    fn, args = {
        "gradient of Sinkhorn": (
            jax.grad(sinkhorn, (0, 1)),
            (RNG.normal(size=(N * 10, 3)), RNG.normal(size=(M * 10, 3))),
        ),
        "gradient of conjugate gradients": (
            jax.grad(conjugate_gradients, (0, 1)),
            (RNG.normal(size=(N * 6, 3)), RNG.normal(size=N * 6)),
        ),
    }[name]
    with jax.enable_x64(True):
        want = jax.tree.leaves(jax.jit(fn)(*args))
    small = as_float32(args)
    limited, limit = asked(fn, small, 0.1)
    plan = limited.plan(*small)
    assert any(isinstance(d, Collect) for d in plan.decisions)
    assert plan.compiled_bytes <= limit
    plain = jax.tree.leaves(jax.jit(fn)(*small))
    for got, a, b in zip(jax.tree.leaves(limited(*small)), plain, want, strict=True):
        error = lambda value, b=b: np.abs(value - b).max() / np.abs(b).max()  # noqa: E731
        assert error(got) <= 4 * error(a) + 1e-5


def test_nothing_is_collected_where_every_bit_must_stay():
    fn, args = SUMS["outer products"]
    for numerics, count in (("exact", 0), ("reassociate", 1)):
        limited = exla.jit(fn, memory_limit="1MiB", numerics=numerics, records="off")
        decisions = limited.space(*as_float32(args)).starts[-1].decisions
        assert sum(isinstance(d, Collect) for d in decisions) == count


def test_the_smallest_values_are_found_next_to_what_is_wanted():
    def turn(a, b):
        c = jnp.cos(a)  # as small as a, and nearer
        d = jnp.tensordot(c, b, 0)
        return d + c[:, None], d, d.sum(1) * 2.0, d > d.T[: d.shape[0]]

    program = program_of(turn, jnp.ones(N), jnp.ones(N))
    first, second, third, above = program.outvars
    c = program.eqns[0].outvars[0]
    _, b = program.invars
    varies = frozenset([*program.invars, *(v for e in program.eqns for v in e.outvars)])
    find = lambda wanted, free=frozenset(): set(smallest_values(program, wanted, varies, free))  # noqa: E731
    assert find([first]) == {c, b}
    assert find([first, second]) == {c, b}
    assert find([third]) == {third}
    assert find([third, first]) == {c, b}
    assert find([above]) == {above}, "it is not decided again what is larger"
    assert find([first], frozenset([first])) == {first}
    assert find([]) == set()
    assert smallest_values(program, [first], frozenset(), frozenset()) == []


def test_scans_in_both_releases_can_be_made_anew():
    fn, args = SUMS["backwards"]
    (scan,) = [e for e in program_of(fn, *as_float32(args)).eqns if e.primitive.name == "scan"]
    assert _compat.scan_options(scan) == {"length": TURNS, "reverse": True, "unroll": 1}


def test_long_chains_are_no_matter():
    def term(total, u, v):
        for k in range(400):
            u = jnp.sin(u) if k % 2 else u + v.sum()
        product = jnp.tensordot(u, v, 0)
        return total + sum((product * k for k in range(400)), start=product)

    program = program_of(over_turns(term), *as_float32((U, V)))
    (decision,) = enumerate_collections(program)
    collected = replay(program, decision)
    plain = jax.jit(over_turns(term))(*as_float32((U, V)))
    for a, b in zip(emit(collected, {})(*collected.consts, *as_float32((U, V))), plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)


def likelihood(emitted, positions, scale, stay):
    """A hidden Markov model that stays where it is or moves to what is near: its log-likelihood."""
    distances = jnp.sum(jnp.abs(positions[:, None] - positions[None]), axis=-1)
    moves = jax.nn.log_softmax(stay * jnp.eye(len(positions)) - distances / scale, axis=1)

    def turn(alpha, emission):
        return jax.nn.logsumexp(alpha[:, None] + moves, axis=0) + emission, None

    return jax.nn.logsumexp(jax.lax.scan(turn, emitted[0] - jnp.log(len(positions)), emitted[1:])[0])


def test_what_cancels_is_as_accurate_as_without_a_cap():
    """What a row of moves has gained is taken from all of it again: a sum of sums that is off by 3e-7 shows."""
    fn = jax.grad(likelihood, argnums=(2, 3))
    worst = {"plain": np.zeros(2), "capped": np.zeros(2)}
    for seed in (0, 1, 5):
        rng = np.random.default_rng(seed)
        arguments = rng.standard_normal((24, 300)), rng.uniform(0, 10, (300, 2)), rng.uniform(0.5, 2), rng.uniform()
        args = tuple(np.float32(a) for a in arguments)
        with jax.enable_x64(True):
            want = np.array(fn(*(np.float64(a) for a in args)))
        for name, jitted in {"plain": jax.jit(fn), "capped": exla.jit(fn, memory_limit="1050KiB")}.items():
            worst[name] = np.maximum(worst[name], abs(np.array(jitted(*args), np.float64) - want))
    assert (worst["capped"] <= 4 * worst["plain"] + 1e-7).all(), worst
