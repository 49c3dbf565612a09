"""What loops keep for later ones: layers each of which wants sums of the whole batch, or all rows of the one before."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import exla
from exla.ir.emit import emit
from exla.ir.program import canonical
from exla.ir.smallest import smallest_cut
from exla.passes.decisions import KEPT, Growth
from exla.passes.split.apply import split_program
from exla.passes.split.grow import grow
from exla.passes.unless import EXPANSIONS

pytestmark = pytest.mark.usefixtures("compiled_quickly")

LAYERS, ROWS, WIDTH = 5, 12, 4
GENERATOR = np.random.default_rng(0)
WEIGHTS = [GENERATOR.normal(size=(WIDTH, WIDTH)) for _ in range(LAYERS)]
X = GENERATOR.normal(size=(ROWS, WIDTH))


def normalised(weights, x):
    for w in weights:
        y = jnp.tanh(x) @ w
        x = x + (y - y.mean(0)) / (1 + jnp.abs(y).sum(0))
    return x


def attended(weights, x):
    for w in weights:
        keys = jnp.tanh(x) @ w
        x = x + jax.nn.softmax(x @ keys.T) @ keys
    return x


def masked(weights, x):
    """What depends on no input is there in every layer, and nothing that has to be kept."""
    for w in weights:
        keys = jnp.tanh(x) @ w
        scores = jnp.where(jnp.arange(ROWS)[:, None] < jnp.arange(ROWS), x @ keys.T, jnp.full((ROWS, ROWS), -1e9))
        x = x + jax.nn.softmax(scores) @ keys
    return x


NETWORKS = [normalised, attended, masked]


def grown(function, layers=LAYERS):
    """The regions that grow from the value of which the loops are longest, by what they keep."""
    program = canonical(jax.make_jaxpr(function)(WEIGHTS[:layers], X))
    values = [v for eqn in program.eqns for v in eqn.outvars if v.aval.shape[:1] == (ROWS,)]
    cut = [region for v in values if (region := grow(program, v, 0, Growth(small_bytes=1))) is not None]
    var = values[max(range(len(cut)), key=lambda k: longest(cut[k]))]
    return {kept: grow(program, var, 0, Growth(small_bytes=1, kept=kept)) for kept in range(len(KEPT))}


def longest(region):
    """Equations of the longest of a region's loops."""
    return max(len(region.body(level)) for level in region.levels)


@pytest.mark.parametrize("function", NETWORKS, ids=lambda f: f.__name__)
def test_a_loop_does_not_compute_all_layers_before(function):
    few, many = grown(function, LAYERS - 2), grown(function)
    assert longest(many[0]) > 1.4 * longest(few[0])
    assert all(longest(many[kept]) == longest(few[kept]) for kept in range(1, len(KEPT)))


@pytest.mark.parametrize("kept", range(1, len(KEPT)))
@pytest.mark.parametrize("chunk", [1, 5])
@pytest.mark.parametrize("function", NETWORKS, ids=lambda f: f.__name__)
def test_values_are_those_of_the_network(x64, function, chunk, kept):
    made = split_program(grown(function)[kept], chunk)
    (got,) = jax.jit(emit(made, EXPANSIONS))(*made.consts, *WEIGHTS, X)
    np.testing.assert_allclose(got, function(WEIGHTS, X), rtol=1e-10, atol=1e-10)


def test_what_is_computed_again_is_less_the_more_is_kept():
    regions = grown(normalised)
    kept_values = {kept: len(region.between) for kept, region in regions.items()}
    work = {kept: sum(len(region.body(level)) for level in region.levels) for kept, region in regions.items()}
    assert kept_values[1] > kept_values[2] > kept_values[0] == 0
    assert work[1] < work[2] < work[0]


def test_a_masked_network_keeps_no_mask():
    assert all(var.aval.shape == (ROWS, WIDTH) for var in grown(masked)[1].between)


def test_a_network_of_layers_obeys_without_computing_them_again():
    generator = np.random.default_rng(1)
    weights = [generator.standard_normal((16, 16), dtype=np.float32) / 4 for _ in range(6)]
    x = generator.standard_normal((1500, 16), dtype=np.float32)
    f = exla.jit(attended, memory_limit="3MiB", records="off")
    plan = f.plan(weights, x)
    loops = [eqn.params["loop"] for eqn in plan.program.eqns if eqn.primitive.name == "exla_split"]
    assert plan.compiled_bytes <= 3 << 20 and len(loops) >= len(weights)
    assert max(len(loop.body.eqns) for loop in loops) < 2 * len(jax.make_jaxpr(attended)(weights[:1], x).eqns)
    np.testing.assert_allclose(f(weights, x), jax.jit(attended)(weights, x), rtol=1e-4, atol=1e-4)


def test_the_lightest_cut_is_that_next_to_the_ends():
    edges = [("a", "b"), ("b", "c"), ("b", "d"), ("c", "e"), ("d", "e")]
    assert smallest_cut({"a": 5, "b": 2, "c": 1, "d": 1, "e": 9}, edges, ["a"], ["e"]) in (["c", "d"], ["d", "c"])
    assert smallest_cut({"a": 5, "b": 1, "c": 1, "d": 1, "e": 9}, edges, ["a"], ["e"]) == ["b"]
    assert smallest_cut({"a": 5, "b": 1, "c": None, "d": 1, "e": 9}, edges, ["b"], ["e"]) == ["b"]


def test_where_nothing_can_be_cut_there_is_no_cut():
    assert smallest_cut({"a": None, "b": None}, [("a", "b")], ["a"], ["b"]) is None
