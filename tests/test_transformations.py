"""exla.jit under every transformation: the values of jax.jit, the cap for each program that runs."""

import functools
import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import checkify

import exla
from exla.call import Wishes, derived, plan
from exla.observe import observing
from exla.passes.decisions import Split
from tests.sweep import all_but

pytestmark = pytest.mark.usefixtures("compiled_quickly")

CAP = "150KiB"


def kernel(x, y, v):
    return jnp.exp(-jnp.sum((x[:, None] - y[None]) ** 2, axis=-1) / 2) @ v


def total(x, y, v):
    return jnp.sum(kernel(x, y, v))


def points(n=300, m=400, seed=0):
    generator = np.random.default_rng(seed)
    return tuple(jnp.asarray(generator.standard_normal(s), jnp.float32) for s in ((n, 3), (m, 3), (m,)))


def double(fn, *args):
    """The same in float64, by jax.jit."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    try:
        wide = jax.tree.map(lambda a: jnp.asarray(np.asarray(a, np.float64)), args)
        return jax.tree.map(np.asarray, fn(*wide))
    finally:
        jax.config.update("jax_enable_x64", before)


def close(got, want, rtol=1e-4):
    def one(a, b):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * max(float(np.max(np.abs(b), initial=0)), 1e-3))

    jax.tree.map(one, got, want)


SCALAR = {
    "grad": lambda f: jax.grad(f, argnums=(0, 1, 2)),
    "value_and_grad": lambda f: jax.value_and_grad(f),
    "jvp": lambda f: lambda *a: jax.jvp(f, a, a),
    "vjp": lambda f: lambda *a: jax.vjp(f, *a)[1](jnp.ones((), a[0].dtype)),
    "linearize": lambda f: lambda *a: jax.linearize(f, *a)[1](*a),
    "jit grad": lambda f: jax.jit(jax.grad(f)),
    "grad jit": lambda f: jax.grad(jax.jit(f)),
    "checkpoint": lambda f: jax.grad(jax.checkpoint(f)),
    "grad of grad": lambda f: jax.grad(lambda *a: jnp.sum(jax.grad(f)(*a) ** 2)),
    "hessian-vector": lambda f: lambda *a: jax.jvp(jax.grad(f), a, a)[1],
    "exla of grad": lambda f: exla.jit(jax.grad(f), memory_limit=CAP),
    "value_and_grad of sum": lambda f: jax.value_and_grad(lambda *a: f(*a) + jnp.sum(a[0])),
}


LIMITS = {"split": "60KiB", "roomy": "1GiB"}
CASES = [(name, limit) for name in SCALAR for limit in LIMITS]
ALIKE = {
    *((name, "roomy") for name in SCALAR if name not in ("grad", "jvp", "exla of grad")),
    *((name, "split") for name in ("value_and_grad", "value_and_grad of sum", "linearize", "jit grad")),
}


@pytest.mark.parametrize("case", all_but(ALIKE, CASES), ids="-".join)
def test_derivatives_are_those_of_the_plain_function(case):
    name, limit = case[0], LIMITS[case[1]]
    args = points(n=100, m=120) if name == "grad of grad" else points()
    got = SCALAR[name](exla.jit(total, memory_limit=limit))(*args)
    close(got, double(SCALAR[name](total), *args))


@pytest.mark.parametrize("transform", all_but([jax.jacfwd], [jax.jacfwd, jax.jacrev, jax.hessian]))
def test_jacobians_and_hessians(transform):
    args = points(n=6, m=8)
    fn = total if transform is jax.hessian else kernel
    close(transform(exla.jit(fn, memory_limit="30KiB"))(*args), double(transform(fn), *args))


@pytest.mark.parametrize(("in_axes", "out_axes"), [((0, None, None), 0), ((None, 1, None), 0), ((0, 0, 0), 1)])
def test_vmap(in_axes, out_axes):
    stacked = [jnp.stack([a, a + 1, a * 2], axis or 0) for a, axis in zip(points(), in_axes, strict=True)]
    args = [s if axis is not None else a for s, a, axis in zip(stacked, points(), in_axes, strict=True)]
    got = jax.vmap(exla.jit(kernel, memory_limit=CAP), in_axes, out_axes)(*args)
    close(got, double(jax.vmap(kernel, in_axes, out_axes), *args))


def test_vmap_keeps_what_does_not_depend_on_it_single_and_sees_named_axes():
    def fn(x, y):
        return lax.psum(x, "i") + y, jnp.sin(y)

    x, y = jnp.arange(6.0).reshape(3, 2), jnp.ones(2)
    f = exla.jit(fn, memory_limit="1MiB")
    run = jax.vmap(f, in_axes=(0, None), out_axes=(0, None), axis_name="i")
    for got, want in zip(
        run(x, y), jax.vmap(fn, in_axes=(0, None), out_axes=(0, None), axis_name="i")(x, y), strict=True
    ):
        np.testing.assert_array_equal(got, want)


def test_inside_loops_and_branches():
    args = points()
    f = exla.jit(kernel, memory_limit=CAP)

    def program(kernel, x, y, v):
        def body(carry, shift):
            value = kernel(x + shift, y, v)
            return carry + value, value[0]

        carry, firsts = lax.scan(body, jnp.zeros(x.shape[0], x.dtype), jnp.arange(3, dtype=x.dtype))
        chosen = lax.cond(firsts[0] > firsts[1], lambda: kernel(x, y, v), lambda: carry)
        looped = lax.fori_loop(0, 2, lambda i, c: c + kernel(x, y, v), chosen)
        return looped, lax.map(lambda row: kernel(row[None], y, v)[0], x[:4])

    close(program(f, *args), double(functools.partial(program, kernel), *args))
    close(jax.jit(functools.partial(program, f))(*args), double(functools.partial(program, kernel), *args))


def test_closures_over_what_is_being_differentiated():
    x, y, v = points()
    got = jax.grad(lambda w: exla.jit(lambda z: total(z * w, y, v), memory_limit=CAP)(x))(jnp.float32(1.5))
    close(got, double(jax.grad(lambda w, x, y, v: total(x * w, y, v)), jnp.float32(1.5), x, y, v))


@jax.custom_vjp
def clipped(x):
    return jnp.sin(x)


clipped.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (jnp.clip(g * jnp.cos(x), -0.1, 0.1),))


@jax.custom_jvp
def doubled(x):
    return x * x


doubled.defjvp(lambda p, t: (doubled(p[0]), 7 * t[0]))


CUSTOM = (clipped, doubled, jax.nn.relu, jax.nn.softmax, jax.nn.logsumexp, jnp.linalg.norm)


@pytest.mark.parametrize("fn", all_but([jax.nn.relu, jax.nn.logsumexp, jnp.linalg.norm], CUSTOM))
def test_the_users_own_derivatives_are_kept(fn):
    def pairs(x):
        return jnp.sum(fn(x[:, None] * x[None] + 0.3) * x)

    x = jnp.linspace(-2, 3, 200)
    close(jax.grad(exla.jit(pairs, memory_limit="40KiB"))(x), double(jax.grad(pairs), x))


@pytest.mark.parametrize("limit", all_but(["1GiB"], ["30KiB", "1GiB"]))
def test_integers_booleans_keys_and_several_outputs(limit):
    def fn(key, n, x):
        noise = jax.random.normal(key, x.shape)
        return {"loss": jnp.sum((x[:, None] + noise) ** 2) * n, "best": jnp.argmax(x), "any": jnp.any(x > 0)}

    key, x = jax.random.key(0), jnp.linspace(-1, 1, 200)
    f = exla.jit(fn, memory_limit=limit)
    got, want = (jax.grad(lambda x, h=h: h(key, 3, x)["loss"])(x) for h in (f, fn))
    close(got, want)
    primal, tangent = jax.jvp(lambda x: f(key, 3, x), (x,), (x,))
    assert primal["best"] == 199 and bool(primal["any"]) and tangent["best"].dtype == jax.dtypes.float0
    got, want = (jax.vmap(h, in_axes=(0, None, None))(jax.random.split(key, 2), 3, x) for h in (f, fn))
    close(got["loss"], want["loss"])


def test_static_and_keyword_arguments_under_a_transformation():
    def fn(x, power, *, scale=1.0, shift=0.0):
        return jnp.sum((x[:, None] - x[None]) ** power * scale + shift)

    f = exla.jit(fn, static_argnames=("power", "scale"), memory_limit="30KiB")
    x = jnp.linspace(0, 1, 200)
    for power in (2, 3):
        got = jax.grad(lambda x, p=power: f(x, power=p, scale=2.0, shift=x[0]))(x)
        close(got, double(jax.grad(lambda x, p=power: fn(x, p, scale=2.0, shift=x[0])), x), rtol=1e-3)


def test_shapes_and_jaxprs_without_running():
    f = exla.jit(kernel, memory_limit=CAP)
    assert jax.eval_shape(f, *points()).shape == (300,)
    assert [e.primitive.name for e in jax.make_jaxpr(f)(*points()).eqns] == ["exla_call"]


def test_export_holds_the_split_program():
    x, y, v = points(n=600, m=700)
    f = exla.jit(kernel, memory_limit="300KiB")
    exported = jax.export.export(jax.jit(f))(x, y, v)
    assert "while" in exported.mlir_module()
    close(exported.call(x, y, v), double(kernel, x, y, v))


def test_what_a_callback_looks_at_is_there_whole_and_seen_once():
    seen = []

    def watched(x, y, v):
        squared = jnp.sum((x[:, None] - y[None]) ** 2, axis=-1)
        jax.debug.callback(lambda a: seen.append(a), squared)
        return jnp.exp(-squared) @ v, jnp.tanh(squared) @ v

    values = points()
    matrix = 4 * 300 * 400
    capped = exla.jit(watched, memory_limit=3 * matrix // 2, records="off")
    assert capped.plan(*values).decisions
    close(capped(*values), jax.jit(watched)(*values))
    jax.effects_barrier()
    ours, plain = seen
    close(ours, plain)
    with pytest.raises(exla.MemoryLimitError, match=r"debug_callback.* an effect that must happen once"):
        exla.jit(watched, memory_limit=matrix // 2, records="off")(*values)
    assert len(seen) == 2


@pytest.mark.parametrize("errors", [checkify.user_checks, checkify.all_checks], ids=["the user's", "all"])
@pytest.mark.parametrize("fails", [False, True])
def test_what_checkify_looks_for_is_found_under_the_cap(errors, fails):
    def far(x, y):
        squared = jnp.sum((x[:, None] - y[None]) ** 2, axis=-1)
        checkify.check(jnp.all(squared > 0), "{} of the points are there", jnp.sum(squared == 0))
        return jnp.sum(squared**-0.5, axis=1)

    x, y, _ = points()
    x = x.at[17].set(y[5]) if fails else x
    capped = exla.jit(far, memory_limit=CAP, records="off")
    error, want = checkify.checkify(jax.jit(far), errors)(x, y)
    made = []
    with observing(made.append):
        found, got = checkify.checkify(capped, errors)(x, y)
    assert [any(isinstance(d, Split) for d in m.choice.decisions) for m in made] == [True]
    assert (found.get() is not None) == fails and found.get() == error.get()
    np.testing.assert_allclose(got, want, rtol=1e-4)


def test_in_a_sharded_map():
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("i")
    run = jax.shard_map(exla.jit(kernel, memory_limit="100KiB"), mesh=mesh, in_specs=(spec, None, None), out_specs=spec)
    close(jax.jit(run)(*points()), double(kernel, *points()))


def test_a_collective_that_nobody_resolves_is_said():
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("i")
    f = exla.jit(lambda x: x - lax.psum(jnp.sum(x), "i"), memory_limit="1MiB")
    run = jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    with pytest.warns(exla.ExlaWarning, match="collective"):
        np.testing.assert_allclose(jax.jit(run)(jnp.ones(4)), -3 * np.ones(4))


def test_a_program_that_cannot_fit_is_refused_under_a_transformation_too():
    f = exla.jit(total, memory_limit=2000)
    for run in (jax.grad(f), jax.jit(f), lambda *a: jax.vmap(f, (0, None, None))(a[0][None], *a[1:])):
        with pytest.raises(exla.MemoryLimitError):
            run(*points())


@pytest.mark.parametrize("inline", [False, True])
def test_each_program_of_a_gradient_obeys_the_cap(inline):
    """The two programs of an eager gradient, found by watching what is planned."""
    args = points(n=600, m=700)
    f = exla.jit(total, memory_limit="150KiB")
    run = jax.jit(jax.grad(f)) if inline else jax.grad(f)
    seen = []

    def watch(jaxpr, wishes, **kwargs):
        seen.append(plan(jaxpr, wishes, **kwargs))
        return seen[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("exla.call.plan", watch)
        got = run(*args)
    assert seen and all(choice.compiled_bytes.total <= 150 * 1024 for choice in seen)
    assert any(not choice.untouched for choice in seen)
    close(got, double(jax.grad(total), *args))


def test_what_is_derived_is_traced_and_compiled_once(caplog):
    args = points()
    f = exla.jit(total, memory_limit="60KiB")
    jax.grad(f)(*args)
    with jax.log_compiles():
        jax.grad(f)(*args)
    assert not [r for r in caplog.records if "XLA compilation" in r.getMessage()]


@pytest.mark.parametrize("limit", all_but(["1GiB"], ["60KiB", "1GiB"]))
def test_what_was_derived_from_a_function_that_is_gone_is_gone_too(limit):
    args = points()

    def once():
        jax.grad(exla.jit(lambda *a: total(*a) + 1, memory_limit=limit))(*args)

    once()
    jax.clear_caches()
    gc.collect()
    before = len(derived._of)
    once()
    jax.clear_caches()
    gc.collect()
    assert len(derived._of) <= before


def test_wishes_are_hashable():
    options = exla.Options.resolve(memory_limit="1MiB")
    assert hash(Wishes(options=options, name="f")) == hash(Wishes(options=options, name="f"))
