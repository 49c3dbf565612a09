"""What follows from different comparisons has values of its own, where nothing else lets a gradient of extremes fit."""

import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback

import exla
from exla.call import read
from exla.errors import ReplayMiss
from exla.ir.emit import emit
from exla.ir.program import Site
from exla.ir.scopes import numbered
from exla.passes.decisions import Distribute, Seal, from_json, to_json
from exla.passes.distribute import Apart, enumerate_distributions
from exla.passes.replay import replay
from exla.passes.steady import Steady
from exla.passes.unless import EXPANSIONS
from exla.search.space import Space
from exla.targets.cpu import Cpu
from tests.cost_model.test_split_configs import space
from tests.passes.test_seal import LOSSES, arguments, error, gradient, in_float64
from tests.targets.test_compilers import compiler_of

pytestmark = pytest.mark.usefixtures("compiled_quickly")

APART = ("Chamfer", "Chamfer by products", "Hausdorff", "likest", "largest shares", "transposed")


def hard_negatives(x, y):
    """The triplet loss with the hardest negative of each row and of each column; the masked gradient is linear too."""
    scores = jnp.where(jnp.eye(len(x), dtype=bool), -jnp.inf, x @ y.T)
    positive = jnp.sum(x * y, 1)
    rows, columns = (jax.nn.relu(0.2 - positive + jnp.max(scores, axis)) for axis in (1, 0))
    return jnp.sum(rows) + jnp.sum(columns)


def largest_of_scaled(x, y):
    """The second comparison is of what was divided by the extreme of the first."""
    scores = jnp.exp(x @ y.T)
    scaled = scores / jnp.max(scores, 0)
    return jnp.sum(jnp.max(scaled, 1) ** 2)


def difference_of_extremes(x, y):
    """What is subtracted, in a product whose gradient is a matrix product, with large values in between."""
    scores = x @ y.T
    centred = 2 * (scores - jnp.mean(scores))
    return jnp.sum(jnp.max(centred, 0)) - jnp.sum(jnp.min(centred, 1) ** 2)


def signed(x, y):
    """What is nearest in a row, less what is nearest in a column."""
    distances = jnp.sum((x[:, None] - y[None]) ** 2, axis=-1)
    rows, columns = (distances == jnp.min(distances, axis, keepdims=True) for axis in (1, 0))
    return (jnp.sum(jnp.where(rows, distances, 0.0) - jnp.where(columns, distances, 0.0), axis=1),)


PROGRAMS = (
    {"signed": signed}
    | {name: gradient(name) for name in APART}
    | {loss.__name__: jax.grad(loss, (0, 1)) for loss in (hard_negatives, largest_of_scaled, difference_of_extremes)}
)


def first(function, values):
    program = numbered(read(jax.make_jaxpr(function)(*values), "cpu"))
    return program, next(enumerate_distributions(Steady(program=program)), None)


@pytest.mark.parametrize("ties", [False, True], ids=["", "ties"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_apart_is_the_same(name, ties):
    function, values = PROGRAMS[name], arguments(96, 96, 3, ties=ties)
    want = in_float64(function, values)
    if error(jax.jit(function)(*values), want) > 1e-4:
        pytest.skip("in float32 these are no ties, or others")
    program, decision = first(function, values)
    made = numbered(replay(program, decision))
    with jax.disable_jit():
        got = emit(made, EXPANSIONS)(*values)
    assert error(got, want) < 1e-5
    assert not list(enumerate_distributions(Steady(program=made))), "there are copies for all"


def mutual(x, y):
    """What follows from both comparisons at once: a copy of one would be compared with the extreme of the other."""
    distances = jnp.sum((x[:, None] - y[None]) ** 2, axis=-1)
    rows, columns = (distances == jnp.min(distances, axis, keepdims=True) for axis in (1, 0))
    return (jnp.sum(jnp.where(rows & columns, distances, 0.0)),)


def returned(x, y):
    """What is large and returned follows from the second comparison."""
    scores = x @ y.T
    rows = jnp.sum(jnp.where(scores == jnp.max(scores, 1, keepdims=True), scores, 0.0), 0)
    return rows, scores == jnp.max(scores, 0)


def both_of_one(x, y):
    """Two comparisons with one extreme."""
    scores = x @ y.T
    most = jnp.max(scores, 1, keepdims=True)
    return jnp.sum(jnp.where(scores == most, scores, 0.0), 0), jnp.sum(jnp.where(scores != most, scores, 0.0), 0)


def printed(x, y):
    """What is large and printed follows from the second comparison."""
    scores = x @ y.T
    rows = jnp.sum(jnp.where(scores == jnp.max(scores, 1, keepdims=True), scores, 0.0), 0)
    largest = scores == jnp.max(scores, 0)
    jax.debug.callback(lambda v: None, largest)
    return rows, jnp.sum(jnp.where(largest, scores, 0.0), 1)


def drawn(x, y):
    """What is compared is told to somebody while it is made: it must not be made twice."""
    told = jax.ShapeDtypeStruct((len(x), len(y)), x.dtype)
    scores = io_callback(lambda x, y: np.asarray(x) @ np.asarray(y).T, told, x, y)
    rows = jnp.sum(jnp.where(scores == jnp.max(scores, 1, keepdims=True), scores, 0.0), 0)
    return rows, jnp.sum(jnp.where(scores == jnp.max(scores, 0), scores, 0.0), 1)


def lesser(x, y):
    """What follows from the second comparison is compared with what is made of the first one's extremes."""
    scores = x @ y.T
    most = [jnp.max(scores, axis, keepdims=True) for axis in (1, 0)]
    rows, columns = (scores == extreme for extreme in most)
    both = columns & (scores == jnp.minimum(most[0], most[1]))
    return jnp.sum(jnp.where(rows, scores, 0.0), 0), jnp.sum(jnp.where(both, scores, 0.0), 1)


def looped(x, y):
    """One loop takes what follows from the second comparison, and makes both something large and something small."""
    scores = x @ y.T
    rows = jnp.sum(jnp.where(scores == jnp.max(scores, 1, keepdims=True), scores, 0.0), 0)
    shares = jnp.where(scores == jnp.max(scores, 0), scores, 0.0)
    total, scaled = lax.scan(lambda t, row: (t + jnp.sum(row), row * t), 0.0, shares)
    return rows, total, jnp.sum(scaled, 0)


UNDIVIDED = {name: gradient(name) for name in ("farthest", "centred")}
UNDIVIDED |= {
    function.__name__: function for function in (mutual, returned, both_of_one, printed, drawn, lesser, looped)
}


@pytest.mark.parametrize("name", UNDIVIDED)
def test_nothing_is_made_apart_that_one_copy_does_not_follow_from(name):
    program, decision = first(UNDIVIDED[name], arguments(64, 48, 3))
    assert decision is None
    apart = Apart.of(program)  # whether or not something else asks for it
    assert apart is None or not apart.computes()


def weighted_twice(x, y):
    """A sum of many terms, each made of those before: what is shared is not gone through again for every reader."""
    scores = x @ y.T
    parts = [jnp.where(scores == jnp.max(scores, axis, keepdims=True), scores, 0.0) for axis in (0, 1)]
    total = parts[0] + parts[1]
    for _ in range(40):
        total = total + 0.5 * total
    return (jnp.sum(total, 1),)


def test_sums_of_too_many_terms_are_left_whole():
    assert first(weighted_twice, arguments(64, 48, 3))[1] is None


def test_deep_programs_are_copied_without_recursion():
    """The second copy is made through a chain longer than Python's stack."""

    def deep(x, y):
        scores = x @ y.T
        for _ in range(600):
            scores = jnp.sin(scores) + scores
        rows, columns = (scores == jnp.max(scores, axis, keepdims=True) for axis in (1, 0))
        return jnp.sum(jnp.where(rows, scores, 0.0), 0), jnp.sum(jnp.where(columns, scores, 0.0), 1)

    program, decision = first(deep, arguments(48, 32, 3))
    before, after = (sum(e.primitive.name == "sin" for e in p.eqns) for p in (program, replay(program, decision)))
    assert (before, after) == (600, 1200)


@pytest.mark.parametrize("name", ["Chamfer", "likest", "hard_negatives", "largest_of_scaled"])
def test_splits_of_what_is_apart_are_right(name):
    function, values = PROGRAMS[name], arguments(160, 160, 5)
    want = in_float64(function, values)
    made = space(function, values, share=0.2)
    (start,) = made.distributed(made.rewritten)
    offered = list(itertools.islice(made.below(start), 12))
    assert offered
    for candidate in offered[:: max(len(offered) // 4, 1)]:
        got = jax.jit(emit(candidate.program, EXPANSIONS))(*values)
        assert error(got, want) < 1e-4, str(candidate)


def test_it_is_chosen_where_nothing_can_be_sealed(monkeypatch):
    function, values, matrix = gradient("Chamfer"), arguments(600, 500, 3), 4 * 600 * 500
    sealed = exla.jit(function, memory_limit=matrix // 4, records="off").plan(*values)
    assert any(isinstance(d, Seal) for d in sealed.decisions)
    monkeypatch.setattr(Space, "sealed", lambda self, start: iter(()))
    here = Cpu().machine()  # with 2 MiB in the cores' own caches the beam goes elsewhere, and finds nothing
    monkeypatch.setattr(Cpu, "machine", lambda self: replace(here, near_bytes=1 << 20))
    f = exla.jit(function, memory_limit=matrix // 4, records="off")
    plan = f.plan(*values)
    assert any(isinstance(d, Distribute) for d in plan.decisions) and plan.compiled_bytes <= matrix // 4
    assert "each by itself" in str(plan)
    assert error(f(*values), in_float64(function, values)) < 1e-4
    with pytest.raises(exla.MemoryLimitError, match="must be computed in one place"):
        exla.jit(function, memory_limit=matrix // 4, records="off", numerics="exact").plan(*values)


def fit(x, y):
    """A loop of the user's around such a gradient."""
    step = jax.grad(LOSSES["Chamfer"])
    return jax.lax.fori_loop(0, 4, lambda _, z: z - 0.05 * len(z) * step(z, y), x)


@pytest.mark.parametrize(
    "function", [gradient("Chamfer"), PROGRAMS["hard_negatives"], fit], ids=["Chamfer", "hard", "fit"]
)
def test_on_a_gpu_such_gradients_fit(function):
    compiler_of("gpu:h100")
    rows = jax.ShapeDtypeStruct((3000, 3), np.float32)
    limit = 4 * 3000 * 3000 // 4
    plan = exla.compile(function, (rows, rows), target="gpu:h100", memory_limit=limit, records="off").plan
    assert any(isinstance(d, Distribute) for d in plan.decisions) and plan.compiled_bytes <= limit


def test_decisions_are_plain_data_and_miss_where_they_do_not_apply():
    program, decision = first(gradient("Chamfer"), arguments(64, 48, 3))
    assert from_json(to_json(decision)) == decision
    assert program.eqns[decision.site.position].primitive.name == "eq"
    with pytest.raises(ReplayMiss, match="another one"):
        replay(program, Distribute(path=(), site=Site(position=decision.site.position, fingerprint="0")))
    made = replay(program, decision)
    again = next(i for i, eqn in enumerate(made.eqns) if eqn.primitive.name == "eq")
    with pytest.raises(ReplayMiss, match="not the first of comparisons"):
        replay(made, Distribute(path=(), site=made.site(again)))
