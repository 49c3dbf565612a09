"""An axis that devices share out is cut inside the shares; `test_placement.py` starts these tests.

Programs are compared in float64, hold no more than the limit on each device, and exchange no more than the plain ones.
"""

import itertools
import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import exla
from exla.cost_model.split_configs import COLUMNS, describe
from exla.errors import ReplayMiss
from exla.ir.emit import emit
from exla.ir.fingerprint import fingerprint
from exla.passes.decisions import Share, from_json, to_json
from exla.passes.unless import EXPANSIONS
from exla.targets.hlo_text import collectives

pytestmark = pytest.mark.usefixtures("compiled_quickly")

MESH = Mesh(np.array(jax.devices()), ("i",))
GRID = Mesh(np.array(jax.devices()).reshape(4, 2), ("i", "j"))
ROWS = 1600
LIMIT = "250KiB"
"""A quarter of what each device holds of 1600 x 640 numbers."""


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def made(*shapes):
    return [np.random.default_rng(k).standard_normal(s) for k, s in enumerate(shapes)]


def near(x, y):
    return jnp.exp(-jnp.sum((x[..., :, None, :] - y[..., None, :, :]) ** 2, axis=-1) / 9)


def some_of_each(x, y):
    """The columns are sorted: only the rows can be cut."""
    return jnp.sort(near(x, y), axis=-1)[..., ::64]


def sums(x, y):
    """Rows are stacked; what is summed over them is exchanged."""
    k = near(x, y)
    return k.sum(axis=0), k @ y


def extremes(x, y):
    k = near(x, y)
    return k.max(axis=0), k.min(axis=0), jnp.any(k > 0.99, axis=0), jnp.prod(1 + k / ROWS, axis=0)


def by_index(x, y):
    """What a row is depends on which row it is."""
    row, column = (jax.lax.broadcasted_iota(jnp.int32, (len(x), len(y)), axis) for axis in (0, 1))
    k = jnp.where(row >= 2 * column, near(x, y), -1.0) * (1 + row)
    return jnp.sort(k, axis=1)[:, ::64], k.sum(axis=0)


def noisy(x, y):
    noise = jax.random.normal(jax.random.key(3), (len(x), len(y)))
    return jnp.sort(near(x, y) + noise, axis=1)[:, ::64]


def nearest(x, y):
    return jax.lax.top_k(near(x, y), 3), jnp.argmin(near(x, y), axis=1)


def softmax_over_rows(x, y):
    """What is summed over the shares is needed by each of them."""
    return jax.nn.softmax(near(x, y), axis=0).T @ x


def gradient(x, y):
    return jax.value_and_grad(lambda x, y: jnp.sum(jnp.log(near(x, y).sum(axis=1))), argnums=(0, 1))(x, y)


def in_turns(x, y):
    def turn(x, _):
        k = near(x, y)
        return (k @ y) / k.sum(axis=1, keepdims=True), None

    return jax.lax.scan(turn, x, None, length=3)[0]


def two_layers(x, y):
    """What lies between two big values is small."""
    hidden = near(x, y) @ y / len(y)
    return near(hidden, y).sum(axis=1)


POINTS, BATCH = made((ROWS, 3), (640, 3)), made((4, ROWS, 3), (4, 160, 3))
ROW, MIDDLE = (NamedSharding(MESH, spec) for spec in (P("i"), P(None, "i")))
BOTH, ONE = (NamedSharding(GRID, spec) for spec in (P(("j", "i")), P("i")))
CASES = {
    **{
        f.__name__: (f, POINTS, (ROW, None), None)
        for f in (
            some_of_each,
            sums,
            extremes,
            by_index,
            noisy,
            nearest,
            softmax_over_rows,
            gradient,
            two_layers,
            in_turns,
        )
    },
    "an axis in the middle": (some_of_each, BATCH, (MIDDLE, None), None),
    "sums, an axis in the middle": (lambda x, y: near(x, y).sum(axis=1), BATCH, (MIDDLE, None), None),
    "two axes of the mesh": (some_of_each, POINTS, (BOTH, None), None),
    "sums, two axes of the mesh": (sums, POINTS, (BOTH, None), None),
    "one axis of two": (some_of_each, POINTS, (ONE, None), None),
    "another axis for others": (
        lambda x, y: near(x, y).sum(axis=0),
        POINTS,
        (ONE, NamedSharding(GRID, P("j"))),
        None,
    ),
    "results elsewhere": (
        lambda x, y: jnp.sort(near(x, y), axis=1)[:, ::16],
        POINTS,
        (ROW, None),
        MIDDLE,
    ),
    "results whole": (sums, POINTS, (ROW, None), NamedSharding(MESH, P())),
}


def placed(arguments, shardings):
    return [x if s is None else jax.device_put(x, s) for x, s in zip(arguments, shardings, strict=True)]


def is_cut_in_shares(program):
    return any("exla_split" in str(e.params["jaxpr"]) for e in program.eqns if e.primitive.name == "shard_map")


@pytest.mark.parametrize("case", CASES)
def test_a_shared_axis_is_cut_inside_the_shares(case):
    fn, arguments, shardings, results = CASES[case]
    options = {} if results is None else {"out_shardings": results}
    given = placed(arguments, shardings)
    plain = jax.jit(fn, **options)
    f = exla.jit(fn, memory_limit=LIMIT, **options)
    plan = f.plan(*given)
    if fn is not two_layers:  # which can be cut along the axis that no device shares out
        assert any(isinstance(d, Share) for d in plan.decisions) and is_cut_in_shares(plan.program)
    assert plan.compiled_bytes <= plan.limit_bytes
    exchanged = [collectives(c.as_text()) for c in (plan.compiled, plain.lower(*given).compile())]
    assert exchanged[0].total <= exchanged[1].total and exchanged[0].in_loops == 0
    want = jax.tree.leaves(jax.jit(fn)(*arguments))
    for got, right, there in zip(jax.tree.leaves(f(*given)), want, jax.tree.leaves(plain(*given)), strict=True):
        assert got.sharding.is_equivalent_to(there.sharding, got.ndim)
        assert got.dtype == right.dtype
        np.testing.assert_allclose(got, right, rtol=1e-10, atol=1e-13 * np.abs(right).max())


def test_a_saved_plan_is_replayed(tmp_path):
    arguments = placed(POINTS, (ROW, None))
    given = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=getattr(x, "sharding", None)) for x in arguments]
    compiled = exla.compile(softmax_over_rows, given, memory_limit=LIMIT)
    assert any(isinstance(d, Share) for d in compiled.plan.decisions)
    exla.save(compiled, tmp_path / "plan.json")
    loaded = exla.load(tmp_path / "plan.json", softmax_over_rows, given)
    assert loaded.plan.decisions == compiled.plan.decisions
    np.testing.assert_array_equal(loaded(*arguments), compiled(*arguments))


def test_what_was_recorded_is_replayed(tmp_path, monkeypatch):
    monkeypatch.setenv("EXLA_RECORDS", "append")
    monkeypatch.setenv("EXLA_RECORDS_DIR", str(tmp_path))
    given = placed(POINTS, (ROW, None))
    first, second = (exla.jit(some_of_each, memory_limit=LIMIT).plan(*given) for _ in range(2))
    assert (first.source, second.source) == ("search", "record")
    assert first.decisions == second.decisions


def of_one_share(**changed):
    """The decision of a program, changed, replayed on it."""
    space = exla.jit(some_of_each, memory_limit=LIMIT).space(*placed(POINTS, (ROW, None)))
    moved = next(c for c in space.moved(space.root) if any(isinstance(d, Share) for d in c.decisions))
    (share,) = moved.decisions
    return space.build([replace(share, **changed)]), moved


def test_a_share_is_plain_data():
    made, moved = of_one_share()
    assert made.decisions == moved.decisions and made.peak.bytes == moved.peak.bytes
    (share,) = moved.decisions
    assert from_json(json.loads(json.dumps(to_json(share)))) == share
    assert (share.mesh, share.names) == ((("i", 8),), ("i",))


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"mesh": (("i", 7),)}, "no 7 equal shares"),
        ({"mesh": (("i", 1600),)}, "no 1600 equal shares"),
        ({"names": ("j",)}, "no such axes"),
        ({"names": ("i", "i")}, "no such axes"),
        ({"path": ((0, 0),)}, "in no loop"),
        ({"axis": 7}, "no axis 7"),
    ],
)
def test_a_share_that_does_not_apply_is_a_miss(changed, why):
    with pytest.raises(ReplayMiss, match=why):
        of_one_share(**changed)


def test_candidates_that_differ_have_different_numbers():
    space = exla.jit(sums, memory_limit=LIMIT).space(*placed(POINTS, (ROW, None)))
    made = [c for start in space.uncut for c in (start, *itertools.islice(space.below(start), 40))]
    found = list({str(c): c for c in made}.values())
    numbers = describe(space.starts).configs(found, space.option_sets)
    assert len({rows.tobytes() for rows in numbers}) >= len({fingerprint(c.program) for c in found}) > 10
    on_shares = (numbers[:, :, COLUMNS.index("moved")] == 3).any(axis=1)
    assert on_shares.tolist() == [any(isinstance(d, Share) for d in c.decisions) for c in found]
    assert 0 < on_shares.sum() < len(found)


def test_each_device_counts_from_its_own_first_index():
    """Whatever the chunks: the body knows where its share begins."""
    space = exla.jit(by_index, memory_limit=LIMIT).space(*placed(POINTS, (ROW, None)))
    moved = next(c for c in space.moved(space.root) if any(isinstance(d, Share) for d in c.decisions))
    want = by_index(*POINTS)
    seeds = [seed for seed in space.offers(moved) if seed.region.size > 24]
    assert any(seed.region.size == ROWS // 8 for seed in seeds)
    for program in (moved.program, *(space.cut(moved, seed, 24).program for seed in seeds)):
        for got, right in zip(jax.jit(emit(program, EXPANSIONS))(*placed(POINTS, (ROW, None))), want, strict=True):
            np.testing.assert_allclose(got, right, rtol=1e-10, atol=1e-13 * np.abs(right).max())


def test_a_refusal_says_why_an_axis_is_not_cut_in_the_shares():
    f = exla.jit(lambda x, y: jnp.sort(jnp.cumsum(near(x, y), axis=0), axis=1)[:, ::64], memory_limit="200KiB")
    with pytest.raises(
        exla.MemoryLimitError, match="along i of the mesh .* `cumsum` at .* runs through the axis in order"
    ):
        f.plan(*placed(POINTS, (ROW, None)))


REACHING = {
    "a running sum": lambda x, y: jnp.sort(jnp.cumsum(near(x, y), axis=0), axis=1)[:, ::64],
    "a window": lambda x, y: (k := near(x, y))[2:] + k[:-2],
    "turned around": lambda x, y: near(x, y)[::-1] @ y,
    "the largest few": lambda x, y: jax.lax.top_k(near(x, y).T, 3),
    "sorted": lambda x, y: jnp.sort(near(x, y), axis=0)[::64],
    "both with both": lambda x, y: near(x, x).sum(axis=1),
    "rows with columns": lambda x, y: ((k := near(x, x)) + k.T).sum(axis=1),
    "the place of the largest": lambda x, y: jnp.argmax(near(x, y), axis=0),
    "a mean taken off": lambda x, y: ((k := near(x, y)) - k.mean(axis=0)).max(axis=1),
}


@pytest.mark.parametrize("case", REACHING)
def test_what_reaches_beyond_a_share_is_right_or_refused(case):
    fn, given = REACHING[case], placed(POINTS, (ROW, None))
    plain = jax.jit(fn)
    f = exla.jit(fn, memory_limit=LIMIT)
    try:
        plan = f.plan(*given)
    except exla.MemoryLimitError:
        return
    exchanged = [collectives(c.as_text()) for c in (plan.compiled, plain.lower(*given).compile())]
    assert exchanged[0].total <= exchanged[1].total and exchanged[0].in_loops <= exchanged[1].in_loops
    for got, right in zip(jax.tree.leaves(f(*given)), jax.tree.leaves(plain(*POINTS)), strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-10, atol=1e-13 * np.abs(right).max())
