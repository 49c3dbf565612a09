"""exla.jit is a drop-in for jax.jit: what it takes, what it returns, what it refuses, and before what."""

import threading
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import exla
from benchmarks import isolate
from exla import _compat
from exla.search.records import RecordStore
from exla.targets.hlo_text import comparable
from tests.sweep import all_but

pytestmark = [pytest.mark.every_python, pytest.mark.usefixtures("compiled_quickly")]


def kernel_product(x, y, v):
    return jnp.exp(-((x[:, None, :] - y[None, :, :]) ** 2).sum(-1) / 2) @ v


def points(n=400, m=300, d=3, seed=0):
    generator = np.random.default_rng(seed)
    return tuple(jnp.asarray(generator.normal(size=s), jnp.float32) for s in ((n, d), (m, d), (m,)))


SMALL = "96KiB"
"""Arguments and outputs of `points()` are 11 KiB; the kernel matrix is 469 KiB."""


def expected(x, y, v):
    x, y, v = (np.asarray(a, np.float64) for a in (x, y, v))
    return np.exp(-((x[:, None] - y[None]) ** 2).sum(-1) / 2) @ v


def test_an_unchanged_function_obeys_a_cap_that_it_would_break():
    args = points()
    plain = jax.jit(kernel_product).lower(*args).compile(compiler_options={"xla_cpu_experimental_ynn_fusion_type": ""})
    assert plain.memory_analysis().temp_size_in_bytes > 400_000
    f = exla.jit(kernel_product, memory_limit=SMALL)
    plan = f.plan(*args)
    assert not plan.untouched and plan.compiled_bytes <= plan.limit_bytes == 96 * 1024
    np.testing.assert_allclose(f(*args), expected(*args), rtol=1e-5, atol=1e-5)


def test_what_fits_runs_through_the_same_compiled_code_as_jax_jit():
    args = points()
    f = exla.jit(kernel_product)
    plan = f.plan(*args)
    assert plan.untouched and plan.decisions == ()
    assert comparable(plan.compiled.as_text()) == comparable(jax.jit(kernel_product).lower(*args).compile().as_text())
    plain = jax.jit(lambda *args: kernel_product(*args))  # no other test has compiled it, under options of its own
    np.testing.assert_array_equal(f(*args), plain(*args))


def test_planning_compiles_what_fits_only_once(caplog):
    args = points()
    f = exla.jit(lambda x, y, v: kernel_product(x, y, v) + 1)
    with jax.log_compiles():
        f.plan(*args)
        f(*args)
        f(*args)
    compiled = [r for r in caplog.records if r.getMessage().startswith("Finished XLA compilation of jit(<lambda>)")]
    assert len(compiled) == 1


def test_each_untouched_signature_is_traced_and_compiled_once(caplog):
    traced = []

    def counted(x):
        traced.append(x.shape)
        return x * 2

    f = exla.jit(counted, memory_limit="1GiB")
    shapes = [(3,), (4,), (5, 2)]
    with jax.log_compiles():
        for _ in range(3):
            for shape in shapes:
                f.plan(jax.ShapeDtypeStruct(shape, jnp.float32))
                np.testing.assert_array_equal(f(np.ones(shape, np.float32)), np.full(shape, 2))
                np.testing.assert_array_equal(f(jnp.ones(shape)), np.full(shape, 2))
    assert traced == shapes
    compiled = [r for r in caplog.records if "XLA compilation of jit(counted)" in r.getMessage()]
    assert len(compiled) == len(shapes)


@pytest.mark.parametrize("limit", ["1GiB", SMALL])
def test_a_cached_call_runs_no_python_of_exlas(limit, monkeypatch):
    f, args = exla.jit(kernel_product, memory_limit=limit), points()
    first = f(*args)
    monkeypatch.setattr(exla.JitFunction, "_find", None)
    np.testing.assert_array_equal(f(*args), first)


def test_without_a_call_cache_calls_are_right_too(monkeypatch):
    monkeypatch.setenv("EXLA_STRICT", "0")
    monkeypatch.setattr(_compat, "dispatcher", None)
    with pytest.warns(exla.ExlaWarning, match="call cache"):
        f = exla.jit(kernel_product, memory_limit=SMALL)
    for args in (points(), points(n=2), points()):
        np.testing.assert_allclose(f(*args), expected(*args), rtol=1e-5, atol=1e-5)


def test_disable_jit_runs_the_function_itself():
    seen = []
    f = exla.jit(lambda x: seen.append(x) or x + 1, memory_limit=SMALL)
    with jax.disable_jit():
        assert f(jnp.ones(())) == 2 and not isinstance(seen[0], jax.core.Tracer)
    assert f(jnp.ones(())) == 2 and isinstance(seen[1], jax.core.Tracer)


@pytest.mark.parametrize("limit", [SMALL, "4GiB"])
@pytest.mark.parametrize("is_first", [True, False])
def test_debug_nans_raises_the_error_that_jax_jit_raises(limit, is_first):
    x, y, v = points()
    f = exla.jit(lambda x, s: jnp.log(kernel_product(x, y, v) - s), memory_limit=limit)
    for _ in range(0 if is_first else 2):
        f(x, -1000.0)
    with jax.debug_nans(True):
        assert np.isfinite(f(x, -1000.0)).all()
        gradient, batched = jax.grad(lambda x: jnp.sum(f(x, 1000.0))), jax.vmap(f, (None, 0))
        for call in (
            lambda: f(x, 1000.0),
            lambda: jax.jit(f)(x, 1000.0),
            lambda: gradient(x),
            lambda: batched(x, jnp.full(2, 1000.0)),
        ):
            with pytest.raises(FloatingPointError):
                call()


def test_references_of_the_caller_are_written_as_by_jax_jit_and_never_over_the_limit():
    x, y, v = points()
    captured, given, reference = (jax.new_ref(jnp.zeros(400)) for _ in range(3))

    def add(total, x):
        total[...] += kernel_product(x, y, v)
        return total[...].sum()

    f = exla.jit(add, memory_limit="4GiB")
    for _ in range(3):
        np.testing.assert_array_equal(f(given, x), jax.jit(add)(reference, x))
        exla.jit(lambda x: add(captured, x), memory_limit="4GiB")(x)
    np.testing.assert_array_equal(given[...], reference[...])
    np.testing.assert_array_equal(captured[...], reference[...])
    with pytest.warns(exla.ExlaWarning, match="limit is not applied"):
        jax.jit(lambda x: (f(given, x), exla.jit(lambda x: add(captured, x), memory_limit=SMALL)(x)))(x)
    for take in (lambda x: add(captured, x), lambda x: add(given, x)):
        with pytest.raises(exla.MemoryLimitError, match=r"a jax\.Ref of their caller's"):
            exla.jit(take, memory_limit=SMALL)(x)
    np.testing.assert_allclose(captured[...], 4 * expected(x, y, v), rtol=1e-5, atol=1e-5)


def test_constants_of_every_kind_go_through_a_split_program():
    x, y, v = points()
    key = jax.random.key(3)
    for constant in (y, np.asarray(y), jax.device_put(y, jax.devices()[0])):
        f = exla.jit(lambda x, v, y=constant: kernel_product(x, jax.numpy.asarray(y), v), memory_limit=SMALL)
        closed = exla.jit(
            lambda x, v, y=constant: kernel_product(x, y, v + jax.random.uniform(key)), memory_limit=SMALL
        )
        for _ in range(2):
            np.testing.assert_allclose(f(x, v), expected(x, y, v), rtol=1e-5, atol=1e-5)
            shifted = v + jax.random.uniform(key)
            np.testing.assert_allclose(closed(x, v), expected(x, y, shifted), rtol=1e-5, atol=1e-5)
        assert not f.plan(x, v).untouched and not closed.plan(x, v).untouched


@pytest.mark.parametrize("limit", [1, 1000, 11_000])
def test_a_program_that_cannot_fit_is_refused_before_it_runs(limit):
    ran = []

    def fn(x, y, v):
        jax.debug.callback(lambda: ran.append(1))
        return kernel_product(x, y, v)

    f = exla.jit(fn, memory_limit=limit)
    with pytest.raises(exla.MemoryLimitError) as caught:
        f(*points())
    jax.effects_barrier()
    assert not ran
    error = caught.value
    assert error.limit_bytes == limit < error.smallest_peak_bytes
    assert 1 <= len(error.holders) <= 3
    assert str(limit) in str(error) and str(error.smallest_peak_bytes) in str(error)


def test_the_refusal_names_lines_and_what_blocks():
    def fn(x):
        k = jnp.exp(x[:, None] - x[None])
        return jnp.linalg.svd(k, compute_uv=False)

    with pytest.raises(exla.MemoryLimitError, match="test_api.py") as caught:
        exla.jit(fn, memory_limit="100KiB")(jnp.ones(300))
    assert any("svd" in h.blocked or "needs" in h.blocked for h in caught.value.holders)


def test_the_smallest_limit_that_is_named_is_enough():
    args = points()
    with pytest.raises(exla.MemoryLimitError) as caught:
        exla.jit(kernel_product, memory_limit=11_300)(*args)
    enough = caught.value.smallest_peak_bytes
    f = exla.jit(kernel_product, memory_limit=enough)
    assert f.plan(*args).compiled_bytes <= enough


@pytest.mark.parametrize("search", ["analytic", "off"])
def test_a_refused_signature_stays_refused_beside_an_untouched_one(search):
    f = exla.jit(kernel_product, memory_limit=11_000, search=search)
    fits = points(n=2, m=20)
    for clear in (lambda: None, jax.clear_caches, f.clear_cache):
        np.testing.assert_allclose(f(*fits), expected(*fits), rtol=1e-5, atol=1e-5)
        clear()
        for args in (points(), [np.asarray(a) for a in points()], jax.device_put(points(), jax.devices()[0])):
            with pytest.raises(exla.MemoryLimitError):
                f(*args)
        with jax.default_matmul_precision("highest"), pytest.raises(exla.MemoryLimitError):
            f(*points())


def every_way_to_call():
    """Calls of functions of which one signature is split and another is not; called in a process of its own."""
    big, small = points(n=10_000, m=4_000, d=1), points(n=2, d=1)
    options = {"memory_limit": "20MiB"}
    f = exla.jit(kernel_product, **options)
    scaled = exla.jit(lambda x, y, v, s: kernel_product(x, y, v) * s, static_argnums=3, **options)
    weak = exla.jit(lambda x, y, v, s: kernel_product(x, y, v) * s, **options)
    donating = exla.jit(lambda x, y, v: (kernel_product(x, y, v), x + 1), donate_argnums=0, **options)
    tree = exla.jit(lambda t: {"out": kernel_product(t["x"], *t["rest"])}, **options)

    def calls():
        for args in (small, big):
            for _ in range(2):
                f(*args)
            f(*map(np.asarray, args)), f(*jax.device_put(args, jax.devices()[0]))
            f(args[0], v=args[2], y=args[1])
            with jax.default_matmul_precision("highest"):
                f(*args)
            with jax.enable_x64(True):
                f(*args)
            scaled(*args, 2), scaled(*args, 3)
            weak(*args, 2.0), weak(*args, np.float32(2)), weak(*args, 2)
            donating(jnp.array(args[0]), *args[1:])
            jax.block_until_ready(tree({"x": args[0], "rest": args[1:]}))

    def everything():
        calls()
        jax.clear_caches()
        calls()
        threads = [threading.Thread(target=f, args=args) for args in (small, big, small, big)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return f(*big)

    plans = [f.plan(*small), f.plan(*big)]
    result, grown = isolate.growth(everything)
    return {
        "untouched": [plan.untouched for plan in plans],
        "growth_bytes": grown.growth_bytes,
        "error": float(np.max(np.abs(np.asarray(result[:9]) - expected(big[0][:9], *big[1:])))),
    }


def test_a_split_signature_never_runs_unsplit_beside_an_untouched_one():
    found = isolate.call("tests.test_api:every_way_to_call")
    assert found["untouched"] == [True, False] and found["error"] < 0.01
    assert found["growth_bytes"] < 10_000 * 4_000 * 4


def test_search_off_splits_nothing():
    with pytest.raises(exla.MemoryLimitError, match="off"):
        exla.jit(kernel_product, memory_limit=SMALL, search="off")(*points())


def test_it_works_as_a_decorator_with_and_without_arguments():
    @exla.jit
    def plain(x):
        return x + 1

    @exla.jit(memory_limit=SMALL)
    def capped(x, y, v):
        """Doc."""
        return kernel_product(x, y, v)

    assert plain(1) == 2 and capped.__doc__ == "Doc." and capped.__name__ == "capped"
    np.testing.assert_allclose(capped(*points()), expected(*points()), rtol=1e-5, atol=1e-5)


def test_methods_pytrees_keywords_defaults_and_none():
    class Model:
        scale = 2.0

        @exla.jit(memory_limit=SMALL, static_argnums=0)
        def apply(self, data, *, weights, bias=None, shift=0.0):
            return {"out": self.scale * kernel_product(data["x"], data["y"], weights) + shift, "none": bias}

    x, y, v = points()
    result = Model().apply({"x": x, "y": y}, weights=v, shift=1.0)
    assert result["none"] is None
    np.testing.assert_allclose(result["out"], 2 * expected(x, y, v) + 1, rtol=1e-5, atol=1e-5)


def test_a_method_of_an_instance_can_be_planned_explained_and_lowered():
    class Model:
        scale = 2.0

        @exla.jit(memory_limit=SMALL, static_argnums=0)
        def apply(self, x, y, *, v):
            """Doc."""
            return self.scale * kernel_product(x, y, v)

    model, (x, y, v) = Model(), points()
    assert not model.apply.plan(x, y, v=v).untouched
    assert "split along axis" in model.apply.explain(x, y, v=v)
    assert model.apply.eval_shape(x, y, v=v).shape == (400,)
    assert len(model.apply.trace(x, y, v=v).jaxpr.in_avals) == 3
    want = 2 * expected(x, y, v)
    np.testing.assert_allclose(model.apply(x, y, v=v), want, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(model.apply.lower(x, y, v=v).compile()(model, x, y, v=v), want, rtol=1e-5, atol=1e-5)
    assert model.apply.trace(x, y, v=v).lower().compile().plan.decisions == model.apply.plan(x, y, v=v).decisions != ()
    assert model.apply.__name__ == "apply" and model.apply.__wrapped__.__doc__ == "Doc."


STATIC = ({"static_argnums": 3}, {"static_argnames": "power"}, {"static_argnums": (-1,)})


@pytest.mark.parametrize("static", all_but([{"static_argnums": 3}], STATIC))
def test_static_arguments_are_static_under_a_cap(static):
    def fn(x, y, v, power):
        assert isinstance(power, int)
        return kernel_product(x, y, v) ** power

    f = exla.jit(fn, memory_limit=SMALL, **static)
    args = points()
    for power in (1, 2):
        np.testing.assert_allclose(f(*args, power), expected(*args) ** power, rtol=1e-4, atol=1e-4)
        if "static_argnames" in static:
            np.testing.assert_allclose(f(*args, power=power), expected(*args) ** power, rtol=1e-4, atol=1e-4)


def test_what_loops_put_together_is_as_weakly_typed_as_from_jax_jit():
    def rows(scale):
        k = jnp.broadcast_to(scale, (700,))
        return jnp.exp(k[:, None] * k[None]) @ k, jnp.sin(k[:, None] - k[None])

    f = exla.jit(rows, memory_limit=700 * 700 * 4 + 20_000, records="off")
    want, got = jax.jit(rows)(0.5), f(0.5)
    assert not f.plan(0.5).untouched and want[0].weak_type and want[1].weak_type
    for a, b in zip(want, got, strict=True):
        assert a.weak_type == b.weak_type
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_python_scalars_numpy_arrays_and_weak_types_come_out_as_from_jax_jit():
    def fn(x, y, v, s):
        return kernel_product(x, y, v) * s, s + 1

    args = tuple(np.asarray(a) for a in points())
    f, plain = exla.jit(fn, memory_limit=SMALL), jax.jit(fn)
    assert not f.plan(*args, 2.0).untouched
    for a, b in zip(f(*args, 2.0), plain(*args, 2.0), strict=True):
        assert a.dtype == b.dtype and a.weak_type == b.weak_type
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_x64_gets_a_plan_of_its_own(x64):
    args = tuple(jnp.asarray(np.asarray(a), jnp.float64) for a in points())
    f = exla.jit(kernel_product, memory_limit="192KiB")
    assert not f.plan(*args).untouched
    np.testing.assert_allclose(f(*args), expected(*args), rtol=1e-12)


def test_prng_keys_pass_through_a_split_program():
    def fn(key, x, y, v):
        noise = jax.random.normal(key, v.shape)
        return kernel_product(x, y, v + noise), jax.random.split(key)

    args = (jax.random.key(0), *points())
    f = exla.jit(fn, memory_limit=SMALL)
    assert not f.plan(*args).untouched
    (a, keys), (b, plain_keys) = f(*args), jax.jit(fn)(*args)
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(jax.random.key_data(keys), jax.random.key_data(plain_keys))


def test_donated_arguments_are_given_up_and_counted_once():
    def fn(x, y, v):
        return kernel_product(x, y, v), x * 2

    args = points()
    assert exla.jit(fn, memory_limit=SMALL).plan(*args).tried[-1].compiled_bytes.aliased == 0
    f = exla.jit(fn, memory_limit=SMALL, donate_argnums=0)
    assert f.plan(*args).tried[-1].compiled_bytes.aliased == args[0].nbytes
    f(*args)
    assert args[0].is_deleted()


def test_plan_takes_shapes_and_runs_nothing():
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in points()]
    assert exla.jit(kernel_product, memory_limit=SMALL).plan(*shapes).compiled_bytes <= 96 * 1024


def test_two_shapes_get_two_plans():
    f = exla.jit(kernel_product, memory_limit=SMALL)
    np.testing.assert_allclose(f(*points()), expected(*points()), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(f(*points(n=2)), expected(*points(n=2)), rtol=1e-5, atol=1e-5)
    assert f.plan(*points(n=2)).untouched and not f.plan(*points()).untouched


def test_an_outer_exla_jit_plans_an_inner_one_and_gradients():
    inner = exla.jit(lambda x, y, v: kernel_product(x, y, v).sum(), memory_limit=SMALL)
    args = points()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f = exla.jit(jax.grad(inner), memory_limit=SMALL)
        assert f.plan(*args).compiled_bytes <= 96 * 1024
        gradient = f(*args)
    np.testing.assert_allclose(gradient, jax.grad(lambda *a: kernel_product(*a).sum())(*args), rtol=1e-4, atol=1e-5)


def test_threads_that_call_at_once_get_one_plan_and_right_values():
    f, args, results = exla.jit(kernel_product, memory_limit=SMALL), points(), []
    threads = [threading.Thread(target=lambda: results.append(np.asarray(f(*args)))) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(results) == 6
    for r in results:
        np.testing.assert_array_equal(r, results[0])


def test_a_record_spares_the_next_process_the_search():
    args = points()
    first = exla.jit(kernel_product, memory_limit=SMALL).plan(*args)
    assert any(r.status == "ok" for r in RecordStore().read().records)
    again = exla.jit(kernel_product, memory_limit=SMALL).plan(*args)
    assert again.source == "record" and again.decisions == first.decisions
    assert "jax.jit    not compiled: this was found by an earlier search, and recorded" in str(again)
    assert len(again.tried) == 1
    other = exla.jit(kernel_product, memory_limit="97KiB").plan(*args)
    assert other.source == "search"


def test_a_hostile_record_is_passed_over():
    args = points()
    exla.jit(kernel_product, memory_limit=SMALL).plan(*args)
    (path,) = RecordStore().files()
    path.write_text(path.read_text().replace('"chunk": ', '"chunk": 99999').replace('"axis": 0', '"axis": 77'))
    f = exla.jit(kernel_product, memory_limit=SMALL)
    assert f.plan(*args).source == "search"
    np.testing.assert_allclose(f(*args), expected(*args), rtol=1e-5, atol=1e-5)


def test_the_papers_knobs_split_what_fits():
    args = points()
    f = exla.jit(kernel_product, tensor_size_threshold="100KiB", tensor_split_size="50KiB")
    plan = f.plan(*args)
    assert not plan.untouched and plan.compiled_bytes < 150_000
    np.testing.assert_allclose(f(*args), expected(*args), rtol=1e-5, atol=1e-5)


def test_the_papers_knobs_see_what_the_compiler_would_fuse():
    x = np.linspace(0, 1, 500, dtype=np.float32)

    def fn(x):
        return jnp.sum(jnp.sin(x[:, None] * x))  # 1 MB, of which the compiler stores nothing

    assert exla.jit(fn).plan(x).untouched
    f = exla.jit(fn, tensor_size_threshold="100KiB", tensor_split_size="40KiB")
    loops = [e.params["loop"] for e in f.plan(x).program.eqns if e.primitive.name == "exla_split"]
    assert loops and all(v.aval.size * 4 <= 40 * 1024 for e in loops[0].body.eqns for v in e.outvars)
    np.testing.assert_allclose(f(x), fn(x), rtol=1e-5)


def test_explain_says_what_was_done_about_each_big_value():
    text = exla.jit(kernel_product, memory_limit=SMALL).explain(*points())
    for word in ("limit", "projected", "compiled", "measured", "exp", "test_api.py", "split along axis", "argument"):
        assert word in text
    assert "left alone" in exla.jit(kernel_product).explain(*points())


def test_empty_arrays_and_nan_go_through():
    x, y, v = points()
    f = exla.jit(kernel_product, memory_limit=SMALL)
    assert f(x[:0], y, v).shape == (0,)
    assert f(x, y[:0], v[:0]).shape == (400,)
    broken = x.at[3, 0].set(jnp.nan)
    np.testing.assert_array_equal(np.isnan(f(broken, y, v)), np.isnan(jax.jit(kernel_product)(broken, y, v)))


def test_an_unknown_option_is_an_error():
    with pytest.raises(exla.OptionError, match="analytic"):
        exla.jit(kernel_product, search="fastest")
    with pytest.raises(exla.OptionError, match="MiB"):
        exla.jit(kernel_product, memory_limit="3 parsecs")
    with pytest.raises(TypeError, match="did you mean 'memory_limit'.*tensor_split_size.*static_argnums"):
        exla.jit(memory_limits="1GiB")


def test_what_jax_jit_does_not_take_is_refused_in_its_words():
    for bad in ("text", object()):
        with pytest.raises(TypeError) as want:
            jax.jit(kernel_product)(bad, *points()[1:])
        with pytest.raises(TypeError) as got:
            exla.jit(kernel_product, memory_limit=SMALL)(bad, *points()[1:])
        assert str(got.value).split(" at 0x")[0] == str(want.value).split(" at 0x")[0]


def test_the_environment_sets_a_limit(monkeypatch):
    monkeypatch.setenv("EXLA_MEMORY_LIMIT", SMALL)
    assert exla.jit(kernel_product).plan(*points()).limit_bytes == 96 * 1024


def test_a_refusal_is_remembered(monkeypatch):
    from exla.search import driver

    searches = []
    monkeypatch.setattr("exla.api.decide", lambda *args: searches.append(1) or driver.decide(*args))
    f = exla.jit(jnp.sort, memory_limit="1KiB")
    for _ in range(2):
        with pytest.raises(exla.MemoryLimitError, match="Nothing was run") as caught:
            f(jnp.ones(1000))
        assert caught.value.holders
    assert len(searches) == 1
    f.clear_cache()
    with pytest.raises(exla.MemoryLimitError):
        f(jnp.ones(1000))
    assert len(searches) == 2
