"""Rewrites put new equations in the place of an old one: the same program as if all of it were traced anew."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import exla
from exla import _compat
from exla.datasets.profiling.zoo.programs import ZOO
from exla.ir.emit import emit
from exla.ir.program import canonical
from exla.passes import reorder, replace, swap
from exla.passes import rewritten as module
from exla.passes.opaque import not_before
from exla.passes.rewritten import applied, rewritten
from exla.passes.unless import EXPANSIONS

SQUARES = 2
"""Position of the square in `shifted`."""


def shifted(x, y):
    """add, sub, square, mul: of two vectors."""
    both = x + y
    rest = x - y
    return rest**2 * both, both


def program_of(fn, *arguments):
    return canonical(jax.make_jaxpr(fn)(*arguments))


def written(program):
    """All that a program says: equations, types, named scopes and source lines."""
    lines = "\n".join(f"{_compat.scopes(e)} {_compat.source_line(e)}" for e in program.eqns)
    return f"{program.jaxpr}\n{lines}\n{[v.aval for v in program.invars]}\n{len(program.consts)}"


@pytest.fixture
def counts(monkeypatch):
    """Every rewrite is made in both ways and compared; says how many there were, and how many had only one way."""
    found = {"rewrites": 0, "anew": 0}

    def compared(program, position, reads, compute):
        reads = list(reads)
        made = rewritten(program, position, reads, compute)
        assert written(made) == written(module._traced_anew(program, {position: compute}))
        found["rewrites"] += 1
        found["anew"] += (
            module._spliced(program, position, list(dict.fromkeys(module.variables(reads))), compute) is None
        )
        return made

    for user in (replace, swap, reorder):
        monkeypatch.setattr(user, "rewritten", compared)
    return found


@pytest.mark.parametrize("name", ["sinkhorn_half_step", "tsne_gradient", "nearest_neighbours", "hessian_diagonal"])
def test_the_program_is_the_one_that_tracing_all_of_it_makes(name, counts):
    program = ZOO[name]
    arguments = program.arguments(program.fitting)
    peak = exla.jit(program.function, records="off").space(*arguments).root.peak
    fixed = peak.arguments_bytes + peak.outputs_bytes
    limit = fixed + (peak.bytes - fixed) // 6
    assert exla.jit(program.function, memory_limit=limit, records="off").space(*arguments).starts
    assert counts["rewrites"] and not counts["anew"]


def vectors(count=2):
    generator = np.random.default_rng(0)
    return [generator.normal(size=5).astype(np.float32) for _ in range(count)]


def results(program, *arguments):
    return jax.jit(emit(program, EXPANSIONS))(*program.consts, *arguments)


def test_what_is_new_may_hold_constants_and_what_nothing_needs_is_gone():
    x, y = vectors()
    program = program_of(shifted, x, y)
    (read,) = program.eqns[SQUARES].invars
    constant = jnp.asarray(np.arange(5, dtype=np.float32))
    made = rewritten(program, SQUARES, program.invars, lambda get: [get(program.invars[0]) * constant])
    assert len(made.consts) == 1 and len(made.invars) == 3
    assert not any(read in eqn.outvars for eqn in made.eqns)
    first, second = results(made, x, y)
    np.testing.assert_allclose(first, x * np.arange(5) * (x + y), rtol=1e-6)
    np.testing.assert_array_equal(second, x + y)


def test_a_result_may_be_what_is_there_already_or_a_number():
    x, y = vectors()
    program = program_of(shifted, x, y)
    for chosen, expected in ((program.invars[1], y), (program.eqns[0].outvars[0], x + y)):
        made = rewritten(program, SQUARES, [chosen], lambda get, chosen=chosen: [get(chosen)])
        np.testing.assert_allclose(results(made, x, y)[0], expected * (x + y), rtol=1e-6)
        assert len(made.eqns) == 2
    scalar = program_of(lambda a: jnp.sin(a) ** 2 + 1.0, jnp.float32(2))
    square = next(i for i, eqn in enumerate(scalar.eqns) if eqn.primitive.name == "square")
    made = rewritten(scalar, square, [], lambda get: [jnp.float32(3)])
    assert float(results(made, np.float32(2))[0]) == 4.0


def test_results_of_the_program_may_be_those_of_the_equation():
    x, y = vectors()
    program = program_of(lambda x, y: (jnp.square(x - y), y), x, y)
    made = rewritten(program, 1, program.invars, lambda get: [get(program.invars[0]) * 2])
    np.testing.assert_allclose(results(made, x, y)[0], x * 2)


def test_what_is_computed_later_may_be_read():
    x, y = vectors()
    program = program_of(lambda x, y: (jnp.sin(x), jnp.cos(y)), x, y)
    assert [eqn.primitive.name for eqn in program.eqns] == ["sin", "cos"]
    later = program.eqns[1].outvars[0]
    made = rewritten(program, 0, [later], lambda get: [get(later) + 1])
    np.testing.assert_allclose(results(made, x, y)[0], np.cos(y) + 1, rtol=1e-6)


@pytest.mark.parametrize("is_read_twice", [False, True])
def test_what_is_read_and_computed_later_is_computed_earlier_and_the_rest_stays(is_read_twice, counts):
    """A width that is negated after the distances are there is read by the check of how exact they are."""

    def fn(x, width):
        distances = jnp.sum((x[:, None] - x) ** 2, -1)
        scale = -width
        return jnp.sin(jnp.exp(scale * distances)).sum(0) * (scale if is_read_twice else width)

    x = jnp.linspace(-1.0, 1.0, 24).reshape(6, 4)
    program = program_of(fn, x, jnp.float32(0.3))
    (decision,) = [found[0] for found in replace.enumerate_replacements(program, ["squared_distance"])]
    made = replace.apply_replace(program, decision)
    assert counts == {"rewrites": 1, "anew": 0}
    ours = {id(eqn) for eqn in program.eqns}
    stay = [eqn.primitive.name for eqn in made.eqns if id(eqn) in ours]
    assert stay == ["exp", "sin", "reduce_sum", *([] if is_read_twice else ["mul"])]
    assert [eqn.primitive.name for eqn in made.eqns].count("neg") == 1
    np.testing.assert_allclose(results(made, x, np.float32(0.3))[0], jax.jit(fn)(x, 0.3), rtol=2e-6)


def test_what_is_made_of_what_is_rewritten_cannot_be_read_by_it():
    x, y = vectors()
    program = program_of(lambda x: jnp.cos(jnp.sin(x)), x)
    last = program.eqns[1].outvars[0]
    assert module._computed_later(program, 0, [last]) is None
    assert module._computed_later(program, 1, [last, program.invars[0]]) is None


def test_a_result_of_a_weaker_type_is_followed_to_the_end():
    program = program_of(lambda a: jnp.sin(jnp.square(a)), jnp.float32(2))
    strong = program.outvars[0].aval
    made = rewritten(program, 0, program.invars, lambda get: [jnp.asarray(3.0)])
    assert made.outvars[0].aval.weak_type and not strong.weak_type
    assert float(results(made, np.float32(2))[0]) == pytest.approx(np.sin(3.0))


def test_what_is_there_already_is_not_computed_again():
    """The triangle of a triangle becomes the first one, though a third mask was made in between."""

    def fn(x):
        low = jnp.tril(jnp.exp(x))
        return low * (1 + jnp.eye(7)), jnp.tril(low) * 2

    x = jnp.linspace(-1.0, 1.0, 49).reshape(7, 7)
    program = program_of(fn, x)
    (decision,) = [found[0] for found in replace.enumerate_replacements(program, ["lower_of_lower_triangle"])]
    made = replace.apply_replace(program, decision)
    assert [e.primitive.name for e in program.eqns].count("select_n") == 2
    assert [e.primitive.name for e in made.eqns].count("select_n") == 1
    for got, expected in zip(results(made, x), jax.jit(fn)(x), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_what_is_there_only_later_is_computed():
    def fn(x, y):
        first = jnp.sin(x)
        return first * y, jnp.cos(x)

    x = jnp.linspace(-1.0, 1.0, 5)
    program = program_of(fn, x, x)
    made = rewritten(program, 0, [program.invars[0]], lambda get: [jnp.cos(get(program.invars[0]))])
    assert [e.primitive.name for e in made.eqns] == ["cos", "mul", "cos"]


def test_what_a_function_gives_back_is_what_it_was_given():
    """A choice between arrays without elements is the first of them."""
    program = program_of(lambda i, x: (i + 1, x), jnp.zeros(0, int), jnp.ones(3))
    empty, numbers = program.invars
    assert applied(not_before, empty, numbers, aval=empty.aval)[1] is empty
