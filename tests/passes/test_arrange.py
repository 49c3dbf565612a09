"""What products would copy on every trip is transposed before the loop; operands stand in the cheaper order."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import exla
from exla.call import read
from exla.errors import ReplayMiss
from exla.ir.emit import emit
from exla.ir.memory import Storing, project
from exla.ir.products import copied_bytes
from exla.passes.arrange import enumerate_arrangements
from exla.passes.decisions import Arrange, Growth, Split, Swap, from_json, to_json
from exla.passes.replay import replay
from exla.passes.split.decide import apply_seed, enumerate_splits
from exla.passes.swap import enumerate_swaps
from exla.passes.unless import EXPANSIONS
from exla.search.space import Space
from exla.targets.hlo_text import hlo_hash
from exla.targets.machine import Machine

SHAPE = (150, 4, 16)


def attention(q, k, v):
    weights = jax.nn.softmax(jnp.einsum("qhd,khd->hqk", q, k) / 4, axis=-1)
    return jnp.einsum("hqk,khd->qhd", weights, v)


def bilinear(q, k, v):
    return jnp.tanh(jnp.einsum("qhd,khd->qhk", q, k)).sum(-1) + v.sum(-1)


def keys_also_added(q, k, v):
    """What is multiplied is read by something else inside the loop as well."""
    scores = jnp.einsum("qhd,khd->qhk", q, k) + jnp.sum(k**2, -1).T
    return jnp.exp(-scores).sum(-1) + v.sum(-1)


def arrays(seed=0, dtype=np.float32):
    generator = np.random.default_rng(seed)
    return [generator.standard_normal(SHAPE).astype(dtype) for _ in range(3)]


def program_of(fn, *args):
    return read(jax.make_jaxpr(fn)(*(args or arrays())), "cpu")


def split(fn, axis_size, chunk, **growth):
    """A program with its largest value cut along the axis of a size."""
    program = program_of(fn)
    held = project(program, Storing(fused=False)).held
    how = [Growth(small_bytes=50_000, **growth)]
    seed = next(s for s in enumerate_splits(program, held, how) if s.region.size == axis_size)
    return apply_seed(program, seed, chunk)


def run(program, *args):
    return jax.jit(emit(program, EXPANSIONS))(*args)[0]


def all_arranged(program):
    decisions = []
    while (found := next(enumerate_arrangements(program), None)) is not None:
        program = replay(program, found)
        decisions.append(found)
    return program, decisions


def whole_copies_in_loops(text, elements):
    """Copies and transpositions of a whole operand in the bodies of while loops."""
    bodies = re.findall(r"^%?region_\S+ .*?^}", text, flags=re.M | re.S)
    shapes = [s for b in bodies for s in re.findall(r"(?:copy|transpose)(?!_dynamic-update)\S* = f32\[([\d,]+)\]", b)]
    return [s for s in shapes if np.prod([int(d) for d in s.split(",")]) >= elements]


@pytest.mark.parametrize("chunk", [1, 16, 50, 64])
def test_operands_are_transposed_before_the_loop_and_no_bit_changes(chunk):
    before = split(attention, SHAPE[0], chunk)
    after, decisions = all_arranged(before)
    assert len(decisions) == 2  # the keys and the values
    args = arrays()
    np.testing.assert_array_equal(run(before, *args), run(after, *args))
    assert not list(enumerate_arrangements(after))
    outside = [eqn for eqn in after.eqns if eqn.primitive.name == "transpose" and eqn.invars[0] in after.invars]
    assert len(outside) == 2 and all(eqn.outvars[0].aval.shape[0] == SHAPE[1] for eqn in outside)


def test_an_operand_of_a_loop_within_a_loop_is_transposed_before_the_outer_one():
    program = split(attention, SHAPE[0], 50)
    path = ((next(i for i, e in enumerate(program.eqns) if e.primitive.name == "exla_split"), 0),)
    held = [h for h in project(program, Storing(fused=False)).held if h.path == path]
    inner = [s for s in enumerate_splits(program, held, [Growth(small_bytes=50_000)]) if s.region.size == 50]
    twice = apply_seed(program, inner[0], 20)
    arranged, decisions = all_arranged(twice)
    assert decisions and all(d.path == () for d in decisions)
    np.testing.assert_array_equal(run(twice, *arrays()), run(arranged, *arrays()))


def test_a_value_that_two_loops_multiply_is_transposed_once():
    before = split(lambda q, k, v: attention(q, k, k), SHAPE[1], 2)
    assert not list(enumerate_arrangements(before))  # heads are cut: each trip multiplies its own keys
    along_keys = split(lambda q, k, v: attention(q, k, k), SHAPE[0], 50, again=True)
    arranged, _ = all_arranged(along_keys)
    made = [(id(e.invars[0]), e.params["permutation"]) for e in arranged.eqns if e.primitive.name == "transpose"]
    assert len(made) == len(set(made))
    np.testing.assert_array_equal(run(along_keys, *arrays()), run(arranged, *arrays()))


def test_what_something_else_reads_stays_as_it_lies():
    assert list(enumerate_arrangements(split(bilinear, SHAPE[0], 50)))
    program = split(keys_also_added, SHAPE[0], 50)
    loops = [e.params["loop"] for e in program.eqns if e.primitive.name == "exla_split"]
    read_twice = [
        v for loop in loops for v, _, p in loop.inputs(loop.body) if p is None and len(loop.body.consumers[v]) > 1
    ]
    assert not read_twice or not list(enumerate_arrangements(program))


def in_two_orders(q, k, v):
    """Two products want `k` as (d, k, h), in which the last would give its result in another order."""
    near = jnp.exp(q[:, 0, :1]) * jnp.ones(len(k))
    weights = jnp.exp(2 * near)[:, :, None] * v.mean(1)
    first, second = (jax.lax.dot_general(f(weights), k, (((1,), (0,)), ((2,), (2,)))) for f in (jnp.sin, jnp.cos))
    last = jax.lax.dot_general(near, k, (((1,), (0,)), ((), ())))  # (q, h, d)
    return jnp.tanh(first + second).sum((0, 2)) + jnp.tanh(last).sum((1, 2))


def test_an_order_that_another_product_cannot_read_is_not_taken():
    program = split(in_two_orders, SHAPE[0], 50)
    arranged, _ = all_arranged(program)
    np.testing.assert_array_equal(run(program, *arrays()), run(arranged, *arrays()))


def test_an_arrangement_that_does_not_apply_is_a_miss():
    program = split(attention, SHAPE[0], 50)
    decision = next(enumerate_arrangements(program))
    assert from_json(to_json(decision)) == decision
    for wrong in (
        dataclasses.replace(decision, operand=99),
        dataclasses.replace(decision, operand=-1),
        dataclasses.replace(decision, site=dataclasses.replace(decision.site, fingerprint="0")),
        dataclasses.replace(decision, site=dataclasses.replace(decision.site, position=99)),
        dataclasses.replace(decision, path=((99, 0),)),
    ):
        with pytest.raises(ReplayMiss):
            replay(program, wrong)
    with pytest.raises(ReplayMiss):
        replay(replay(program, decision), decision)
    with pytest.raises(ValueError, match="operand"):
        from_json({**to_json(decision), "operand": "all"})


def attention_space(**options):
    q = jax.ShapeDtypeStruct((2048, 4, 32), jnp.float32)  # 1 MiB
    return exla.jit(attention, memory_limit="12MiB", **options).space(q, q, q)


def test_the_plan_obeys_copies_nothing_whole_in_its_loop_and_replays(tmp_path):
    generator = np.random.default_rng(1)
    args = [generator.standard_normal((2048, 4, 32), dtype=np.float32) for _ in range(3)]
    f = exla.jit(attention, memory_limit="12MiB", search="analytic", records="off")
    plan = f.plan(*args)
    assert plan.compiled_bytes <= 12 << 20
    assert sum(isinstance(d, Arrange) for d in plan.decisions) == 2
    assert not whole_copies_in_loops(plan.compiled.as_text(), args[0].size)
    with jax.enable_x64(True):
        want = attention(*(jnp.asarray(a, jnp.float64) for a in args))
    np.testing.assert_allclose(f(*args), want, rtol=1e-4, atol=1e-5)
    compiled = exla.compile(attention, args, memory_limit="12MiB", search="analytic")
    exla.save(compiled, tmp_path / "plan.json")
    loaded = exla.load(tmp_path / "plan.json", attention, args)
    assert hlo_hash(loaded.as_text()) == hlo_hash(compiled.as_text())


def test_what_does_not_fit_beside_the_chunks_is_not_transposed():
    space = attention_space()
    candidate = next(c for c in space.ranked(space.root) if c.splits and not _kinds(c, Arrange))
    arranged = space.arranged(candidate, dataclasses.replace(space.goal, bytes=1 << 40))
    assert arranged is not None and len(_kinds(arranged, Arrange)) == 2
    assert arranged.peak.temporary_bytes >= 2 << 20
    floor = candidate.peak.arguments_bytes + candidate.peak.outputs_bytes
    assert space.arranged(candidate, dataclasses.replace(space.goal, bytes=floor + (1 << 19))) is None


def test_nothing_is_transposed_or_swapped_under_exact_or_where_products_copy_nothing():
    space = attention_space(numerics="exact")
    assert not space.rewritten.decisions
    assert not any(_kinds(c, Arrange) for c in space.ranked(space.root))
    space = attention_space()
    elsewhere = Space(program=space.program, goal=space.goal, machine=Machine(product_passes=1))
    assert not _kinds(elsewhere.rewritten, Swap)
    assert not any(_kinds(c, Arrange) for c in elsewhere.ranked(elsewhere.root))


def _kinds(candidate, kind):
    return [d for d in candidate.decisions if isinstance(d, kind)]


def probabilities_on_the_right(q, k, v):
    """Queries by keys, contracted along their last axis, on the right of the values."""
    weights = jnp.exp(-(jnp.einsum("qhd,khd->hqk", q, k) ** 2))
    return jax.lax.dot_general(v, weights, (((0,), (2,)), ((1,), (0,)))).sum(1)


def columns_on_the_left(x, y):
    return jnp.exp(x).T @ y


@pytest.mark.parametrize("fn", [attention, probabilities_on_the_right])
def test_the_large_computed_operand_is_read_as_it_lies(fn):
    program = program_of(fn)
    (decision,) = enumerate_swaps(program)
    assert from_json(to_json(decision)) == decision
    swapped = replay(program, decision)
    copied = [sum(copied_bytes(p, e) for e in p.eqns if e.primitive.name == "dot_general") for p in (program, swapped)]
    assert copied[1] <= copied[0] - 4 * SHAPE[0] ** 2 * SHAPE[1]
    assert not list(enumerate_swaps(swapped))
    with jax.enable_x64(True):
        want = fn(*(jnp.asarray(a, jnp.float64) for a in arrays()))
    np.testing.assert_allclose(run(swapped, *arrays()), want, rtol=1e-4, atol=1e-5)


def test_a_swap_that_does_not_apply_is_a_miss():
    program = program_of(attention)
    (decision,) = enumerate_swaps(program)
    no_product = next(i for i, eqn in enumerate(program.eqns) if eqn.primitive.name != "dot_general")
    for wrong in (
        dataclasses.replace(decision, site=program.site(no_product)),
        dataclasses.replace(decision, site=dataclasses.replace(decision.site, fingerprint="0")),
        dataclasses.replace(decision, site=dataclasses.replace(decision.site, position=-1)),
    ):
        with pytest.raises(ReplayMiss):
            replay(program, wrong)


def test_inputs_are_multiplied_as_they_come():
    x, y = np.ones((30, 20), np.float32), np.ones((40, 20), np.float32)
    assert not list(enumerate_swaps(program_of(lambda a, b: a @ b.T, x, y)))
    assert not list(enumerate_swaps(program_of(columns_on_the_left, x, np.ones((30, 3), np.float32))))


def test_splits_and_arrangements_are_said_in_words():
    plan = exla.jit(attention, memory_limit="12MiB", search="analytic", records="off").plan(
        *(np.ones((2048, 4, 32), np.float32),) * 3
    )
    assert any(isinstance(d, Split) for d in plan.decisions)
    assert any("before it" in words for words in plan.words)


def projections(x, w):
    """Sorted along the axis that the second product sums, so only its columns can be cut."""
    return x.T @ jnp.sort(x @ w, axis=0)


def cosines_too(x, w):
    """What is transposed is read by something other than a product as well."""
    turned = x.T
    return turned @ jnp.sort(x @ w, axis=0) + jnp.sum(jnp.cos(turned), axis=1, keepdims=True)


def in_batches(x, w):
    """Were it read as it lies, the batch would not lead."""
    turned = x.reshape(-1, 4, 8).transpose(1, 2, 0)
    scales = jnp.arange(1.0, 5)[:, None, None]
    return jnp.einsum("bdn,bnc->bdc", turned, scales * jnp.sort(x @ w, axis=0))


def a_result_too(x, w):
    turned = x.T
    return turned @ jnp.sort(x @ w, axis=0), turned


def matrices(rows=2000, columns=32, results=24):
    generator = np.random.default_rng(0)
    return (
        generator.random((rows, columns), np.float32),
        generator.random((columns, results), np.float32),
    )


@pytest.mark.parametrize(
    ("fn", "is_turned"),
    [
        (projections, False),
        (lambda x, w: x.T @ jnp.sort(x @ w, axis=0) + x.T @ jnp.ones((x.shape[0], w.shape[1])), False),
        (cosines_too, True),
        (in_batches, True),
        (a_result_too, True),
    ],
    ids=["one product", "two products", "a cosine too", "in batches", "a result too"],
)
def test_loops_multiply_what_is_transposed_as_it_lies(fn, is_turned):
    args = matrices()
    program = program_of(fn, *args)
    held = project(program, Storing(fused=False)).held
    seed = next(s for s in enumerate_splits(program, held, [Growth(small_bytes=50_000)]) if s.region.size == 24)
    after = apply_seed(program, seed, 5)
    (loop,) = [eqn for eqn in after.eqns if eqn.primitive.name == "exla_split"]
    turned = [eqn.outvars[0] for eqn in after.eqns if eqn.primitive.name == "transpose"]
    assert any(v in turned for v in loop.invars) == is_turned
    want = jax.tree.leaves(jax.jit(fn)(*args))[0]
    np.testing.assert_allclose(run(after, *args), want, rtol=1e-5)


def test_a_matrix_that_is_multiplied_both_ways_is_there_once():
    args = matrices(rows=20_000, columns=64, results=256)
    compiled = exla.compile(projections, args, memory_limit=args[0].nbytes + 800_000)
    assert compiled.plan.compiled_bytes <= args[0].nbytes + 800_000
    x, w = (a.astype(np.float64) for a in args)
    want = x.T @ np.sort(x @ w, axis=0)
    assert np.abs(compiled(*args) - want).max() / want.max() < 5e-7
