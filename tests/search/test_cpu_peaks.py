"""What XLA:CPU stores of what is split, beside what is projected for it."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import exla
from exla.ir.emit import emit
from exla.ir.memory import Held, project
from exla.ir.program import canonical
from exla.ir.storing import Storing
from exla.passes.sink import apply_sink, enumerate_sinks
from exla.passes.unless import EXPANSIONS
from exla.search.space import Goal, Space
from exla.targets import cpu
from exla.targets.base import TARGETS, compile_for
from exla.targets.cpu_scratch import scratch_bytes

PROJECTED = (0.9, 1.5)


def struct(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def space_of(fn, structs, goal=1 << 16):
    program = canonical(jax.make_jaxpr(fn)(*structs))
    machine = replace(TARGETS.get("cpu").machine(), blocks=True)
    return Space(program=program, goal=Goal(bytes=goal), machine=machine)


def made(space, seed, chunk):
    """A program with one axis cut, and what is projected for what it stores beside arguments and libraries."""
    candidate = space.cut(space.root, seed, chunk)
    return candidate.program, candidate.peak.temporary_bytes - candidate.peak.library_bytes


def cut(fn, structs, size, chunk, axis=None):
    """The same of a function, and the first axis of a size that is offered."""
    space = space_of(fn, structs)
    offers = space.offers(space.root)
    return made(space, next(s for s in offers if s.region.size == size and axis in (None, s.decision.axis)), chunk)


def assigned(program):
    """Bytes that XLA:CPU assigns to temporaries and results."""
    structs = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in program.invars]
    written = emit(program, EXPANSIONS, in_blocks=True)
    stats = compile_for(TARGETS.get("cpu"), written, structs, compiler_options=cpu.NO_YNN).memory_analysis()
    return stats.temp_size_in_bytes + stats.output_size_in_bytes


def attended(x, y, v):
    return jnp.exp(x @ y.T) @ v


def test_a_remainder_is_not_computed_before_its_loop():
    """It would lie beside the chunks: XLA:CPU computes what it can at once."""
    program, foretold = cut(attended, [struct(900, 16), struct(700, 16), struct(700, 8)], 700, 240)
    chunk = 900 * 240 * 4
    assert assigned(program) < 1.2 * chunk  # and the remainder is of 220
    assert PROJECTED[0] <= foretold / assigned(program) <= PROJECTED[1]


def test_of_one_chunk_and_a_remainder_xla_makes_no_loop():
    program, foretold = cut(attended, [struct(900, 16), struct(29, 16), struct(29, 8)], 29, 15)
    assert PROJECTED[0] <= foretold / assigned(program) <= PROJECTED[1]


def test_what_is_cut_in_a_loop_is_not_computed_before_it():
    """A remainder that is the same on every turn would be kept beside the chunks of them all."""

    def powers(x, v):
        def turn(v, _):
            v = jnp.exp(x @ x.T) @ v
            return v / jnp.sqrt(jnp.sum(v * v)), None

        return jax.lax.scan(turn, v, None, length=3)[0]

    program, foretold = cut(powers, [struct(800, 16), struct(800)], 800, 280, axis=0)
    chunk = 800 * 280 * 4
    assert assigned(program) < 1.2 * chunk
    assert PROJECTED[0] <= foretold / assigned(program) <= PROJECTED[1]


def sorted_by(x, weights, inside):
    """Sums of a matrix that is sorted on every turn; XLA:CPU stores what it sorts."""

    def matrix():
        return jnp.sqrt(jnp.sum((x[:, None] - x[None]) ** 2, -1) + 1)

    whole = None if inside else matrix()

    def turn(total, weight):
        return total + jnp.sum(jnp.sort((matrix() if inside else whole) * weight, 0)), None

    return jax.lax.scan(turn, 0.0, weights)[0]


def test_what_is_moved_into_a_loop_stays_there_and_what_the_user_has_in_it_need_not():
    structs = [struct(600, 3), struct(5)]
    users, sunk = (canonical(jax.make_jaxpr(lambda x, w, k=k: sorted_by(x, w, k))(*structs)) for k in (True, False))
    matrix = next(e.outvars[0] for e in sunk.eqns if e.primitive.name == "sqrt")
    held = [Held(program=sunk, path=(), var=matrix, bytes=600 * 600 * 4)]
    sunk = apply_sink(sunk, next(enumerate_sinks(held, small_bytes=1 << 16)))
    assert assigned(sunk) < 1.2 * 600 * 600 * 4 < 1.9 * 600 * 600 * 4 < assigned(users)


def test_what_only_a_product_in_blocks_reads_is_stored_in_their_shape():
    """So it does not take the place of what it is made of."""

    def sums(x, y, v):
        return v @ jnp.tanh(x @ y.T)

    program, foretold = cut(sums, [struct(4000, 8), struct(300, 8), struct(4000)], 300, 60)
    assert assigned(program) > 1.9 * 4000 * 60 * 4
    assert PROJECTED[0] <= foretold / assigned(program) <= PROJECTED[1]


def test_what_a_product_reads_as_a_matrix_is_computed_again_for_others():
    """Two read it, so that the logistic function in it, which is dear, is stored for both."""

    def messages(x, y, w, u):
        hidden = jnp.maximum(x[:, None] - y[None], 0) @ w
        hidden = hidden * jax.nn.sigmoid(hidden)
        return jnp.sum(hidden, 1), jnp.sum(hidden @ u, 1)

    structs = [struct(300, 16), struct(320, 16), struct(16, 16), struct(16, 1)]
    program, foretold = cut(messages, structs, 320, 32, axis=1)
    assert PROJECTED[0] <= foretold / assigned(program) <= PROJECTED[1]


@pytest.mark.parametrize("axis", [0, 1], ids=["remainder first", "remainder last"])
def test_what_a_remainder_slices_after_its_loop_is_kept_for_it(axis):
    """It slices what the operands are slices of themselves."""

    def attention(x, w):
        q, k, v = jnp.split(x @ w, 3, axis=1)
        return jnp.tanh(q @ k.T) @ v

    structs = [struct(1500, 64), struct(64, 192)]
    space = space_of(attention, structs, goal=6 << 20)
    offers = (s for s in space.offers(space.root) if s.decision.growth.small_bytes > 1500 * 64 * 4)
    program, foretold = made(space, next(s for s in offers if s.decision.axis == axis), 80)
    assert PROJECTED[0] <= foretold / assigned(program) <= 1.1


def products(x, y, v, w):
    """The first product is small for YNNPACK, which packs operands whole; the second is for Eigen, which does not."""
    return jnp.tanh(x @ y.T) @ v, jnp.sin(x) @ w


PRODUCTS = [struct(1500, 24), struct(400, 24), struct(400, 8), struct(24, 1200)]


def test_one_library_multiplies_all_matrices():
    program = canonical(jax.make_jaxpr(products)(*PRODUCTS))
    peak = project(program, Storing(copies=True, threads=2, packs_once=True))
    texts = [
        jax.jit(products, compiler_options=options).lower(*PRODUCTS).compile().as_text()
        for options in (cpu.NO_YNN, cpu.YNN_PRODUCTS)
    ]
    assert peak.libraries == tuple(scratch_bytes(text, threads=2) for text in texts)
    assert peak.library_bytes == min(peak.libraries) > 0


def test_options_under_which_a_candidate_is_projected_to_obey_come_first(monkeypatch):
    """YNNPACK would pack 1.5 MB of each chunk, and multiplies faster."""
    structs = [struct(4000, 3), struct(4000, 3), struct(4000, 3)]

    def moved(x, y, v):
        weights = jnp.exp(-jnp.sum((x[:, None] - y[None]) ** 2, -1))
        return weights @ v / jnp.sum(weights, 1, keepdims=True)

    monkeypatch.setattr(cpu, "MANY_PRODUCTS", 0.0)
    plan = exla.jit(moved, memory_limit="6MiB", records="off").plan(*structs)
    assert len(plan.tried) == 2  # the program as it is, and one that obeys
    x = np.random.default_rng(0).standard_normal((4000, 3))
    np.testing.assert_allclose(
        exla.jit(moved, memory_limit="6MiB", records="off")(*[x.astype(np.float32)] * 3),
        moved(*[x] * 3),
        rtol=1e-4,
        atol=1e-5,
    )
