"""The size of TPUs' code: what it grows with, where it is counted, and what the compiler says of other programs."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from exla.call import read
from exla.ir.code import KINDS, TPU
from exla.ir.memory import code_amounts
from exla.search.cost import projected, storing_of
from exla.targets.base import TARGETS, compile_for

V5E = TARGETS.get("tpu:v5e")
F32 = 4


def structs_of(*shapes):
    return [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]


def code_of(fn, *shapes):
    program = read(jax.make_jaxpr(fn)(*structs_of(*shapes)), "tpu")
    return projected(program, V5E.machine()).code_bytes


def test_code_is_a_part_of_what_tpus_take_and_of_nothing_else():
    structs = structs_of((1000, 1000))
    for name in ("tpu:v5e", "gpu:h200", "cpu"):
        target = TARGETS.get(name)
        peak = projected(read(jax.make_jaxpr(jnp.tanh)(*structs), target.platform), target.machine())
        assert (peak.code_bytes > 0) == (target.platform == "tpu")
        assert peak.bytes == peak.arguments_bytes + peak.temporary_bytes + peak.code_bytes


@pytest.mark.parametrize("fn", [jnp.sin, lambda x: jnp.sort(x, axis=1), lambda x: x @ x])
def test_small_values_are_not_unrolled(fn):
    assert code_of(fn, (64, 64)) < code_of(fn, (4096, 4096)) / 3


def test_what_is_large_costs_no_more_when_it_is_larger():
    assert code_of(jnp.sin, (2048, 2048)) == code_of(jnp.sin, (8192, 8192))


def test_a_sort_grows_with_the_square_of_its_depth():
    def sort(length):
        return code_of(lambda x: jnp.sort(x, axis=1), (2**26 // length, length)) - code_of(jnp.negative, (8192, 8192))

    assert sort(2**12) == pytest.approx(4 * sort(2**6), rel=0.1)


def test_the_body_of_a_loop_is_code_once_whatever_its_length():
    def repeated(length):
        return code_of(lambda x: lax.fori_loop(0, length, lambda i, c: jnp.sin(c), x), (1000, 1000))

    assert repeated(3) == repeated(3000)
    assert repeated(3) > code_of(jnp.sin, (1000, 1000)) / 2


def test_every_kind_has_a_cost_and_only_those_are_counted():
    assert all(getattr(TPU, kind) > 0 for kind in KINDS)
    program = read(jax.make_jaxpr(lambda x: jnp.linalg.qr(jnp.sort(x) @ x.T)[1])(*structs_of((300, 300))), "tpu")
    assert set(code_amounts(program, storing_of(V5E.machine()))) <= set(KINDS)


def ranks(x):
    return jnp.argsort(jnp.argsort(x, axis=1), axis=1)


def mixture(x, centres, weights):
    squares = jnp.sum((x[:, None] - centres[None]) ** 2, axis=-1)
    return jax.nn.logsumexp(jnp.log(weights) - squares / 2, axis=1)


def tides(t, frequency, phase):
    return jnp.sum(jnp.cos(t[:, None] * frequency[None] + phase[None]), axis=1)


@pytest.mark.skipif(V5E.install() is not None, reason="libtpu is not installed")
@pytest.mark.parametrize(
    ("fn", "shapes"),
    [
        (ranks, ((3000, 500),)),
        (mixture, ((6000, 3), (2000, 3), (2000,))),
        (tides, ((5000,), (800,), (800,))),
        (lambda x, w: jax.nn.gelu(x @ w), ((5000, 300), (300, 900))),
    ],
    ids=["ranks", "mixture", "tides", "layer"],
)
def test_code_is_foretold_within_a_factor_of_two_and_a_half(fn, shapes):
    compiled = compile_for(V5E, fn, structs_of(*shapes), compiler_options={})
    counted = V5E.compiled_bytes(compiled).code
    assert counted / 2.5 <= code_of(fn, *shapes) <= 2.5 * counted
