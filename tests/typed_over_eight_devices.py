"""Meshes whose axes are part of types, as those of `jax.make_mesh`; `test_placement.py` starts these tests.

Programs are planned as over the same mesh with Auto axes, and leave their results where, and of the types that, the
plain ones do. Values are compared in float64.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import exla
from exla.passes.decisions import Share
from exla.targets.hlo_text import collectives
from tests.shared_over_eight_devices import (
    BATCH,
    LIMIT,
    POINTS,
    by_index,
    extremes,
    float64,
    gradient,
    in_turns,
    near,
    nearest,
    noisy,
    placed,
    some_of_each,
    sums,
    two_layers,
)

__all__ = ["float64"]

pytestmark = pytest.mark.usefixtures("compiled_quickly")

MESH = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Explicit,))
GRID = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Explicit,) * 2)
MIXED = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Explicit, AxisType.Auto))
ROW, WHOLE = NamedSharding(MESH, P("i")), NamedSharding(MESH, P())


def softmax_over_rows_said(x, y):
    """What is summed over the shares is needed by each of them, and lies whole on each."""
    return jnp.einsum("ij,ik->jk", jax.nn.softmax(near(x, y), axis=0), x, out_sharding=WHOLE)


def gathered(x, y):
    """The rows are wanted by every device."""
    z = jax.sharding.reshard(x[:640], P())
    return near(x, z).sum(axis=1), z


def said(x, y):
    """Results and values in between are said to lie so."""
    k = jnp.einsum("ia,ja->ij", x, y, out_sharding=P("i", None))
    total = jnp.einsum("ij,ik->jk", jnp.sin(k), x, out_sharding=P(None, None))
    return jnp.exp(k).sum(axis=1), total, jnp.zeros((len(x), 2), out_sharding=P("i"))


def left_to_the_compiler(x, y):
    over = jax.sharding.auto_axes(lambda x, y: near(x, y).sum(axis=1), axes="i", out_sharding=P("i"))
    return over(x, y)


def mapped(x, y):
    return jax.shard_map(lambda x, y: near(x, y).sum(axis=1), in_specs=(P("i"), P()), out_specs=P("i"))(x, y)


def one_of_two(x, y):
    """The other axis of the mesh stays in the types of what is mapped."""
    share = jax.shard_map(
        lambda x, y: near(x, y).sum(axis=1), in_specs=(P("i"), P()), out_specs=P("i"), axis_names={"i"}
    )
    return share(x, y)


def constant(x, y):
    """What comes of no argument with a mesh in its type has none in its own."""
    return near(x, y).sum(axis=1), jnp.arange(5.0) * 2


CASES = {
    **{
        f.__name__: (f, POINTS, (ROW, None))
        for f in (
            some_of_each,
            sums,
            extremes,
            by_index,
            noisy,
            nearest,
            softmax_over_rows_said,
            gradient,
            in_turns,
            two_layers,
            constant,
        )
    },
    "all in types": (sums, POINTS, (ROW, WHOLE)),
    "an axis in the middle": (some_of_each, BATCH, (NamedSharding(MESH, P(None, "i")), None)),
    "two axes of the mesh": (sums, POINTS, (NamedSharding(GRID, P(("j", "i"))), None)),
    "one axis of two": (sums, POINTS, (NamedSharding(GRID, P("i")), None)),
    "an Auto axis too": (sums, POINTS, (NamedSharding(MIXED, P("i")), None)),
}
SMALL = POINTS[1]
COLUMN = NamedSharding(GRID, P("j"))
UNDER = {
    "gathered": (gathered, MESH, (ROW, None)),
    "said": (said, MESH, (ROW, WHOLE)),
    "left to the compiler": (left_to_the_compiler, MESH, (ROW, WHOLE)),
    "mapped": (mapped, MESH, (ROW, WHOLE)),
    "one of two": (one_of_two, GRID, (NamedSharding(GRID, P("i")), NamedSharding(GRID, P()))),
    "sums": (sums, MESH, (ROW, None)),
    "rows sent elsewhere": (lambda x, y: sums(jax.sharding.reshard(x, P("i", None)), y), GRID, (COLUMN, None)),
    "nothing is said of arguments": (sums, MESH, (None, None)),
}


def agrees(fn, given, limit=LIMIT):
    """Plan and run it; the plan, where results are, of what types and values, and what is exchanged, are checked."""
    plain, f = jax.jit(fn), exla.jit(fn, memory_limit=limit)
    plan = f.plan(*given)
    exchanged = [collectives(c.as_text()) for c in (plan.compiled, plain.lower(*given).compile())]
    assert exchanged[0].total <= exchanged[1].total and exchanged[0].in_loops == 0
    assert not plan.untouched and plan.compiled_bytes <= plan.limit_bytes
    want = jax.tree.leaves(plain(*given))
    for _ in range(2):
        for got, right in zip(jax.tree.leaves(f(*given)), want, strict=True):
            assert got.sharding == right.sharding and got.committed == right.committed
            assert jax.typeof(got) == jax.typeof(right)
            np.testing.assert_allclose(got, right, rtol=1e-10, atol=1e-13 * np.abs(right).max())
    return plan


@pytest.mark.parametrize("case", CASES)
def test_what_types_share_out_is_planned_as_over_auto_axes_and_typed_as_before(case):
    fn, arguments, shardings = CASES[case]
    plan = agrees(fn, placed(arguments, shardings))
    # Of the two layers, what no device shares out can be cut instead.
    assert fn is two_layers or any(isinstance(d, Share) for d in plan.decisions)
    if case in ("some_of_each", "sums", "gradient"):
        auto = NamedSharding(Mesh(MESH.devices, MESH.axis_names), P("i"))
        assert exla.jit(fn, memory_limit=LIMIT).plan(*placed(arguments, (auto, None))).decisions == plan.decisions


@pytest.mark.parametrize("case", UNDER)
def test_under_a_mesh_too(case):
    fn, mesh, shardings = UNDER[case]
    with jax.set_mesh(mesh):
        agrees(fn, placed(POINTS, shardings))
        assert jax.sharding.get_mesh() == mesh


def test_under_a_mesh_with_auto_axes():
    auto = Mesh(MESH.devices, MESH.axis_names)
    with jax.set_mesh(auto):
        agrees(sums, placed(POINTS, (NamedSharding(auto, P("i")), None)))


def test_results_go_where_out_shardings_say():
    given = placed(POINTS, (ROW, None))
    f, plain = (jit(sums, out_shardings=WHOLE, **o) for jit, o in ((exla.jit, {"memory_limit": LIMIT}), (jax.jit, {})))
    assert not f.plan(*given).untouched
    for got, want in zip(jax.tree.leaves(f(*given)), jax.tree.leaves(plain(*given)), strict=True):
        assert got.sharding == want.sharding and jax.typeof(got) == jax.typeof(want)
        np.testing.assert_allclose(got, want, rtol=1e-10)


def test_arguments_that_are_donated_or_placed_by_in_shardings():
    wanted, whole = POINTS
    common = {"in_shardings": (ROW, WHOLE), "donate_argnums": 0}
    plain = jax.jit(sums)(*placed(POINTS, (ROW, WHOLE)))
    f = exla.jit(sums, memory_limit=LIMIT, **common)
    for _ in range(2):
        got = f(jax.device_put(wanted, ROW), whole)
        for a, b in zip(got, plain, strict=True):
            assert a.sharding == b.sharding and jax.typeof(a) == jax.typeof(b)
            np.testing.assert_allclose(a, b, rtol=1e-10)


def test_a_constant_that_is_shared_out_comes_along():
    x = jax.device_put(POINTS[0], ROW)

    def fn(y):
        return near(x, y).sum(axis=1)

    for f in (jax.jit(fn), exla.jit(fn, memory_limit=LIMIT)):
        with pytest.raises(ValueError, match="device assignment"):
            f(SMALL)
    with jax.set_mesh(MESH):
        got, want = exla.jit(fn, memory_limit="1MiB")(SMALL), jax.jit(fn)(SMALL)
        assert got.sharding == want.sharding
        np.testing.assert_allclose(got, want, rtol=1e-10)


def test_what_obeys_the_limit_is_untouched():
    given = placed(POINTS, (ROW, None))
    f = exla.jit(some_of_each, memory_limit="1GiB")
    assert f.plan(*given).untouched
    for got, want in zip(jax.tree.leaves(f(*given)), jax.tree.leaves(jax.jit(some_of_each)(*given)), strict=True):
        assert got.sharding == want.sharding and jax.typeof(got) == jax.typeof(want)
        np.testing.assert_array_equal(got, want)


def test_a_result_feeds_a_typed_program():
    given = placed(POINTS, (ROW, None))
    plain = jax.jit(lambda x, y: near(x, y) @ y)
    f = exla.jit(lambda x, y: near(x, y) @ y, memory_limit=LIMIT)
    first = f(*given)
    assert jax.typeof(first).sharding.spec == P("i", None)
    np.testing.assert_allclose(
        f(first + given[0], given[1]), plain(first + given[0], given[1]), rtol=1e-10, atol=1e-200
    )


def test_a_plan_over_explicit_axes_is_saved_and_loaded(tmp_path):
    arguments = placed(POINTS, (ROW, None))
    given = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=getattr(x, "sharding", None)) for x in arguments]
    compiled = exla.compile(softmax_over_rows_said, given, memory_limit=LIMIT)
    exla.save(compiled, tmp_path / "plan.json")
    loaded = exla.load(tmp_path / "plan.json", softmax_over_rows_said, given)
    assert loaded.plan.decisions == compiled.plan.decisions
    got, want = loaded(*arguments), jax.jit(softmax_over_rows_said)(*arguments)
    assert got.sharding == want.sharding
    np.testing.assert_allclose(got, want, rtol=1e-10)


def nested(x, y):
    """The inner map asks how the outer one's values lie along an axis that is in types."""
    inner = jax.shard_map(lambda x: 2 * x, in_specs=P("j"), out_specs=P("j"), axis_names={"j"})
    outer = jax.shard_map(
        lambda x, y: inner(jax.sharding.reshard(near(x, y), P("j", None))).sum(axis=1),
        in_specs=(P("i"), P()),
        out_specs=P("i"),
        axis_names={"i"},
    )
    return outer(x, y)


def test_what_asks_for_its_types_stays_whole_with_a_reason():
    given = placed(POINTS, (NamedSharding(GRID, P("i")), NamedSharding(GRID, P())))
    with jax.set_mesh(GRID):
        f = exla.jit(nested, memory_limit="1GiB")
        assert f.plan(*given).untouched
        np.testing.assert_array_equal(f(*given), jax.jit(nested)(*given))
        with pytest.raises(exla.ExlaError, match=r"the shard_map at .* asks how values lie along Explicit axes"):
            exla.jit(nested, memory_limit=LIMIT)(*given)


def test_unreduced_values_stay_whole_with_a_reason():
    def fn(x, y):
        total = jnp.einsum("ij,ik->jk", near(x, y), x, out_sharding=P(unreduced={"i"}))
        return jax.sharding.reshard(total, P())

    given = placed(POINTS, (ROW, WHOLE))
    with jax.set_mesh(MESH):
        f = exla.jit(fn, memory_limit="1GiB")
        np.testing.assert_array_equal(f(*given), jax.jit(fn)(*given))
        with pytest.raises(exla.ExlaError, match="are unreduced"):
            exla.jit(fn, memory_limit=LIMIT)(*given)
