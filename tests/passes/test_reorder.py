"""Contraction reordering: values in float64, what blocks it, who proposes orders, and peaks."""

import jax
import jax.numpy as jnp
import numpy as np
import opt_einsum
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import exla
from exla.ir.emit import emit
from exla.ir.memory import project
from exla.ir.program import canonical
from exla.passes.decisions import Reorder, from_json, to_json
from exla.passes.reorder import OPTIMIZERS, apply_reorder, contraction, enumerate_reorders
from exla.passes.unless import EXPANSIONS
from exla.search.rewriting import rewrite
from exla.targets.machine import Machine

pytestmark = pytest.mark.usefixtures("compiled_quickly")
ROOM = 1 << 30


def seconds(products, read, written):
    return products + read + written


def array(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def struct(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def program_of(fn, *arguments):
    return canonical(jax.make_jaxpr(fn)(*arguments))


PROGRAMS = {
    "transposed chain": (lambda a, b, v: (a.T @ b) @ v, [(4, 7), (4, 6), (6,)]),
    "outer product": (lambda u, v, w: jnp.outer(u, v) @ w, [(5,), (6,), (6,)]),
    "broadcast product": (lambda u, v, w: jnp.sum(u[:, None] * v[None] * w, axis=1), [(5,), (6,), (6,)]),
    "vmapped chain": (lambda a, b, v: jax.vmap(lambda r: a @ (b @ r))(v), [(3, 6), (6, 7), (5, 7)]),
    "batched chain": (lambda a, b, c: jnp.einsum("bij,bjk,bkl->bil", a, b, c), [(3, 2, 5), (3, 5, 6), (3, 6, 2)]),
    "mean of outer products": (lambda x, y: jnp.mean(x[:, :, None] * y[:, None, :], axis=0), [(9, 4), (9, 5)]),
    "sum of a product": (lambda a, b: jnp.sum(a @ b), [(5, 4), (4, 6)]),
    "a scalar inside": (lambda a, b, v: (2.0 * (a @ b)) @ v, [(5, 4), (4, 6), (6,)]),
    "broadcast result": (lambda a, b, v: jnp.broadcast_to((a @ b) @ v, (3, 5)), [(5, 4), (4, 6), (6,)]),
    "the same twice": (lambda a, v: (a @ a.T) @ v, [(5, 4), (5,)]),
    "unit axes": (lambda a, b, v: (a @ b) @ v, [(1, 4), (4, 1), (1, 3)]),
    "cosine similarity": (
        lambda x, y: jnp.sum(
            (x / jnp.linalg.norm(x, axis=1, keepdims=True))[:, None, :]
            * (y / jnp.linalg.norm(y, axis=1, keepdims=True))[None],
            axis=-1,
        ),
        [(6, 4), (5, 4)],
    ),
    "four": (lambda a, b, c, d: a @ b @ c @ d, [(5, 6), (6, 7), (7, 2), (2, 1)]),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("optimizer", [*OPTIMIZERS, "optimal"])
def test_a_reordered_program_has_the_same_values(name, optimizer, monkeypatch, x64):
    monkeypatch.setattr("exla.passes.reorder.OPTIMIZERS", {"only": OPTIMIZERS.get(optimizer, optimizer)})
    fn, shapes = PROGRAMS[name]
    arguments = [array(*shape, seed=k) for k, shape in enumerate(shapes)]
    program = program_of(fn, *arguments)
    found = list(enumerate_reorders(program, seconds, ROOM))
    assert len(found) == (3 if name == "cosine similarity" else 1)
    assert from_json(to_json(found[0][0])) == found[0][0]
    changed = apply_reorder(program, found[0][0])
    (got,) = emit(changed, EXPANSIONS)(*changed.consts, *arguments)
    np.testing.assert_allclose(got, fn(*arguments), rtol=1e-12, atol=1e-12)


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_any_sum_of_products_has_the_same_values(data):
    letters = "ijklm"
    sizes = {letter: data.draw(st.integers(1, 4)) for letter in letters}
    inputs = [
        "".join(data.draw(st.permutations(letters))[: data.draw(st.integers(1, 3))])
        for _ in range(data.draw(st.integers(2, 4)))
    ]
    used = sorted(set("".join(inputs)))
    output = "".join(data.draw(st.permutations(used))[: data.draw(st.integers(0, len(used)))])
    arguments = [array(*(sizes[i] for i in term), seed=k) for k, term in enumerate(inputs)]

    def spelled(*values):
        product = 1.0
        for term, value in zip(inputs, values, strict=True):
            order = [term.index(i) for i in used if i in term]
            wide = value.transpose(order).reshape([sizes[i] if i in term else 1 for i in used])
            product = product * wide
        product = jnp.broadcast_to(product, [sizes[i] for i in used])
        summed = jnp.sum(product, axis=[k for k, i in enumerate(used) if i not in output])
        left = [i for i in used if i in output]
        return summed.transpose([left.index(i) for i in output])

    with jax.enable_x64(True):
        program = program_of(spelled, *arguments)
        want = np.einsum(f"{','.join(inputs)}->{output}", *arguments)
        for decision, _ in enumerate_reorders(program, seconds, ROOM):
            program = apply_reorder(program, decision)
            break
        (got,) = emit(program, EXPANSIONS)(*program.consts, *arguments)
        np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-10)


def test_what_is_returned_or_read_elsewhere_is_not_taken_apart():
    def returned(a, b, v):
        product = a @ b
        return product @ v, product

    def read(a, b, v):
        product = a @ b
        return product @ v + jnp.sin(product).sum()

    for fn in (returned, read):
        program = program_of(fn, struct(5, 4), struct(4, 6), struct(6))
        position = next(i for i, e in enumerate(program.eqns) if e.outvars[0].aval.shape == (5,))
        assert contraction(program, position) is None


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "bool"])
def test_narrow_types_are_left_alone(dtype):
    narrow = [jax.ShapeDtypeStruct(s, dtype) for s in ((5, 4), (4, 6), (6,))]
    program = program_of(lambda a, b, v: (a @ b) @ v, *narrow)
    assert not list(enumerate_reorders(program, seconds, ROOM))


def test_products_of_different_precision_are_not_mixed():
    def mixed(a, b, v):
        return jnp.dot(jnp.dot(a, b, precision="highest"), v)

    program = program_of(mixed, struct(5, 4), struct(4, 6), struct(6))
    assert not list(enumerate_reorders(program, seconds, ROOM))


def test_a_maximum_between_products_stays_between_them():
    program = program_of(lambda a, b, v: jnp.maximum(a @ b, 0) @ v, struct(5, 4), struct(4, 6), struct(6))
    assert not list(enumerate_reorders(program, seconds, ROOM))


def test_another_optimizer_can_be_plugged_in(monkeypatch):
    class Recorded(opt_einsum.paths.PathOptimizer):
        asked = 0

        def __call__(self, inputs, output, size_dict, memory_limit=None):
            Recorded.asked += 1
            return opt_einsum.paths.greedy(inputs, output, size_dict, memory_limit)

    monkeypatch.setitem(OPTIMIZERS, "recorded", Recorded())
    monkeypatch.setitem(OPTIMIZERS, "random", opt_einsum.RandomGreedy(max_repeats=4))
    program = program_of(lambda a, b, c: a @ b @ c, struct(5, 4), struct(4, 6), struct(6, 2))
    assert list(enumerate_reorders(program, seconds, ROOM))
    assert Recorded.asked == 1


def test_an_order_that_fits_is_preferred_to_a_faster_one(monkeypatch):
    orders = {"first": [(0, 1), (0, 1)], "second": [(1, 2), (0, 1)], "third": [(0, 2), (0, 1)]}
    monkeypatch.setattr("exla.passes.reorder.OPTIMIZERS", orders)
    program = program_of(lambda a, b, c: (a @ b) @ c, struct(1000, 2), struct(2, 1000), struct(1000, 900))

    def more_is_faster(products, read, written):
        return 1.0 / written

    roomy, found = next(iter(enumerate_reorders(program, more_is_faster, 1 << 40)))
    tight, _ = next(iter(enumerate_reorders(program, more_is_faster, 4 * 2 * 900 + 4 * 1000 * 900)))
    assert [f.atom.aval.shape for k, f in enumerate(found.factors) if k in tight.order[0]] == [(1000, 900), (2, 1000)]
    assert roomy.order != tight.order


@pytest.mark.parametrize(
    ("fn", "arguments"),
    [
        (lambda a, b, v: (a.T @ b) @ v, (struct(64, 50_000), struct(64, 50_000), struct(50_000))),
        (lambda u, v, w: jnp.outer(u, v) @ w, (struct(50_000), struct(50_000), struct(50_000))),
        (
            lambda a, b, v: jax.vmap(lambda r: jnp.linalg.multi_dot([a, b, r]))(v),
            (struct(10, 20_000), struct(20_000, 20_000), struct(500, 20_000)),
        ),
        (lambda k, q: jnp.diag(k @ q @ k.T), (struct(50_000, 500), struct(500, 500))),
    ],
    ids=["transposed chain", "outer product", "vmapped multi_dot", "diagonal of a quadratic form"],
)
def test_the_peak_is_below_twice_arguments_and_outputs(fn, arguments):
    program = program_of(fn, *arguments)
    fixed = project(program).arguments_bytes + project(program).outputs_bytes
    assert project(rewrite(program, Machine(), exact=False).program).bytes < 2 * fixed


def test_a_program_that_only_needs_another_order_has_no_loop():
    f = exla.jit(lambda a, b, v: (a.T @ b) @ v, memory_limit="4MiB")
    arguments = [np.float32(array(*s, seed=k)) for k, s in enumerate([(16, 5000), (16, 5000), (5000,)])]
    plan = f.plan(*arguments)
    assert [type(d) for d in plan.decisions][:1] == [Reorder] and "exla_split" not in str(plan.program)
    want = (arguments[0].T.astype(float) @ arguments[1]) @ arguments[2]
    np.testing.assert_allclose(f(*arguments), want, rtol=1e-4, atol=1e-2)


def test_exact_numerics_keep_the_order():
    f = exla.jit(lambda a, b, v: (a.T @ b) @ v, memory_limit="4MiB", numerics="exact")
    plan = f.plan(struct(16, 5000), struct(16, 5000), struct(5000))
    assert not any(isinstance(d, Reorder) for d in plan.decisions)
