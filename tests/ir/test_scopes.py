"""Numbered scopes: an equation's number goes with it into chunk loops, control flow and HLO."""

import jax
import jax.numpy as jnp
import numpy as np

from exla.call import read
from exla.ir.emit import emit
from exla.ir.memory import Storing, project
from exla.ir.program import as_struct
from exla.ir.scopes import equation_number, number_of, numbered
from exla.passes.decisions import Growth
from exla.passes.split.decide import apply_seed, enumerate_splits
from exla.passes.unless import EXPANSIONS


def kernel(x, y, v):
    squared = ((x[:, None] - y[None]) ** 2).sum(-1)
    return jax.lax.fori_loop(0, 3, lambda _, u: jnp.exp(-squared) @ u * 0.1, v)


def program():
    x = np.ones((40, 3), np.float32)
    return numbered(read(jax.make_jaxpr(kernel)(x, x, np.ones(40, np.float32)), "cpu"))


def inside(jaxpr, found):
    for eqn in jaxpr.eqns:
        found.append((eqn.primitive.name, equation_number(eqn)))
        for name, value in eqn.params.items():
            if name == "loop":
                inside(value.body.jaxpr, found)
            elif hasattr(value, "jaxpr"):
                inside(value.jaxpr, found)
    return found


def test_each_equation_has_a_number_of_its_own_those_of_bodies_too():
    found = inside(program().jaxpr, [])
    numbers = [number for _, number in found]
    assert len(set(numbers)) == len(numbers) and None not in numbers
    assert {"exp", "dot_general", "sub"} <= {name for name, _ in found}


def test_a_chunk_loop_keeps_the_numbers_of_what_it_runs():
    before = program()
    where = {number: name for name, number in inside(before.jaxpr, [])}
    held = project(before, Storing(fused=False)).held
    seeds = list(enumerate_splits(before, held, [Growth(small_bytes=64)]))
    assert seeds
    split = apply_seed(before, seeds[0], 8)
    after = [(name, number) for name, number in inside(split.jaxpr, []) if number is not None]
    assert any(eqn.primitive.name == "exla_split" for eqn in split.eqns)
    assert after and all(where[number] == name for name, number in after)


def test_numbering_again_counts_the_innermost_scope():
    again = numbered(program())
    assert [equation_number(e) for e in again.eqns][:3] == [0, 1, 2]
    assert number_of("jit(f)/exla.3/exla.12/add") == 12
    assert number_of("jit(f)/add") is None and number_of("exla.3x/add") is None and number_of("") is None


def test_xla_is_told_the_numbers():
    of = program()
    lowered = jax.jit(emit(of, EXPANSIONS)).lower(*(as_struct(v.aval) for v in of.invars))
    text = lowered.as_text(debug_info=True)
    assert all(f"exla.{equation_number(e)}/" in text for e in of.eqns)


def test_numbers_change_no_value():
    x = np.random.default_rng(0).standard_normal((40, 3), dtype=np.float32)
    v = np.ones(40, np.float32)
    (got,) = jax.jit(emit(program(), EXPANSIONS))(x, x, v)
    np.testing.assert_array_equal(got, jax.jit(kernel)(x, x, v))
