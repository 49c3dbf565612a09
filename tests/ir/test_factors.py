"""Parsing a factor rule: sizes, places, composed axes, and errors that name the rule."""

import math

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exla.errors import RuleError
from exla.ir.factors import FACTOR_RULES, EquationContext, FactorRule, Placement, parse
from exla.ir.program import canonical
from exla.registry import Registry


def context(operands, results, primitive="thing"):
    shaped = [tuple(jax.ShapeDtypeStruct(s, np.float32) for s in side) for side in (operands, results)]
    return EquationContext(
        primitive=primitive, params={}, operands=shaped[0], results=shaped[1], bind=lambda *a, **k: list(a)
    )


def test_a_matrix_product_has_three_factors_and_one_is_reduced():
    factors = parse(FactorRule(equation="i k, k j -> i j", reduced={"k": "sum"}), context([(4, 5), (5, 6)], [(4, 6)]))
    assert factors.sizes == {"i": 4, "k": 5, "j": 6}
    assert factors.operands["k"] == (Placement(axis=1), Placement(axis=0)) and factors.results["k"] == (None,)
    assert factors.names == ("i", "k", "j")


def test_a_factor_that_leaves_without_being_reduced_cannot_be_cut():
    factors = parse(FactorRule(equation="i k -> i", whole="it is normalised"), context([(4, 5)], [(4,)]))
    assert factors.names == ("i",)
    assert factors.why_whole("k") == "it is normalised"


def test_only_the_outermost_part_of_a_composed_axis_can_be_cut():
    factors = parse(FactorRule(equation="a b -> (a b)"), context([(4, 6)], [(24,)]))
    assert factors.names == ("a",)
    assert factors.results["a"] == (Placement(axis=0, block=6),)
    assert "inner part" in factors.why_whole("b")


def test_a_leading_factor_of_one_is_looked_through():
    factors = parse(FactorRule(equation="a b -> (a b)"), context([(1, 6)], [(6,)]))
    assert "b" in factors.names


@pytest.mark.parametrize(
    ("equation", "shapes", "named"),
    [
        ("i j", ([(2, 3)], [(2, 3)]), "->"),
        ("i j -> i", ([(2,)], [(2,)]), "shape"),
        ("i, j -> i", ([(2,)], [(2,)]), "values"),
        ("i, i -> i", ([(2,), (3,)], [(2,)]), "sizes 2 and 3"),
        ("i i -> i", ([(2, 2)], [(2,)]), "twice"),
        ("i -> (i j)", ([(2,)], [(6,)]), "size 6"),
        ("a b -> (a b)", ([(2, 3)], [(7,)]), "size 7"),
    ],
)
def test_a_rule_that_does_not_fit_its_equation_is_an_error_that_names_it(equation, shapes, named):
    with pytest.raises(RuleError, match=named.replace("(", r"\(")) as caught:
        parse(FactorRule(equation=equation), context(*shapes, primitive="my_primitive"))
    assert "my_primitive" in str(caught.value) or "names" in str(caught.value)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_every_factor_of_a_reshape_moves_the_elements_that_it_says(data):
    """Cutting the operand and cutting the result along one factor gives the same elements."""
    pieces = data.draw(st.lists(st.sampled_from([1, 2, 3, 4, 5]), min_size=1, max_size=4))

    def grouped(label):
        cuts = data.draw(st.lists(st.booleans(), min_size=len(pieces), max_size=len(pieces)), label=label)
        shape, run = [], 1
        for size, cut in zip(pieces, cuts, strict=True):
            run *= size
            if cut:
                shape.append(run)
                run = 1
        return (*shape, run)

    left, right = grouped("left"), grouped("right")
    program = canonical(jax.make_jaxpr(lambda x: jax.lax.reshape(x, right) + 0)(np.zeros(left, np.float32)))
    position = next((i for i, e in enumerate(program.eqns) if e.primitive.name == "reshape"), None)
    if position is None:
        return
    factors = program.factors(position)
    x = np.arange(math.prod(left)).reshape(left)
    for name in factors.names:
        size = factors.sizes[name]
        for start in range(size):
            cut = []
            for array, place in ((x, factors.operands[name][0]), (x.reshape(right), factors.results[name][0])):
                index = range(start * place.block, (start + 1) * place.block)
                cut.append(np.take(array, index, axis=place.axis).ravel())
            np.testing.assert_array_equal(*cut)


def test_a_name_is_registered_once_and_an_unknown_one_is_told_the_nearest():
    registry = Registry("fruit")
    registry.register("apple", "pear")(1)
    with pytest.raises(ValueError, match="fruit 'pear' is registered twice"):
        registry.register("pear")(2)
    with pytest.raises(KeyError, match="did you mean 'apple'.*apple, pear"):
        registry.get("aple")
    assert registry.get("pear") == 1 and list(registry) == ["apple", "pear"] and "fig" not in registry


def test_rules_are_loaded_on_first_use_whoever_asks():
    assert "dot_general" in FACTOR_RULES and len(FACTOR_RULES) > 100
