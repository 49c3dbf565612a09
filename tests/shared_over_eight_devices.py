"""An axis that devices share out is cut inside the shares; `test_placement.py` starts these tests.

Programs are compared in float64, hold no more than the limit on each device, and exchange no more than the plain ones.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import exla
from exla.passes.decisions import Share
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
        for f in (some_of_each, sums, extremes, by_index, noisy, nearest, softmax_over_rows, gradient, two_layers)
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


def loops_in_shares(program):
    bodies = [e.params["jaxpr"] for e in program.eqns if e.primitive.name == "shard_map"]
    return [e.params["loop"] for body in bodies for e in body.eqns if e.primitive.name == "exla_split"]


@pytest.mark.parametrize("case", CASES)
def test_a_shared_axis_is_cut_inside_the_shares(case):
    fn, arguments, shardings, results = CASES[case]
    options = {} if results is None else {"out_shardings": results}
    given = placed(arguments, shardings)
    plain = jax.jit(fn, **options)
    f = exla.jit(fn, memory_limit=LIMIT, **options)
    plan = f.plan(*given)
    assert any(isinstance(d, Share) for d in plan.decisions) and loops_in_shares(plan.program)
    assert plan.compiled_bytes <= plan.limit_bytes
    exchanged = [collectives(c.as_text()) for c in (plan.compiled, plain.lower(*given).compile())]
    assert exchanged[0].total <= exchanged[1].total and exchanged[0].in_loops == 0
    want = jax.tree.leaves(jax.jit(fn)(*arguments))
    for got, right, there in zip(jax.tree.leaves(f(*given)), want, jax.tree.leaves(plain(*given)), strict=True):
        assert got.sharding.is_equivalent_to(there.sharding, got.ndim)
        assert got.dtype == right.dtype
        np.testing.assert_allclose(got, right, rtol=1e-10, atol=1e-13 * np.abs(right).max())
