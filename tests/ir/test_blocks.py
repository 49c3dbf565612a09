"""Long reductions in blocks: which are, that they compute the same, and what is stored of them."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import exla
from exla.call import read
from exla.ir import emit as emitting
from exla.ir.blocks import Alone, Apart, Block, Parts, Turned, Wide, block_of, blocks_in, first_axis, parts_of
from exla.ir.emit import emit
from exla.ir.memory import project
from exla.ir.primitives import WINDOWED
from exla.ir.program import Program
from exla.ir.storing import Storing
from exla.options import Options
from exla.passes.unless import EXPANSIONS
from exla.search.attempt import Attempt
from exla.search.choice import Call
from exla.search.cost import storing_of
from exla.targets.base import compile_for, find_target
from exla.targets.cpu import NO_YNN
from exla.targets.machine import Machine

REDUCERS = {"sum": jnp.sum, "max": jnp.max, "min": jnp.min}
PASSES = "reduce-window("
"""What XLA:CPU makes of a long reduction."""


def program_of(fn, *shapes: tuple[int, ...], dtype=np.float32) -> Program:
    return read(jax.make_jaxpr(fn)(*(jax.ShapeDtypeStruct(s, dtype) for s in shapes)), "cpu")


def the_block(fn, *shapes: tuple[int, ...], dtype=np.float32) -> Block | None:
    """How the only long reduction of a function is written."""
    program = program_of(fn, *shapes, dtype=dtype)
    (found,) = [block_of(program, eqn) for eqn in program.eqns if eqn.primitive.name in WINDOWED]
    return found


@pytest.mark.parametrize(
    ("shape", "axes", "wanted"),
    [
        ((4, 4000), (1,), Block(1, 8)),
        ((4, 33), (1,), None),  # 11 blocks of 3 are no vectors
        ((4, 36), (1,), Block(1, 6)),
        ((4, 37), (1,), None),  # prime
        ((4, 32), (1,), None),  # one pass
        ((250, 2000), (0, 1), Block(0, 10)),
        ((60, 128, 16), (1, 2), Block(1, 8)),
        ((60, 7, 128), (1, 2), Block(2, 8)),
        ((1000, 64), (0,), Block(0, 8, is_along=False)),
        ((500, 64, 16), (1,), None),
        ((1000, 3), (0,), None),
        ((4000,), (0,), Block(0, 8)),
        ((0, 4000), (1,), Block(1, 8)),
    ],
)
def test_which_axis_is_reduced_in_how_many_blocks(shape, axes, wanted):
    assert the_block(lambda x: jnp.sum(x, axis=axes), shape) == wanted


@pytest.mark.parametrize(
    ("shape", "axes", "wanted"),
    [
        ((4, 37), (1,), None),  # one axis
        ((37, 41), (0, 1), 1),
        ((37, 3, 41), (0, 2), 2),
        ((37, 41, 3), (0, 1), 1),
        ((37, 1), (0, 1), None),
        ((31, 32), (0, 1), None),  # one pass
        ((40, 4000), (0, 1), None),  # in blocks
    ],
)
def test_which_axis_of_several_is_summed_first(shape, axes, wanted):
    program = program_of(lambda x: lax.reduce_sum(x, axes), shape)
    (eqn,) = program.eqns
    assert first_axis(program, eqn) == wanted
    assert blocks_in(program).get(eqn.outvars[0]) == (block_of(program, eqn) if wanted is None else Apart(wanted))
    (largest,) = program_of(lambda x: lax.reduce_max(x, axes), shape).eqns
    assert first_axis(program, largest) is None


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((509, 509), (0, 1)), ((509, 4, 509), (0, 2)), ((40, 112, 112), (0, 1, 2)), ((8, 97, 97, 3), (0, 1, 2))],
)
def test_a_sum_over_several_axes_rounds_little(shape, axes):
    """A window over two axes, or over three, would add a thousand numbers one after the other."""
    x = np.random.default_rng(0).random(shape).astype(np.float32) + 1
    program = program_of(lambda x: jnp.sum(jnp.sqrt(x), axis=axes), shape)
    compiled = jax.jit(emit(program, EXPANSIONS, in_blocks=True)).lower(x).compile(compiler_options=NO_YNN)
    np.testing.assert_allclose(compiled(x)[0], np.sqrt(x.astype(np.float64)).sum(axis=axes), rtol=2.5e-7)


@pytest.mark.parametrize(
    ("between", "is_alone"),
    [
        (lambda x: x, True),
        (lambda x: -(jnp.zeros(x.shape) + x), True),
        (lambda x: x.reshape(4, 2, -1), True),
        (lambda x: 1 + x, False),
        (jnp.square, False),
    ],
    ids=["as it is", "with another sign, and 0 added", "in another shape", "with 1 added", "squared"],
)
def test_a_sum_of_sums_is_made_in_two(between, is_alone):
    """XLA would make one of both, and add 31 x 32 numbers in a row."""
    x = np.full((31, 8, 1000), 1.1, np.float32)
    program = program_of(lambda x: jnp.sum(between(jnp.sum(x, axis=0)), axis=-1), x.shape)
    assert (Alone() in blocks_in(program).values()) == is_alone
    compiled = jax.jit(emit(program, EXPANSIONS, in_blocks=True)).lower(x).compile(compiler_options=NO_YNN)
    with jax.enable_x64(True):
        want = jnp.sum(between(jnp.sum(x.astype(np.float64), axis=0)), axis=-1)
    np.testing.assert_allclose(compiled(x)[0], want, rtol=2e-6)


def test_short_sums_of_sums_are_left():
    assert not blocks_in(program_of(lambda x: jnp.sum(jnp.sum(x, axis=0), axis=1), (4, 100, 8)))


PRODUCTS = [
    ("nm,n->m", (20_000, 64), (20_000,), Parts(0, 80)),
    ("n,nm->m", (20_000,), (20_000, 64), Parts(1, 80)),
    ("nm,nk->mk", (20_000, 64), (20_000, 1), Parts(0, 80)),
    ("nk,nm->km", (20_000, 1), (20_000, 64), Parts(1, 80)),
    ("bnm,bn->bm", (3, 20_000, 8), (3, 20_000), Parts(0, 80)),
    ("anm,an->m", (8, 2000, 8), (8, 2000), Parts(0, 8)),
    ("anm,na->m", (40, 200, 8), (200, 40), Parts(0, 40)),
    ("nmq,n->mq", (2000, 8, 5), (2000,), Parts(0, 8)),
    ("nm,n->m", (1200, 8), (1200,), Parts(0, 5)),
    ("nm,n->m", (1000, 8), (1000,), None),  # a short chain
    ("mn,n->m", (8, 20_000), (20_000,), None),  # in vectors
    ("nbm,nb->bm", (20_000, 3, 8), (20_000, 3), None),  # the batch does not lead
    ("anm,an->m", (4, 20_000, 8), (4, 20_000), None),  # too few blocks
    ("nm,n->m", (20_011, 8), (20_011,), None),  # prime
    ("nm,nk->mk", (20_000, 8), (20_000, 2), None),  # the library's
    ("n,n->", (20_000,), (20_000,), None),
    ("nm,n->m", (20_000, 0), (20_000,), None),
]


@pytest.mark.parametrize(("spec", "left", "right", "wanted"), PRODUCTS)
def test_products_with_vectors_are_written_in_blocks(spec, left, right, wanted):
    generator = np.random.default_rng(0)
    a, b = generator.random(left, np.float32), generator.random(right, np.float32)
    program = program_of(lambda a, b: jnp.einsum(spec, a, b), left, right)
    (product,) = [eqn for eqn in program.eqns if eqn.primitive.name == "dot_general"]
    assert parts_of(product) == wanted
    if wanted is None:
        assert product.outvars[0] not in blocks_in(program)
        return
    compiled = jax.jit(emit(program, EXPANSIONS, in_blocks=True)).lower(a, b).compile(compiler_options=NO_YNN)
    np.testing.assert_allclose(compiled(a, b)[0], np.einsum(spec, *(x.astype(np.float64) for x in (a, b))), rtol=6e-7)
    stored = project(program, Storing(threads=2, blocks=True)).temporary_bytes
    assert compiled.memory_analysis().temp_size_in_bytes <= stored + 1000, stored


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.int32, jnp.bfloat16])
@pytest.mark.parametrize("is_vector", [False, True])
def test_products_of_narrower_numbers_with_vectors_are_too(dtype, is_vector):
    """With what the compiler stores of each operand that it converts."""
    generator = np.random.default_rng(0)
    operands = [generator.random((20_000,), np.float32), generator.random((20_000, 64), np.float32)]
    narrow = 0 if is_vector else 1
    operands[narrow] = np.asarray((operands[narrow] * 100) % (2 if dtype == np.bool_ else 128)).astype(dtype)
    program = read(jax.make_jaxpr(jnp.matmul)(*operands), "cpu")
    assert list(blocks_in(program).values()) == [Parts(1, 80)]
    emitted, wanted = emit(program, EXPANSIONS, in_blocks=True), np.matmul(*(x.astype(np.float64) for x in operands))
    compiled = jax.jit(emitted).lower(*operands).compile(compiler_options=NO_YNN)
    np.testing.assert_allclose(compiled(*operands)[0], wanted, rtol=6e-7)
    stored = project(program, Storing(threads=2, blocks=True)).temporary_bytes
    assert compiled.memory_analysis().temp_size_in_bytes <= stored + 1000, stored


def test_products_of_complex_numbers_with_vectors_are_too():
    generator = np.random.default_rng(0)
    a, b = (generator.random((160_000, *n)) + 1j * generator.random((160_000, *n)) for n in ((), (8,)))
    operands = [x.astype(np.complex64) for x in (a, b)]
    program = read(jax.make_jaxpr(jnp.matmul)(*operands), "cpu")
    assert list(blocks_in(program).values()) == [Parts(1, 625)]
    (found,) = jax.jit(emit(program, EXPANSIONS, in_blocks=True)).lower(*operands).compile(NO_YNN)(*operands)
    np.testing.assert_allclose(found, np.matmul(*(x.astype(np.complex128) for x in operands)), rtol=3e-7)


@pytest.mark.parametrize("dtype", [np.int32, np.float16, jnp.bfloat16])
def test_products_of_other_types_are_left(dtype):
    program = program_of(lambda a, b: a @ b, (20_000,), (20_000, 8), dtype=dtype)
    assert not blocks_in(program)


@pytest.mark.parametrize("dtype", [np.int32, np.float16])
def test_extremes_of_other_types_are_left(dtype):
    assert the_block(lambda x: lax.reduce_max(x, [1]), (4, 4000)) is not None
    assert the_block(lambda x: lax.reduce_max(x, [1]), (4, 4000), dtype=dtype) is None


@pytest.mark.parametrize("axis", [0, 1])
def test_sums_of_complex_numbers_are_written_in_blocks(axis):
    """XLA:CPU adds one after the other in passes."""
    generator = np.random.default_rng(0)
    x, y = ((generator.normal(size=n) + 1j * generator.normal(size=n)).astype(np.complex64) for n in (400, 400))
    program = read(jax.make_jaxpr(lambda x, y: jnp.sum(x[:, None] * y, axis=axis))(x, y), "cpu")
    assert list(blocks_in(program).values()) == [Block(axis, 8, is_along=axis == 1)]
    (found,) = jax.jit(emit(program, EXPANSIONS, in_blocks=True)).lower(x, y).compile(NO_YNN)(x, y)
    wanted = (x.astype(np.complex128)[:, None] * y).sum(axis=axis)
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("fn", [jnp.sqrt, jnp.log, lambda z: 1 / z, lambda z: z**1.5])
def test_what_complex_numbers_branch_for_is_left(fn):
    """A reduction that reads it as it goes computes one after the other."""
    assert the_block(lambda z: jnp.sum(fn(z), axis=1), (8, 4000), dtype=np.complex64) is None
    assert the_block(lambda z: jnp.sum(z * jnp.conj(z), axis=1), (8, 4000), dtype=np.complex64) is not None


def test_what_is_much_to_compute_is_left():
    """LLVM would not unroll it."""
    for steps, is_written in ((1, True), (5, False)):

        def fn(x, y, steps=steps):
            value = x[:, None] - y
            for _ in range(steps):
                value = jnp.sin(value)
            return jnp.sum(value, axis=1)

        assert (the_block(fn, (8,), (4000,)) is not None) == is_written


def test_what_is_gathered_is_left():
    at = np.arange(4000) % 7
    assert the_block(lambda x: jnp.sum(x[:, at], axis=1), (8, 100)) is None


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("reducer", REDUCERS)
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        *(((4, 4000), (1,)), ((250, 200), (0, 1)), ((3, 128, 16), (1, 2)), ((1000, 64), (0,)), ((0, 40), (1,))),
        *(((40, 5, 32), (0, 2)), ((32, 3, 40, 40), (0, 2, 3))),
    ],
)
def test_the_same_is_computed(shape, axes, reducer, dtype):
    with jax.enable_x64(dtype == np.float64):
        x = np.random.default_rng(0).normal(size=shape).astype(dtype)
        program = program_of(lambda x: REDUCERS[reducer](x * 2 + 1, axis=axes), shape, dtype=dtype)
        assert blocks_in(program)
        (got,) = jax.jit(emit(program, EXPANSIONS, in_blocks=True))(x)
        wanted = getattr(np, reducer)(x.astype(np.float64) * 2 + 1, axis=axes)
        assert got.dtype == dtype
        tolerance = 0 if reducer != "sum" and dtype == np.float64 else 1e-6 if dtype == np.float32 else 1e-14
        np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance * max(x.size, 1) ** 0.5)


@pytest.mark.parametrize("reducer", REDUCERS)
def test_nan_and_infinity_come_through(reducer):
    x = np.ones((4, 4000), np.float32)
    x[0, 17], x[1, 3999], x[2, 0] = np.nan, np.inf, -np.inf
    program = program_of(lambda x: REDUCERS[reducer](x, axis=1), x.shape)
    compiled = jax.jit(emit(program, EXPANSIONS, in_blocks=True)).lower(x).compile(compiler_options=NO_YNN)
    (got,) = compiled(x)
    np.testing.assert_array_equal(got, getattr(np, reducer)(x, axis=1))


@pytest.mark.parametrize("reducer", ["max", "min"])
@pytest.mark.parametrize(("shape", "axes"), [((5, 4000), 1), ((5, 7), 1), ((3, 128, 16), (1, 2)), ((1000, 64), 0)])
def test_extremes_in_bfloat16_are_found_in_float32_and_are_the_same(shape, axes, reducer):
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    x.reshape(-1)[[3, -2, 40 % x.size]] = np.nan, np.inf, -np.inf
    program = program_of(lambda x: REDUCERS[reducer](x, axis=axes), shape, dtype=jnp.bfloat16)
    (how,) = blocks_in(program).values()
    assert isinstance(how, Wide) and (how.block is None) == (7 in shape)
    narrow = jnp.asarray(x, jnp.bfloat16)
    (got,) = jax.jit(emit(program, EXPANSIONS, in_blocks=True)).lower(narrow).compile(compiler_options=NO_YNN)(narrow)
    assert got.dtype == jnp.bfloat16
    wanted = getattr(np, reducer)(np.asarray(narrow, np.float32), axis=axes)
    np.testing.assert_array_equal(np.asarray(got, np.float32), wanted)


def test_reductions_in_loops_of_the_user_are_written_so_too():
    def fn(x):
        return lax.fori_loop(0, 3, lambda _, s: s + jnp.sum(jnp.abs(x - s), axis=1, keepdims=True) / 4000, x[:, :1])

    x = np.random.default_rng(0).normal(size=(4, 4000)).astype(np.float32)
    program = program_of(fn, x.shape)
    assert len(blocks_in(program)) == 1
    run = jax.jit(emit(program, EXPANSIONS, in_blocks=True))
    assert "optimization_barrier" in run.lower(x).as_text()
    with jax.enable_x64(True):
        wanted = fn(x.astype(np.float64))
    np.testing.assert_allclose(run(x)[0], wanted, rtol=1e-5)


def test_what_is_reduced_in_blocks_is_not_stored():
    """One element in eight is; XLA's passes store every one. Both are projected as the compiler counts them."""
    program = program_of(lambda x, y: jnp.sum(jnp.exp(x[:, None] - y), axis=1), (500,), (4000,))
    structs = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in program.invars]
    cpu, counted = find_target("cpu"), {}
    for in_blocks in (False, True):
        emitted = emit(program, EXPANSIONS, in_blocks=in_blocks)
        compiled = compile_for(cpu, emitted, structs, compiler_options=NO_YNN)
        assert (PASSES in compiled.as_text()) or in_blocks
        counted[in_blocks] = cpu.compiled_bytes(compiled).total
        projected = project(program, storing_of(Machine(blocks=in_blocks))).bytes
        assert 0.9 <= projected / counted[in_blocks] <= 1.5
    assert counted[True] < counted[False] / 5


@pytest.mark.parametrize("shape", [(60, 509, 509), (997, 16, 997), (700, 700, 3)])
def test_what_is_summed_axis_by_axis_is_projected_as_it_is_stored(shape):
    program = program_of(lambda x, y: jnp.sum(jnp.sin(x * y), axis=(len(shape) - 1, 0)), shape, shape[1:])
    assert {Apart} == set(map(type, blocks_in(program).values()))
    structs = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in program.invars]
    emitted, cpu = emit(program, EXPANSIONS, in_blocks=True), find_target("cpu")
    counted = cpu.compiled_bytes(compile_for(cpu, emitted, structs, compiler_options=NO_YNN)).total
    fixed = sum(s.size * 4 for s in structs)
    projected = project(program, storing_of(Machine(blocks=True))).bytes
    assert 0.9 <= (projected - fixed) / (counted - fixed) <= 1.5


def attempt_of(fn, *shapes: tuple[int, ...], **call) -> Attempt:
    call = Call(program=program_of(fn, *shapes), compile_plain=lambda: None, donated=(), compiler_options={}, **call)
    return Attempt(call=call, target=find_target("cpu"), options=Options(), limit_bytes=1, store=None, key={})


def test_where_nothing_is_in_blocks():
    """What is compared for equality with its maximum is stored between; others choose their own compiler options."""

    def largest(x, y):
        return jnp.sum(jnp.max(x @ y, axis=1) ** 2)

    shapes = ((100, 3), (3, 4000))
    assert attempt_of(largest, *shapes).machine.blocks
    assert not attempt_of(jax.grad(largest), *shapes).machine.blocks
    assert not attempt_of(largest, *shapes, inline=True).machine.blocks
    assert not attempt_of(largest, *shapes, devices=2).machine.blocks


def test_a_program_that_is_split_reduces_in_blocks(monkeypatch):
    def fn(x, y):
        return jnp.max(jnp.abs(x[:, None] - y), axis=1), jnp.sum(jnp.exp(-jnp.abs(x[:, None] - y)), axis=1)

    written, write = [], emitting.write
    monkeypatch.setattr(emitting, "write", lambda eqn, *how: written.append(eqn.primitive.name) or write(eqn, *how))
    x, y = (np.random.default_rng(k).normal(size=n).astype(np.float32) for k, n in enumerate((3000, 4000)))
    found = exla.compile(fn, (x, y), memory_limit="2MiB", records="off")
    assert {"reduce_max", "reduce_sum"} <= set(written)
    largest, total = found(x, y)
    apart = np.abs(x.astype(np.float64)[:, None] - y)
    np.testing.assert_allclose(largest, apart.max(axis=1), rtol=1e-6)
    np.testing.assert_allclose(total, np.exp(-apart).sum(axis=1), rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_triangular_systems_are_solved_transposed_and_have_the_same_solutions(x64, dtype):
    """From both sides, of both triangles, of the matrix as it is, transposed and conjugated, with and without ones."""
    generator = np.random.default_rng(0)

    def drawn(*shape):
        number = generator.normal(size=shape)
        return number + (1j * generator.normal(size=shape) if dtype is np.complex128 else 0)

    a, b = (drawn(2, 7, 7) + 8 * np.eye(7)) / 8, drawn(2, 7, 7)
    flags = ("left_side", "lower", "transpose_a", "conjugate_a", "unit_diagonal")
    cases = [dict(zip(flags, values, strict=True)) for values in itertools.product((False, True), repeat=len(flags))]

    def solved(a, b):
        return [lax.linalg.triangular_solve(a, b[..., :4] if c["left_side"] else b[..., :4, :], **c) for c in cases]

    program = read(jax.make_jaxpr(solved)(a, b), "cpu")
    written = jax.make_jaxpr(emit(program, EXPANSIONS, in_blocks=True))(a, b)
    sides = [[e.params[n] for n in flags[:2]] for e in written.eqns if e.primitive.name == "triangular_solve"]
    assert sides == [[not c["left_side"], not c["lower"]] for c in cases]
    for found, wanted in zip(jax.jit(emit(program, EXPANSIONS, in_blocks=True))(a, b), solved(a, b), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-12)


def test_systems_that_lapack_does_not_solve_are_left():
    program = program_of(lambda a, b: lax.linalg.triangular_solve(a, b), (4, 4), (4, 4), dtype=np.float16)
    assert not any(isinstance(how, Turned) for how in blocks_in(program).values())


def test_a_matrix_that_lies_by_rows_is_not_copied_to_be_solved_with():
    n, m = 300, 40
    fn = partial(lax.linalg.triangular_solve, left_side=True, lower=True)
    structs = [jax.ShapeDtypeStruct(s, np.float32) for s in ((n, n), (n, m))]
    program = program_of(fn, (n, n), (n, m))
    compiled = [
        jax.jit(emit(program, EXPANSIONS, in_blocks=written)).lower(*structs).compile() for written in (False, True)
    ]
    copied, written = (c.memory_analysis().temp_size_in_bytes for c in compiled)
    assert copied >= written
    if "wrapped_transpose" in compiled[1].as_text():
        pytest.skip("this XLA copies what it transposes, though it lies there as it is wanted")
    assert copied >= 4 * n * n > written
