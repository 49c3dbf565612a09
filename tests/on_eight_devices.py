"""Split programs run, and leave their results, where jax.jit would; `test_placement.py` starts these tests.

Each case is what `jax.jit` is given and how the arguments are placed. Device 3 is one of eight simulated ones.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

import exla
from exla.targets.hlo_text import collectives
from tests.sweep import all_but
from tests.test_api import SMALL, expected, kernel_product, points

pytestmark = pytest.mark.usefixtures("compiled_quickly")

ZERO, THIRD = jax.devices()[0], jax.devices()[3]
ON_THIRD = SingleDeviceSharding(THIRD)
MESH_OF_ONE = NamedSharding(Mesh(np.array([THIRD]), ("i",)), PartitionSpec("i"))
SPREAD = NamedSharding(Mesh(np.array(jax.devices()), ("i",)), PartitionSpec("i"))


def fn(x, y, v):
    return {"out": kernel_product(x, y, v), "none": None, "twice": v * 2}


def on(place):
    return lambda args: jax.device_put(args, place)


def some(args):
    return jax.device_put(args[0], THIRD), np.asarray(args[1]), args[2]


ON_ONE = {
    "nothing said": ({}, tuple),
    "committed": ({}, on(THIRD)),
    "one of three committed": ({}, some),
    "committed to a mesh of one": ({}, on(MESH_OF_ONE)),
    "in": ({"in_shardings": ON_THIRD}, tuple),
    "in, of some": ({"in_shardings": (None, ON_THIRD, None)}, tuple),
    "in, as a list": ({"in_shardings": [None, ON_THIRD, None]}, tuple),
    "in, committed elsewhere": ({"in_shardings": ON_THIRD}, on(ZERO)),
    "in, of a mesh of one": ({"in_shardings": MESH_OF_ONE, "out_shardings": MESH_OF_ONE}, tuple),
    "out": ({"out_shardings": ON_THIRD}, tuple),
    "out, of some": ({"out_shardings": {"out": MESH_OF_ONE, "none": None, "twice": None}}, tuple),
    "out, of two kinds": ({"out_shardings": {"out": MESH_OF_ONE, "none": None, "twice": ON_THIRD}}, tuple),
    "device": ({"device": THIRD}, tuple),
    "device, committed elsewhere": ({"device": THIRD}, on(ZERO)),
    "donated": ({"donate_argnums": 2, "out_shardings": ON_THIRD}, on(THIRD)),
}


LIMITS = {"split": SMALL, "untouched": "1GiB"}
CASES = [(case, limit) for case in ON_ONE for limit in LIMITS]
USUAL = ("nothing said", "one of three committed", "in, of some", "out, of two kinds", "device", "donated")
ALIKE = {
    *((case, "untouched") for case in ON_ONE if case not in USUAL),
    *((case, "split") for case in ("in, as a list", "out, of some", "device, committed elsewhere")),
}


@pytest.mark.filterwarnings("ignore:backend and device")
@pytest.mark.parametrize("case", all_but(ALIKE, CASES), ids="-".join)
def test_results_are_where_jax_jit_leaves_them(case):
    (options, place), limit = ON_ONE[case[0]], LIMITS[case[1]]
    plain, f = jax.jit(fn, **options), exla.jit(fn, memory_limit=limit, **options)
    assert f.plan(*place(points())).untouched == (limit == "1GiB")
    for _ in range(2):
        want, got = plain(*place(points())), f(*place(points()))
        assert jax.tree.structure(got) == jax.tree.structure(want)
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            assert (a.sharding, a.committed) == (b.sharding, b.committed)
        np.testing.assert_allclose(got["out"], expected(*points()), rtol=1e-5, atol=1e-5)


def test_the_default_device_is_used():
    f = exla.jit(fn, memory_limit=SMALL)
    assert f(*points())["out"].devices() == {ZERO}
    with jax.default_device(THIRD):
        result = f(*map(np.asarray, points()))["out"]
    assert result.devices() == {THIRD} and not result.committed


def test_constants_come_along():
    x, y, v = points()
    for constant in (x, np.asarray(x), jax.device_put(x, THIRD)):
        f = exla.jit(lambda y, v, x=constant: kernel_product(x, y, v), memory_limit=SMALL)
        for device in (THIRD, ZERO):
            for _ in range(2):
                result = f(*jax.device_put((y, v), device))
                assert result.devices() == {device}
                np.testing.assert_allclose(result, expected(x, y, v), rtol=1e-5, atol=1e-5)


def test_arguments_on_different_devices_are_refused_as_by_jax_jit():
    x, y, v = points()
    for f in (jax.jit(fn), exla.jit(fn, memory_limit=SMALL)):
        with pytest.raises(ValueError, match="incompatible devices"):
            f(jax.device_put(x, THIRD), jax.device_put(y, ZERO), v)


SEVERAL = {
    "arguments": ({}, lambda args: (jax.device_put(args[0], SPREAD), *args[1:])),
    "in": ({"in_shardings": (SPREAD, None, None)}, tuple),
    "out": ({"out_shardings": {"out": SPREAD, "none": None, "twice": None}}, tuple),
}


@pytest.mark.parametrize("limit", ["1GiB", "40KiB"])
@pytest.mark.parametrize("case", SEVERAL)
def test_several_devices_each_hold_their_share_and_exchange_no_more_than_before(case, limit):
    options, place = SEVERAL[case]
    f, plain = exla.jit(fn, memory_limit=limit, **options), jax.jit(fn, **options)
    plan = f.plan(*place(points()))
    exchanged = [collectives(c.as_text()) for c in (plan.compiled, plain.lower(*place(points())).compile())]
    assert exchanged[0].total <= exchanged[1].total and exchanged[0].in_loops == 0
    assert plan.untouched == (limit == "1GiB") and plan.compiled_bytes <= plan.limit_bytes
    for _ in range(2):
        got, want = f(*place(points()))["out"], plain(*place(points()))["out"]
        assert got.sharding == want.sharding and len(got.devices()) == 8
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_what_is_shared_out_is_cut_in_the_shares_only():
    """The rows are shared out: there is no loop over all of them."""
    x, y, v = points()
    f = exla.jit(lambda x, y, v: kernel_product(x, y, v), memory_limit="40KiB")
    plan = f.plan(jax.device_put(x, SPREAD), y, v)
    around = [e.params["loop"].size for e in plan.program.eqns if e.primitive.name == "exla_split"]
    shares = [e.params["jaxpr"] for e in plan.program.eqns if e.primitive.name == "shard_map"]
    inside = [e.params["loop"].size for body in shares for e in body.eqns if e.primitive.name == "exla_split"]
    assert around + inside and len(x) not in around


def test_a_program_that_only_more_exchange_would_fit_is_refused():
    """Some columns after the others would fit, but they would be gathered on every turn."""
    x = jax.device_put(np.random.default_rng(0).standard_normal((4096, 64), np.float32), SPREAD)
    f = exla.jit(lambda x: jnp.sort(jnp.sin(x), axis=0)[::64], memory_limit="300KiB")
    with pytest.raises(exla.MemoryLimitError, match="within the limit and not used") as refused:
        f(x)
    assert refused.value.smallest_peak_bytes > 300 << 10
    assert "in loops; as jax.jit compiles it, " in str(refused.value)


LAYERS, TOKENS, WIDTH = 4, 4096, 64


def layers(x, up, down):
    """Of each layer every device has some of the hidden units: their sums are exchanged once a layer."""
    return jax.lax.scan(lambda h, w: (h + jax.nn.gelu(h @ w[0]) @ w[1], None), x, (up, down))[0]


def given_layers():
    mesh, made = Mesh(np.array(jax.devices()), ("i",)), np.random.default_rng(0).standard_normal
    shapes = ((TOKENS, WIDTH), (LAYERS, WIDTH, 512), (LAYERS, 512, WIDTH))
    specs = (PartitionSpec(), PartitionSpec(None, None, "i"), PartitionSpec(None, "i"))
    pairs = zip(shapes, specs, strict=True)
    return [jax.device_put(made(shape, np.float32) / 9, NamedSharding(mesh, spec)) for shape, spec in pairs]


def test_an_exchange_of_the_users_loop_is_not_run_once_for_each_chunk_of_another():
    """In the text it is one either way."""
    given = given_layers()
    plain = exla.jit(layers, memory_limit="1GiB").plan(*given)
    assert plain.untouched and collectives(plain.compiled.as_text()).total == LAYERS
    with pytest.raises(exla.MemoryLimitError, match=f"as jax.jit compiles it, {LAYERS} times") as refused:
        exla.jit(layers, memory_limit=plain.compiled_bytes * 3 // 4).plan(*given)
    assert refused.value.smallest_peak_bytes > refused.value.limit_bytes


def test_the_plain_program_is_compiled_to_compare_with_where_it_was_not_tried():
    """A size of chunks is asked for, which the plain program is no answer to."""
    plan = exla.jit(layers, memory_limit="1GiB", tensor_split_size="64KiB").plan(*given_layers())
    assert plan.tried[0].untouched and not plan.untouched
    assert collectives(plan.compiled.as_text()).total == LAYERS


def test_a_spread_call_is_planned_apart_from_one_on_a_single_device():
    f, args = exla.jit(fn, memory_limit="3MiB"), points()
    assert not f.plan(*args).untouched
    spread = (jax.device_put(args[0], SPREAD), *args[1:])
    assert f.plan(*spread).untouched
    for given, devices in ((args, 1), (spread, 8), (args, 1)):
        assert len(f(*given)["out"].devices()) == devices
