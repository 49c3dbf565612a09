"""What waits for a later reader is kept in the host's memory or as bfloat16: values, types, replay, and when."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import exla
from exla import _compat
from exla.call import read
from exla.errors import ReplayMiss
from exla.ir.emit import emit
from exla.ir.memory import project
from exla.ir.program import as_struct, value_bytes
from exla.options import Options
from exla.passes.decisions import Split, Store, from_json, to_json
from exla.passes.replay import replay
from exla.passes.store import BFLOAT16_ERROR, enumerate_stores
from exla.passes.unless import EXPANSIONS
from exla.search.refusal import refusal
from exla.search.space import Goal, Space
from exla.targets.base import compile_for, find_target
from exla.targets.machine import Machine, Work
from tests.targets.test_compilers import compiler_of

pytestmark = pytest.mark.usefixtures("compiled_quickly")

D = 24


def chain(w, x):
    """A value that is read at once, and again after larger ones have come and gone."""
    kept = jnp.tanh(x @ w)
    other = jnp.sin(kept @ w)
    wide = jnp.exp(-jnp.abs(other[:, None] - other[None]).sum(-1))
    return (kept * (wide @ other)) @ w


def rounded_chain(w, x):
    kept = jnp.tanh(x @ w).astype(jnp.bfloat16).astype(x.dtype)
    other = jnp.sin(kept @ w)
    wide = jnp.exp(-jnp.abs(other[:, None] - other[None]).sum(-1))
    return (kept * (wide @ other)) @ w


def recurrent_gradient(w, xs):
    def loss(w):
        def step(h, x):
            h = jnp.tanh(h @ w + x)
            return h, None

        last, _ = jax.lax.scan(step, xs[0], xs)
        return (last**2).sum()

    return jax.grad(loss)(w)


def messages_gradient(weights, x, senders, receivers):
    """Gathers, scatters and products between them: no axis can be cut through all layers."""

    def loss(weights):
        h = x
        for w in weights:
            mixed = jax.ops.segment_sum(jnp.tanh(h @ w)[senders], receivers, len(h))
            h = jnp.tanh(mixed) + h
        return (h**2).mean()

    return jax.grad(loss)(weights)


def spectral_gradient(filters, image):
    def loss(filters):
        h = image
        for f in filters:
            h = jnp.tanh(jnp.fft.ifft2(jnp.fft.fft2(h) * f).real)
        return (h**2).mean()

    return jax.grad(loss)(filters)


def operands(fn, n=64, seed=0, dtype=np.float32, width=D):
    generator = np.random.default_rng(seed)

    def normal(*shape):
        return (generator.standard_normal(shape) / np.sqrt(shape[-1])).astype(dtype)

    if fn is spectral_gradient:
        return [normal(1, n) * np.sqrt(n).astype(dtype) for _ in range(4)], normal(n, n) * np.sqrt(n).astype(dtype)
    if fn is messages_gradient:
        edges = [generator.integers(0, n, 2 * n).astype(np.int32) for _ in range(2)]
        return [normal(width, width) for _ in range(8)], normal(n, width), *edges
    return normal(width, width), normal(n, width)


def program_of(fn, *args):
    return read(jax.make_jaxpr(fn)(*args), "cpu")


def run(program, *args):
    return jax.jit(emit(program, EXPANSIONS))(*jax.tree.leaves(args))


def stores(program, how, primitive):
    """What is offered of the results of a primitive."""
    offered = enumerate_stores(project(program).held, [how])
    return (s for s in offered if not s.path and program.eqns[s.site.position].primitive.name == primitive)


def first_store(program, how, primitive):
    return next(stores(program, how, primitive))


def in_float64(fn, *args):
    jax.config.update("jax_enable_x64", True)
    try:
        wide = jax.tree.map(lambda a: a.astype(np.float64) if a.dtype == np.float32 else a, args)
        return jax.tree.map(np.asarray, fn(*wide))
    finally:
        jax.config.update("jax_enable_x64", False)


def test_all_who_read_what_waits_as_bfloat16_read_it_rounded():
    w, x = operands(chain)
    program = program_of(chain, w, x)
    stored = replay(program, first_store(program, "bfloat16", "tanh"))
    (got,) = run(stored, w, x)
    np.testing.assert_allclose(got, rounded_chain(w, x), rtol=1e-5, atol=1e-6)
    assert np.abs(got - chain(w, x)).max() > 1e-4
    np.testing.assert_allclose(got, in_float64(chain, w, x), atol=20 * BFLOAT16_ERROR)


def test_what_waits_in_the_hosts_memory_keeps_its_bits_and_takes_none_of_the_devices():
    w, x = operands(chain)
    program = program_of(chain, w, x)
    decision = first_store(program, "host", "tanh")
    assert decision.early == 1  # the product that comes before the peak reads it where it was computed
    stored = replay(program, decision)
    np.testing.assert_array_equal(run(stored, w, x)[0], run(program, w, x)[0])
    moved = [e for e in stored.eqns if e.primitive.name == "device_put"]
    assert [_compat.is_on_host(e.outvars[0].aval) for e in moved] == [True, False]
    assert value_bytes(moved[0].outvars[0]) == 0 and value_bytes(moved[1].outvars[0]) == x.nbytes
    assert project(program).bytes - project(stored).bytes == x.nbytes


@pytest.mark.parametrize("how", ["host", "bfloat16"])
def test_rows_of_scans_are_put_away_and_taken_back_one_at_a_time(how):
    w, xs = operands(recurrent_gradient)
    program = program_of(recurrent_gradient, w, xs)
    made = program
    while (store := next(stores(made, how, "scan"), None)) is not None:
        made = replay(made, store)
    scans = [e for e in made.eqns if e.primitive.name == "scan"]
    handed_on = [v.aval for v in scans[0].outvars[1:]]  # three of jax 0.10, two of 0.12
    assert len(handed_on) >= 2 and all(a.shape == (len(xs), *a.shape[1:]) for a in handed_on)
    if how == "host":
        assert all(map(_compat.is_on_host, handed_on))
        np.testing.assert_array_equal(run(made, w, xs)[0], run(program, w, xs)[0])
    else:
        assert all(a.dtype == jnp.bfloat16 for a in handed_on)
        (got,), want = run(made, w, xs), in_float64(recurrent_gradient, w, xs)
        assert 1e-5 < np.abs(got - want).max() / np.abs(want).max() < 4 * BFLOAT16_ERROR
    assert project(made).bytes < project(program).bytes
    assert not any(_compat.is_on_host(v.aval) for v in made.outvars)


def test_what_is_compared_for_equality_stays_equal_to_itself():
    def largest_gradient(w, x):
        def largest(x):
            scores = jnp.tanh(x @ w)
            wide = jnp.exp(-jnp.abs(scores[:, None] - scores[None]).sum(-1))
            return scores.max(1).sum() + wide.max()

        return jax.grad(largest)(x)

    w, x = operands(chain)
    program = program_of(largest_gradient, w, x)
    stored = replay(program, first_store(program, "bfloat16", "tanh"))
    got, want = run(stored, w, x)[0], in_float64(largest_gradient, w, x)
    np.testing.assert_allclose(got, want, atol=8 * BFLOAT16_ERROR * np.abs(want).max())


def test_what_reads_a_moved_value_is_moved_with_it_and_no_further_than_it_runs():
    """`twice` runs where the first product wants it, and `more`, written before that, where the second one does."""

    def two_products(x, w):
        twice = jnp.exp(x @ w) * 2
        more = twice + 1
        return (twice @ w) + (more @ w)

    x = np.random.default_rng(0).standard_normal((D, D), dtype=np.float32) / D
    program = program_of(two_products, x, x)
    position = next(i for i, eqn in enumerate(program.eqns) if eqn.primitive.name == "exp")
    stored = replay(program, Store(path=(), site=program.site(position), result=0, how="bfloat16", early=0))
    (got,) = run(stored, x, x)
    np.testing.assert_allclose(got, two_products(x, x), atol=20 * BFLOAT16_ERROR)


def test_a_store_is_replayed_or_missed_with_a_reason():
    w, x = operands(chain)
    program = program_of(chain, w, x)
    decision = first_store(program, "host", "tanh")
    assert from_json(to_json(decision)) == decision and "in the host's memory" in str(decision)
    last = len(program.eqns) - 1
    for changed, why in (
        (dataclasses.replace(decision, site=program.site(last)), "it is a result"),
        (dataclasses.replace(decision, how="float8"), "there is no way 'float8'; there are host, bfloat16"),
        (dataclasses.replace(decision, result=1), "no such value"),
        (dataclasses.replace(decision, early=2), "nothing reads it later"),
        (dataclasses.replace(decision, early=-1), "nothing reads it later"),
        (dataclasses.replace(decision, site=program.site(0), path=((0, 0),)), "has no body"),
    ):
        with pytest.raises(ReplayMiss, match=why):
            replay(program, changed)
    for field, value in (("early", "1"), ("how", ["host"])):
        with pytest.raises(ValueError, match=f"{field}="):
            from_json({**to_json(decision), field: value})


def test_nothing_but_float32_is_narrowed():
    def counted(w, x):
        kept = (x @ w > 0).astype(jnp.int32)
        wide = jnp.exp(-jnp.abs(x[:, None] - x[None]).sum(-1))
        return kept.sum(0) * wide.sum()

    w, x = operands(chain)
    program = program_of(counted, w, x)
    assert not [s for s in enumerate_stores(project(program).held, ["bfloat16"]) if _makes_integers(program, s)]


def _makes_integers(program, store):
    return program.eqns[store.site.position].outvars[store.result].aval.dtype != jnp.float32


def space(fn, args, share, program=None, **given):
    program = program or program_of(fn, *args)
    peak = project(program)
    fixed = peak.arguments_bytes + peak.outputs_bytes
    return Space(program=program, goal=Goal(bytes=fixed + int((peak.bytes - fixed) * share)), **given)


def test_values_wait_elsewhere_only_where_that_is_allowed_and_makes_the_peak_smaller():
    args = operands(recurrent_gradient)
    plain = space(recurrent_gradient, args, 0.3, machine=Machine())
    assert not list(plain.stored(plain.root))
    host = Machine(host_bytes_per_s=1e10)
    both = space(recurrent_gradient, args, 0.1, machine=host, mixed=True)
    kinds = [{d.how for d in c.decisions} for c in both.stored(both.root)]
    assert kinds == [{"host"}, {"bfloat16"}, {"host"}] or kinds == [{"host"}, {"bfloat16"}, {"host", "bfloat16"}]
    assert all(c.peak.bytes < both.root.peak.bytes for c in both.stored(both.root))
    assert not list(both.stored(both.root, Goal(bytes=both.root.peak.bytes)))  # it fits as it is


def test_transfers_are_predicted_to_take_time():
    args = operands(recurrent_gradient)
    slow, fast = (space(recurrent_gradient, args, 0.1, machine=Machine(host_bytes_per_s=rate)) for rate in (1e6, 1e12))
    moved = [next(iter(s.stored(s.root))).seconds - s.root.seconds for s in (slow, fast)]
    held = 3 * args[1].nbytes
    assert moved[0] == pytest.approx(2 * held / 1e6, rel=0.3) and moved[1] < moved[0] / 10


def test_mixed_numerics_fit_where_nothing_else_does_and_say_so(monkeypatch):
    """Fourier transforms need both axes whole, so that nothing can be cut, and each layer waits for its gradient; it
    could be computed again, as if that were not known."""
    monkeypatch.setattr("exla.search.space.checkpointed", lambda *_, **__: iter(()))
    args = operands(spectral_gradient, n=128)
    limit = int(0.92 * exla.jit(spectral_gradient).plan(*args).compiled_bytes)
    with pytest.raises(exla.MemoryLimitError, match=r'numerics="mixed" may be enough: .* at .*test_store\.py'):
        exla.jit(spectral_gradient, memory_limit=limit)(*args)
    f = exla.jit(spectral_gradient, memory_limit=limit, numerics="mixed")
    plan = f.plan(*args)
    assert plan.compiled_bytes <= limit and any(isinstance(d, Store) for d in plan.decisions)
    said = str(f.explain(*args))
    assert "as bfloat16, off by at most 0.4 %  [" in said and "test_store.py" in said
    for got, want in zip(f(*args), in_float64(spectral_gradient, *args), strict=True):
        assert 0 < np.abs(got - want).max() < 8 * BFLOAT16_ERROR * np.abs(want).max()


@pytest.mark.parametrize(
    ("numerics", "share", "says"),
    [("reassociate", 0.92, True), ("reassociate", 0.5, False), ("exact", 0.92, False), ("mixed", 0.92, False)],
)
def test_a_refusal_names_mixed_numerics_only_where_they_may_be_enough(numerics, share, says):
    peak = exla.jit(spectral_gradient).space(*operands(spectral_gradient, n=128)).root.peak
    refused = refusal(
        program=peak.held[0].program,
        options=Options(numerics=numerics),
        limit_bytes=int(share * peak.bytes),
        smallest_bytes=peak.bytes,
        asked=(),
        peak=peak,
        fixed_bytes=0,
    )
    assert ('numerics="mixed" may be enough' in str(refused)) == says


@pytest.mark.parametrize("target", ["gpu:h200", "tpu:v5e"])
def test_an_accelerators_host_takes_what_waits_by_the_compilers_word(target):
    """Rows of a scan and values between layers; XLA's name of the host's memory is S(5)."""
    compiler_of(target)
    found = find_target(target)
    for fn in (recurrent_gradient, messages_gradient):
        args = operands(fn, n=2048, width=128)
        program = read(jax.make_jaxpr(fn)(*args), found.platform)
        made = space(fn, args, 0.5, program=program, machine=found.machine())
        kept = next(iter(made.stored(made.root)))
        structs = [as_struct(v.aval) for v in program.invars]
        plain, stored = (
            compile_for(found, emit(p, EXPANSIONS), structs, compiler_options={}) for p in (program, kept.program)
        )
        assert {d.how for d in kept.decisions} == {"host"} and kept.peak.bytes < made.root.peak.bytes
        assert stored.memory_analysis().host_temp_size_in_bytes > 0 and "S(5)" in stored.as_text()
        if target.startswith("gpu"):  # a TPU keeps values of this size on the chip
            assert found.compiled_bytes(stored).total < found.compiled_bytes(plain).total


def test_a_tpus_compiler_is_told_the_limit_and_orders_the_program_by_it():
    compiler_of("tpu:v5e")

    def layers_gradient(weights, x):
        return jax.grad(lambda ws: (functools.reduce(lambda h, w: jnp.tanh(h @ w), ws, x) ** 2).mean())(weights)

    args = [jax.ShapeDtypeStruct((256, 256), jnp.float32)] * 8, jax.ShapeDtypeStruct((1 << 17, 256), jnp.float32)
    plain = exla.compile(layers_gradient, args, target="tpu:v5e").plan
    assert plain.untouched and not plain.decisions
    limit = int(0.9 * plain.compiled_bytes)
    told = exla.compile(layers_gradient, args, target="tpu:v5e", memory_limit=limit).plan
    assert [str(d) for d in told.decisions] == [f"compile option xla_tpu_max_hbm_size_mib='{-(-limit // 2**20)}'"]
    assert told.compiled_bytes <= limit < plain.compiled_bytes


def test_a_compiler_that_does_not_know_how_to_be_told_is_not():
    class Lowered:
        def compile(self, compiler_options):
            if compiler_options:
                raise jax.errors.JaxRuntimeError(f"INVALID_ARGUMENT: No such compile option: {compiler_options}")
            return "compiled"

    compiler_of("tpu:v5e")
    target = find_target("tpu:v5e")
    (told,) = target.option_sets(Work(), 1 << 30)
    assert told == {"xla_tpu_max_hbm_size_mib": "1024"} and set(target.option_names()) == set(told)
    assert target.finish(Lowered(), told) == "compiled"
    with pytest.raises(jax.errors.JaxRuntimeError, match="No such"):
        target.finish(Lowered(), {"xla_of_the_users": "1"})


def test_a_split_is_preferred():
    w, x = operands(chain, n=600)
    f = exla.jit(chain, memory_limit="400kB", numerics="mixed")
    plan = f.plan(w, x)
    assert any(isinstance(d, Split) for d in plan.decisions)
    assert not any(isinstance(d, Store) for d in plan.decisions)


def test_what_the_user_keeps_on_the_host_stays_there():
    def offloaded(w, xs):
        def step(h, x):
            h = jnp.tanh(h @ w + x)
            return h, _compat.to_host(h)

        last, rows = jax.lax.scan(step, xs[0], xs)
        return jax.lax.scan(lambda c, row: (c * _compat.to_device(row), None), last, rows, reverse=True)[0]

    w, xs = operands(recurrent_gradient)
    program = program_of(offloaded, w, xs)
    rows = next(e for e in program.eqns if e.primitive.name == "scan").outvars[1]
    assert _compat.is_on_host(rows.aval) and value_bytes(rows) == 0
    np.testing.assert_allclose(run(program, w, xs)[0], offloaded(w, xs), rtol=1e-6)


def test_what_waits_narrow_is_widened_late():
    """XLA:CPU drops barriers, and would widen it where its early readers are."""
    args = operands(messages_gradient, n=1500)
    made = space(messages_gradient, args, 0.0, mixed=True, machine=Machine())
    kept = next(iter(made.stored(made.root)))
    structs = [as_struct(v.aval) for v in made.program.invars]
    options = {"xla_cpu_experimental_ynn_fusion_type": ""}
    plain, stored = (
        compile_for(find_target("cpu"), emit(p, EXPANSIONS), structs, compiler_options=options).memory_analysis()
        for p in (made.program, kept.program)
    )
    assert stored.temp_size_in_bytes < 0.8 * plain.temp_size_in_bytes
