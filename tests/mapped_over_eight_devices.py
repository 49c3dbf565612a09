"""What a shard_map computes is planned on each device's share; `test_placement.py` starts these tests.

Programs are compared in float64, exchange what the plain ones exchange, and leave their results where those do.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import exla
from exla.call import read
from exla.ir.shards import compute_again, hands_on_to
from exla.passes.decisions import Sink
from exla.targets.hlo_text import collectives
from tests.ring import ring_of

pytestmark = pytest.mark.usefixtures("compiled_quickly")

MESH = Mesh(np.array(jax.devices()), ("i",))
GRID = Mesh(np.array(jax.devices()).reshape(4, 2), ("i", "j"))


def made(*shapes):
    return [np.random.default_rng(k).standard_normal(s, dtype=np.float32) for k, s in enumerate(shapes)]


def mapped(fn, inputs, outputs, mesh=MESH, **options):
    return jax.shard_map(fn, mesh=mesh, in_specs=inputs, out_specs=outputs, **options)


def near(x, y):
    return jnp.exp(-jnp.sum((x[:, None] - y[None]) ** 2, axis=-1) / 9)


def product(x, y):
    """Rows are shared out; sums over them are exchanged."""

    def share(x, y):
        return jax.lax.psum(near(x, y).sum(axis=0), "i"), near(x, y) @ y

    return mapped(share, (P("i"), P()), (P(), P("i")))(x, y)


def unchecked(x, y):
    return mapped(lambda x, y: near(x, y) @ y, (P("i"), P()), P("i"), check_vma=False)(x, y)


def some_axes(x, y):
    """One of two axes of the mesh is mapped; the other is the compiler's."""
    share = mapped(lambda x, y: jax.lax.psum(near(x, y).sum(axis=0), "i"), (P("i"), P()), P(), GRID, axis_names={"i"})
    return jnp.sort(share(2 * x, y))


def by_index(x, y):
    def share(x, y):
        weight = 1 + jax.lax.axis_index("i").astype(x.dtype)
        return jax.lax.pmax(jnp.max(weight * near(x, y), axis=0), "i")

    return mapped(share, (P("i"), P()), P())(x, y)


def in_turns(x, y):
    """A shard_map inside a scan."""
    share = mapped(lambda x, y: near(x, y) @ y, (P("i"), P()), P("i"))
    return jax.lax.scan(lambda state, _: (share(state, y) / len(y), None), x, None, length=3)[0]


def loss_inside(x, y):
    """Its two shard maps are joined."""
    share = mapped(lambda x, y: jax.lax.psum(jnp.sum((near(x, y) @ y) ** 2), "i"), (P("i"), P()), P())
    return jax.value_and_grad(share, argnums=(0, 1))(x, y)


def loss_outside(x, y):
    """Something comes between forward and backward: what is big is computed again."""
    return jax.grad(lambda x, y: sum(jnp.sum(v**2) for v in product(x, y)), argnums=(0, 1))(x, y)


def attention(q, k, v):
    def share(q, k, v):
        k, v = (jax.lax.all_gather(t, "i", tiled=True) for t in (k, v))
        return jax.nn.softmax(q @ k.T / 4, axis=-1) @ v

    return mapped(share, (P("i"),) * 3, P("i"))(q, k, v)


def attention_gradient(q, k, v):
    """What was gathered for the forward pass is handed on, and not gathered again."""
    return jax.grad(lambda q: jnp.sum(attention(q, k, v) ** 2))(q)


def ring(q, k, v):
    return mapped(ring_of(8), (P("i"),) * 3, P("i"))(q, k, v)


POINTS, HEADS = made((1600, 3), (800, 3)), made(*[(2048, 16)] * 3)
PROGRAMS = {
    **{f: POINTS for f in (product, unchecked, some_axes, by_index, in_turns, loss_inside, loss_outside)},
    **{f: HEADS for f in (attention, attention_gradient, ring)},
}


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda f: f.__name__)
def test_what_is_mapped_is_split_on_each_device(fn):
    arguments = PROGRAMS[fn]
    untouched = exla.jit(fn, memory_limit="1GiB").plan(*arguments)
    assert untouched.untouched
    f = exla.jit(fn, memory_limit=untouched.compiled_bytes // 5)
    plan = f.plan(*arguments)
    assert any(isinstance(d, Sink) for d in plan.decisions) == (fn is loss_outside)
    assert plan.decisions and plan.compiled_bytes <= plan.limit_bytes
    plain = jax.jit(fn)
    exchanged = [collectives(c.as_text()) for c in (plan.compiled, plain.lower(*arguments).compile())]
    assert exchanged[0] == exchanged[1]
    jax.config.update("jax_enable_x64", True)
    try:
        exact = [np.asarray(t) for t in jax.tree.leaves(jax.jit(fn)(*(t.astype(np.float64) for t in arguments)))]
    finally:
        jax.config.update("jax_enable_x64", False)
    for got, want, right in zip(*map(jax.tree.leaves, (f(*arguments), plain(*arguments))), exact, strict=True):
        assert got.sharding == want.sharding
        error, plain_error = (np.abs(np.asarray(t, np.float64) - right).max() for t in (got, want))
        assert error <= 1e-5 * np.abs(right).max() + 4 * plain_error


def test_arguments_may_be_shared_out_before():
    x, y = POINTS
    x, y = jax.device_put(x, NamedSharding(MESH, P("i"))), jax.device_put(y, NamedSharding(MESH, P()))
    f = exla.jit(product, memory_limit="100KiB")
    assert f.plan(x, y).compiled_bytes <= 100 << 10
    for got, want in zip(f(x, y), jax.jit(product)(x, y), strict=True):
        assert got.sharding == want.sharding
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_a_limit_inside_holds_for_the_device_that_runs_it():
    x, y = POINTS
    inner = exla.jit(lambda x, y: near(x, y) @ y, memory_limit="60KiB")
    share = jax.jit(mapped(inner, (P("i"), P()), P("i")))
    used = share.lower(x, y).compile().memory_analysis()
    assert used.argument_size_in_bytes + used.output_size_in_bytes + used.temp_size_in_bytes <= 60 << 10
    np.testing.assert_allclose(share(x, y), near(x, y) @ y, rtol=1e-4, atol=1e-4)


def test_a_saved_plan_is_replayed(tmp_path):
    compiled = exla.compile(loss_outside, POINTS, memory_limit="600KiB")
    exla.save(compiled, tmp_path / "plan.json")
    loaded = exla.load(tmp_path / "plan.json", loss_outside, POINTS)
    for got, want in zip(loaded(*POINTS), compiled(*POINTS), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_plan_that_exchanges_in_the_users_own_loop_is_loaded_and_replayed(tmp_path, monkeypatch):
    """As often as the plain program does; that is compiled for a plan, and known of a record."""
    monkeypatch.setenv("EXLA_RECORDS", "append")
    monkeypatch.setenv("EXLA_RECORDS_DIR", str(tmp_path / "records"))
    limit = exla.jit(ring, memory_limit="1GiB").plan(*HEADS).compiled_bytes // 5
    compiled = exla.compile(ring, HEADS, memory_limit=limit)
    assert not compiled.plan.untouched and collectives(compiled.as_text()).in_loops == 16
    exla.save(compiled, tmp_path / "plan.json")
    loaded = exla.load(tmp_path / "plan.json", ring, HEADS)
    assert loaded.plan.decisions == compiled.plan.decisions
    assert [t.untouched for t in loaded.plan.tried] == [True, False]
    np.testing.assert_array_equal(loaded(*HEADS), compiled(*HEADS))
    again = exla.jit(ring, memory_limit=limit).plan(*HEADS)
    assert (compiled.plan.source, again.source) == ("search", "record") and again.decisions == compiled.plan.decisions
    assert [t.untouched for t in again.tried] == [False]


def shard_maps(program):
    return [k for k, e in enumerate(program.eqns) if e.primitive.name == "shard_map"]


def test_two_are_joined_where_nothing_comes_between():
    assert len(shard_maps(read(jax.make_jaxpr(loss_inside)(*POINTS)))) == 1
    assert len(shard_maps(read(jax.make_jaxpr(loss_outside)(*POINTS)))) == 2


def test_only_what_was_exchanged_is_handed_on():
    program = read(jax.make_jaxpr(attention_gradient)(*HEADS))
    first, second = shard_maps(program)
    assert hands_on_to(program, second) == [first]
    handed = [v.aval.shape for v in program.eqns[first].outvars]
    assert (2048, 2048) in handed, "the probabilities"
    again = compute_again(program, first, second)
    first, second = shard_maps(again)
    gathered = (8, 2048, 16)
    assert sorted({v.aval.shape for v in again.eqns[first].outvars}) == sorted([(2048, 16), gathered])
    assert gathered in {v.aval.shape for v in again.eqns[second].invars}
    assert "all_gather" not in str(again.eqns[second].params["jaxpr"])


def test_what_each_device_holds_counts_once_for_each():
    peak = exla.jit(attention).space(*HEADS).root.peak
    assert 2048 * 2048 * 4 <= peak.temporary_bytes < 4 * 2048 * 2048 * 4


@pytest.mark.parametrize("checked", [True, False])
def test_axes_that_types_say_are_planned(checked):
    mesh = jax.make_mesh((8,), ("i",), axis_types=(jax.sharding.AxisType.Explicit,))
    x, y = POINTS
    with jax.set_mesh(mesh):
        arguments = jax.device_put(x, NamedSharding(mesh, P("i"))), jax.device_put(y, NamedSharding(mesh, P()))
        share = jax.shard_map(lambda x, y: near(x, y) @ y, in_specs=(P("i"), P()), out_specs=P("i"), check_vma=checked)
        for limit in ("1GiB", "60KiB"):
            f = exla.jit(share, memory_limit=limit)
            plan = f.plan(*arguments)
            assert plan.untouched == (limit == "1GiB") and plan.compiled_bytes <= plan.limit_bytes
            assert f(*arguments).sharding == jax.jit(share)(*arguments).sharding
            np.testing.assert_allclose(f(*arguments), near(x, y) @ y, rtol=1e-4, atol=1e-4)


def test_a_result_that_is_read_in_another_way_too_is_not_handed_on():
    """Whole, and in shares: the second needs what all devices have made of it."""

    def fn(x):
        squares = mapped(lambda x: x**2, P("i"), P("i"))(x)
        return mapped(lambda b, a: a * jnp.sum(b), (P(), P("i")), P("i"))(squares, squares)

    (x,) = made((64, 3))
    program = read(jax.make_jaxpr(fn)(x))
    assert len(shard_maps(program)) == 2 and not hands_on_to(program, shard_maps(program)[1])
    np.testing.assert_allclose(exla.jit(fn, memory_limit="1MiB")(x), fn(x), rtol=1e-6)


def test_what_a_forward_pass_prints_is_printed_once(capfd):
    def share(q, k):
        jax.debug.print("a share of {}", q.shape[0])
        return jax.nn.softmax(q @ k.T, axis=-1) @ k

    def gradient(q, k):
        return jax.grad(lambda q: jnp.sum(mapped(share, (P("i"), P()), P("i"))(q, k) ** 2))(q)

    q, k, _ = HEADS
    f = exla.jit(gradient, memory_limit="700KiB")
    assert any(isinstance(d, Sink) for d in f.plan(q, k).decisions)
    counts = []
    for run in (f, jax.jit(gradient)):
        run(q, k).block_until_ready()
        jax.effects_barrier()
        counts.append(capfd.readouterr().out.count("a share of 256"))
    assert counts[0] == counts[1] > 0


def test_a_refusal_counts_what_each_device_holds():
    x = jax.device_put(np.zeros((4096, 64), np.float32), NamedSharding(MESH, P("i")))
    double = mapped(lambda x: 2 * x, P("i"), P("i"))
    with pytest.raises(exla.MemoryLimitError, match="of all 8 devices together") as caught:
        exla.jit(double, memory_limit="200KiB")(x)
    assert caught.value.fixed_bytes == 2 * x.nbytes // 8
    assert exla.jit(double, memory_limit=2 * x.nbytes // 8).plan(x).untouched
