"""A program is flat, canonical, free of dead code, and the same in every process."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import exla
from exla import _compat
from exla.errors import ProgramError
from exla.ir import program as module
from exla.ir.check import check
from exla.ir.emit import emit
from exla.ir.fingerprint import fingerprint
from exla.ir.program import Program, canonical

CALLS = {
    "jit": lambda x: jax.jit(jnp.sin)(x) + 1,
    "nested jit": lambda x: jax.jit(lambda y: jax.jit(jnp.cos)(y) * 2)(x),
    "custom_jvp": lambda x: jax.nn.relu(x) + jax.nn.silu(x),
    "custom_vjp": lambda x: _with_custom_vjp(x) * 3,
    "remat": lambda x: jax.checkpoint(lambda y: jnp.sin(y) * y)(x),
    "grad of remat": jax.grad(lambda x: jax.checkpoint(lambda y: jnp.sin(y) * y)(x).sum()),
    "where": lambda x: jnp.where(x > 0, x, 0.0),
    "linalg": lambda x: jnp.linalg.norm(x, axis=-1),
}


@jax.custom_vjp
def _with_custom_vjp(x):
    return jnp.exp(x)


_with_custom_vjp.defvjp(lambda x: (jnp.exp(x), x), lambda x, g: (g * jnp.exp(x),))


def program_of(fn, *args):
    return check(canonical(jax.make_jaxpr(fn)(*args)))


@pytest.mark.parametrize("fn", CALLS.values(), ids=CALLS)
def test_calls_are_inlined_and_values_stay(fn, x64):
    x = jnp.linspace(-2.0, 2.0, 12).reshape(3, 4)
    program = program_of(fn, x)
    names = {eqn.primitive.name for eqn in program.eqns}
    assert not names & {"jit", "pjit", "custom_jvp_call", "custom_vjp_call", "remat", "remat2", "checkpoint"}
    (result,) = emit(program, {})(*program.consts, x)
    np.testing.assert_allclose(result, fn(x), rtol=1e-14)


def test_one_thing_has_one_spelling():
    x = jnp.ones((3, 4))
    assert fingerprint(program_of(lambda x: x**2, x)) == fingerprint(program_of(jnp.square, x))


@pytest.mark.parametrize("start", [(1, 0), (-9, 3), (np.uint8(9), np.uint8(1))])
def test_a_slice_from_a_known_place_is_no_dynamic_one(start):
    x = jnp.arange(20.0).reshape(5, 4)
    program = program_of(lambda x: jax.lax.dynamic_slice(x, start, (2, 3)), x)
    assert [e.primitive.name for e in program.eqns] == ["slice"]
    np.testing.assert_array_equal(emit(program, {})(x)[0], jax.lax.dynamic_slice(x, start, (2, 3)))


def test_padding_by_nothing_is_no_equation():
    x = jnp.ones((3, 4))
    assert fingerprint(program_of(lambda x: jnp.exp(jnp.pad(x, 0)), x)) == fingerprint(program_of(jnp.exp, x))
    moved = program_of(lambda x: jax.lax.pad(x, 0.0, [(1, -1, 0), (0, 0, 0)]), x)
    assert [e.primitive.name for e in moved.eqns] == ["pad"]


def test_what_is_put_together_has_no_parts_without_elements():
    """As `jnp.pad(mode="edge")` makes for the axes that it leaves as they are: rows that nothing is taken of."""
    x = jnp.arange(12.0).reshape(3, 4)
    padded = program_of(lambda x: jnp.pad(-x, ((0, 0), (2, 1)), mode="edge"), x)
    assert all(e.outvars[0].aval.size for e in padded.eqns)
    assert sum(e.primitive.name == "concatenate" for e in padded.eqns) == 1
    np.testing.assert_array_equal(emit(padded, {})(x)[0], np.pad(-x, ((0, 0), (2, 1)), mode="edge"))

    def put_together(x):  # of a weak type and a strong one; and of nothing
        return jax.lax.concatenate([x[:0], jax.lax.full(x.shape, 1.0)], 0), jax.lax.concatenate([x[:0], x[3:]], 0)

    assert jax.lax.full(x.shape, 1.0).weak_type
    made = program_of(put_together, x)
    assert [v.aval for v in made.outvars] == [v.aval for v in jax.make_jaxpr(put_together)(x).jaxpr.outvars]


PRIMITIVES = {
    "broadcast": lambda x: jax.lax.broadcast_in_dim(x, (2, 3, 4), (1, 2)),
    "constant": lambda x: jax.lax.add(x, np.arange(12, dtype=np.float32).reshape(3, 4)),
    "dead code": lambda x: (jax.lax.exp(x), jax.lax.sin(x))[0],
    "product": lambda x: jax.lax.dot_general(x, x, (((1,), (1,)), ((), ()))),
    "reduction": lambda x: jax.lax.reduce_max(jax.lax.transpose(x, (1, 0)), [0]),
    "call": lambda x: jax.jit(jax.lax.exp)(x),
    "square": lambda x: jax.lax.integer_pow(x, 2),
    "stopped": lambda x: jax.lax.stop_gradient(jax.lax.exp(x)),
    "no broadcast": lambda x: jax.lax.broadcast_in_dim_p.bind(
        x, shape=(3, 4), broadcast_dimensions=(0, 1), sharding=None
    ),
    "no reshape": lambda x: jax.lax.reshape_p.bind(x, new_sizes=(3, 4), dimensions=None, sharding=None),
    "reshape of a transpose": lambda x: jax.lax.reshape_p.bind(x, new_sizes=(12,), dimensions=(1, 0), sharding=None),
    "no padding": lambda x: jax.lax.pad_p.bind(x, np.float32(0), padding_config=((0, 0, 0), (0, 0, 0))),
    "nothing put together": lambda x: jax.lax.concatenate([jax.lax.slice(x, (0, 0), (0, 4)), x], 0),
    "one thing put together": lambda x: jax.lax.concatenate_p.bind(x, dimension=0),
    "loop": lambda x: jax.lax.fori_loop(0, 3, lambda i, y: jnp.where(y > 0, y, 0), x),
}
"""Functions of (3, 4): those that are canonical as they are traced, and those of which one thing is not."""


@pytest.mark.parametrize("fn", PRIMITIVES.values(), ids=PRIMITIVES)
def test_what_is_not_traced_again_is_what_tracing_it_again_makes(fn, monkeypatch):
    closed = jax.make_jaxpr(fn)(jax.ShapeDtypeStruct((3, 4), jnp.float32))
    made = canonical(closed)
    monkeypatch.setattr(module, "_is_canonical", lambda jaxpr: False)
    again = canonical(closed)
    assert str(made.jaxpr) == str(again.jaxpr) and fingerprint(made) == fingerprint(again)
    assert list(map(made.source, range(len(made.eqns)))) == list(map(again.source, range(len(again.eqns))))
    assert [np.asarray(c).tolist() for c in made.consts] == [np.asarray(c).tolist() for c in again.consts]


def test_powers_other_than_two_are_not_squares():
    names = [e.primitive.name for e in program_of(lambda x: x**3, jnp.ones(3)).eqns]
    assert "square" not in names


def test_dead_code_is_dropped():
    program = program_of(lambda x: (jnp.exp(x), x + 1)[1], jnp.ones(3))
    assert [e.primitive.name for e in program.eqns] == ["add"]


def what_is_there(jaxpr):
    """Primitives and types of the results of all equations, in bodies too."""
    own = [(e.primitive.name, *(str(v.aval) for v in e.outvars)) for e in jaxpr.eqns]
    return [*own, *(what_is_there(body.jaxpr) for e in jaxpr.eqns for body in _compat.bodies(e))]


def test_what_control_flow_computes_for_nobody_is_dropped():
    """The gradient of a loop that also stacks the largest of what it makes reads no such maximum."""

    def stacked(x, y, also):
        def step(c, _):
            k = jnp.exp(-jnp.abs(c @ y.T))
            return c * 0.5 + (k / k.sum(axis=1, keepdims=True)) @ y, k.max() if also else None

        return jnp.sum(jax.lax.scan(step, x, None, length=3)[0] ** 2)

    def gradient(also):
        return jax.grad(lambda x, y: stacked(x, y, also), (0, 1))

    x, y = (np.random.default_rng(0).normal(size=(n, 4)).astype(np.float32) for n in (6, 5))
    with_it, without = (canonical(jax.make_jaxpr(gradient(also))(x, y)) for also in (True, False))
    assert what_is_there(with_it.jaxpr) == what_is_there(without.jaxpr)
    for got, want in zip(jax.jit(emit(with_it, {}))(x, y), jax.jit(gradient(True))(x, y), strict=True):
        np.testing.assert_array_equal(got, want)

    def printed(x):
        def step(c, _):
            jax.debug.print("{}", c.sum())
            return c * 2, c.sum()

        return jax.lax.scan(step, x, None, length=3)[0]

    (scan,) = (e for e in canonical(jax.make_jaxpr(printed)(x)).eqns if e.primitive.name == "scan")
    assert len(scan.outvars) == 1 and scan.effects


def test_effects_are_not_dead_code():
    def fn(x):
        jax.debug.print("{}", x.sum())
        return x + 1

    assert any(e.effects for e in program_of(fn, jnp.ones(3)).eqns)


def test_control_flow_stays_one_equation():
    program = program_of(lambda x: jax.lax.fori_loop(0, 3, lambda i, y: y + i, x), jnp.ones(3))
    assert len(program.eqns) == 1


def test_captured_arrays_become_leading_inputs_with_values():
    table = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    program = program_of(lambda x: x @ jnp.asarray(table), jnp.ones((4, 2)))
    assert len(program.consts) == 1 and len(program.invars) == 2
    (result,) = emit(program, {})(*program.consts, jnp.ones((4, 2)))
    np.testing.assert_array_equal(result, np.ones((4, 2)) @ table)


def test_the_source_line_is_the_users():
    program = program_of(lambda x: jnp.exp(x), jnp.ones(3))
    assert "test_program.py" in program.source(0)


def test_inlined_equations_keep_the_users_line():
    program = program_of(CALLS["where"], jnp.ones(3))
    assert all("test_program.py" in program.source(i) for i in range(len(program.eqns)))


def test_a_site_tells_equations_apart():
    program = program_of(lambda x: jnp.sin(x) + jnp.cos(x), jnp.ones(3))
    assert program.site(0).fingerprint != program.site(1).fingerprint


SCRIPT = """
import jax, jax.numpy as jnp
from exla.ir.program import canonical
from exla.ir.fingerprint import fingerprint
def fn(x):
    y = jnp.where(x > 0, jax.nn.relu(x), x).at[jnp.arange(2)].add(1.0)
    z = jax.lax.scan(lambda c, a: (c + a, c * a), 0.0, y[:, 0])[1]
    key = jax.random.key(0)
    return jax.lax.reduce(z, 0.0, lambda a, b: a + b, (0,)), jax.random.normal(key, (3,)), jax.lax.top_k(y, 2)
print(fingerprint(canonical(jax.make_jaxpr(fn)(jnp.ones((4, 3))))))
"""


def test_a_fingerprint_is_the_same_in_every_process():
    prints = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            check=True,
            capture_output=True,
            text=True,
            env={**_environment(), "PYTHONHASHSEED": s},
        ).stdout
        for s in ("0", "7")
    }
    assert len(prints) == 1


def _environment():
    import os

    return dict(os.environ)


def test_a_fingerprint_sees_shapes_parameters_and_constants():
    x, y = jnp.ones((3, 4)), jnp.ones((4, 3))
    variants = [
        program_of(lambda x: x.sum(0), x),
        program_of(lambda x: x.sum(1), x),
        program_of(lambda x: x.sum(0), y),
        program_of(lambda x: x.sum(0) * 2, x),
        program_of(lambda x: x.sum(0) * 3, x),
    ]
    assert len({fingerprint(p) for p in variants}) == len(variants)


def test_check_refuses_a_use_before_definition():
    program = program_of(lambda x: jnp.sin(jnp.cos(x)), jnp.ones(3))
    turned = Program(jaxpr=program.jaxpr.replace(eqns=list(program.eqns)[::-1]))
    with pytest.raises(ProgramError, match="not defined yet"):
        check(turned)


def test_check_refuses_a_second_definition():
    program = program_of(jnp.sin, jnp.ones(3))
    doubled = Program(jaxpr=program.jaxpr.replace(eqns=[*program.eqns, *program.eqns]))
    with pytest.raises(ProgramError, match="second time"):
        check(doubled)


def test_what_is_known_about_a_body_is_kept_for_all_that_run_it():
    def turns(x):
        return jax.lax.fori_loop(0, 3, lambda _, y: jnp.sin(y), x)

    (body,) = _compat.bodies(program_of(turns, jnp.ones(3)).eqns[-1])
    assert module.program_of(body.jaxpr) is module.program_of(body.jaxpr)


def test_a_plan_lets_go_of_the_bodies_that_it_has_looked_at():
    def turns(x):
        return jax.lax.fori_loop(0, 3, lambda _, y: jnp.sum(jnp.sin(y[:, None] * y), axis=1), x)

    exla.jit(turns, memory_limit="100KiB", records="off").plan(jax.ShapeDtypeStruct((400,), jnp.float32))
    assert module.program_of.cache_info().currsize == 0


def test_equations_of_bodies_are_counted():
    def turn(x):
        return jax.lax.cond(x[0] > 0, jnp.sin, lambda x: jnp.cos(x) + 1, x)

    program = program_of(lambda x: jax.lax.scan(lambda y, _: (turn(y), None), x, length=5)[0], jnp.ones(3))
    (body,) = _compat.bodies(program.eqns[-1])
    branches = _compat.bodies(body.jaxpr.eqns[-1])
    assert sorted(len(b.jaxpr.eqns) for b in branches) == [1, 2]
    assert program.equation_count == len(program.eqns) + len(body.jaxpr.eqns) + 3
