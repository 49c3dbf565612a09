"""What waits for a backward pass is computed again there, by segments: values, bytes, bits that decide, replay."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import exla
from exla.call import read
from exla.errors import ReplayMiss
from exla.ir.emit import emit
from exla.ir.memory import project
from exla.ir.numbering import numbered
from exla.passes.checkpoint import enumerate_checkpoints
from exla.passes.decisions import Checkpoint
from exla.passes.replay import replay
from tests.passes.programs import assert_computes
from tests.targets.test_compilers import compiler_of

pytestmark = pytest.mark.usefixtures("compiled_quickly")

N, STEPS = 64, 8
RNG = np.random.default_rng(0)
FIELD, TARGET = RNG.normal(size=(N, N)), RNG.normal(size=(N, N))
LAYERS = RNG.normal(size=(STEPS, 2, N, N)) / 6
STATE = RNG.normal(size=(4,) * 6)
ANGLES = RNG.normal(size=(3, 6))


def split_step(field, target):
    """A nonlinear Schrödinger equation by Fourier transforms along both axes, which nothing can be cut along."""
    turns = jnp.arange(N) ** 2
    phase = jnp.exp(-0.1j * (turns[:, None] + turns))
    u = field + 0j
    for _ in range(2 * STEPS):
        u = jnp.fft.ifft2(phase * jnp.fft.fft2(u * jnp.exp(-0.1j * jnp.abs(u) ** 2)))
    return jnp.mean((jnp.abs(u) - target) ** 2)


def mixing(layers, field):
    """Layers that mix rows and columns in turn, with kinks."""
    for first, second in layers:
        field = field + jax.nn.relu(first @ field) @ second
    return (field**2).mean()


def gates(angles, state):
    """Rotations of axes of four, one after the other: every axis is mixed in each layer."""
    for layer in angles:
        for qubit in range(state.ndim):
            c, s = jnp.cos(layer[qubit]), jnp.sin(layer[qubit])
            gate = jnp.kron(jnp.eye(2), jnp.array([[c, -s], [s, c]]))
            state = jnp.tanh(jnp.moveaxis(jnp.tensordot(gate, state, axes=(1, qubit)), 0, qubit))
    return (state**2).sum()


def noisy(layers, field):
    """Random numbers that are drawn on the way."""
    for k, (first, second) in enumerate(layers):
        kept = jax.random.bernoulli(jax.random.key(k), 0.8, field.shape)
        field = jnp.tanh(first @ jnp.where(kept, field, 0) @ second)
    return (field**2).mean()


def sorted_layers(layers, field):
    """What is sorted, chosen and rounded on the way."""
    for first, second in layers:
        field = jnp.sort(first @ field, axis=0) + jnp.take_along_axis(field, jnp.argsort(field @ second, 1), 1)
        field = jnp.sin(field) + jnp.floor(field) * jnp.cos(field)
    return (field**2).mean()


def largest(layers, field):
    """The gradient of a maximum knows by equality which one it was."""
    for first, second in layers:
        field = jnp.tanh(first @ field @ second)
        field = field + jnp.max(field, axis=0)
    return (field**2).mean()


def in_a_loop(field, target):
    """All of it in the body of a loop."""
    return lax.fori_loop(0, 2, lambda _, u: u - 0.1 * jax.grad(split_step)(u, target), field)


PROGRAMS = {
    "fourier": (jax.value_and_grad(split_step), (FIELD, TARGET)),
    "layers": (jax.value_and_grad(mixing), (LAYERS, FIELD)),
    "gates": (jax.value_and_grad(gates), (ANGLES, STATE)),
    "random numbers": (jax.grad(noisy, (0, 1)), (LAYERS, FIELD)),
    "sorted": (jax.grad(sorted_layers), (LAYERS, FIELD)),
    "largest": (jax.grad(largest), (LAYERS, FIELD)),
    "in a loop": (in_a_loop, (FIELD, TARGET)),
}
"""Name -> (function, arguments)."""


def program_of(fn, args):
    return read(jax.make_jaxpr(fn)(*args), "cpu")


def offered(program, small_bytes=1024):
    return list(enumerate_checkpoints(project(program).held, small_bytes))


def compiled_bytes(program):
    """Temporaries that the compiler counts of a program."""
    run = jax.jit(lambda *xs: emit(program, {})(*program.consts, *xs))
    given = [v.aval for v in program.invars[len(program.consts) :]]
    return run.lower(*given).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_the_same_however_many_segments(name):
    fn, args = PROGRAMS[name]
    with jax.enable_x64(True):
        program = program_of(fn, args)
        decisions = offered(program)
        assert len(decisions) > 2
        for decision in decisions[::3]:
            assert_computes(replay(program, decision), fn, args)


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "largest"])  # what is compared is kept
def test_the_compiler_counts_two_thirds_at_most(name):
    fn, args = PROGRAMS[name]
    with jax.enable_x64(True):
        program = program_of(fn, args)
        made = [replay(program, decision) for decision in offered(program)]
        best = min(made, key=lambda p: project(p).bytes)
        assert compiled_bytes(best) <= compiled_bytes(program) * 2 / 3


def test_what_segments_begin_with_is_computed_again_in_its_turn():
    fn, args = PROGRAMS["fourier"]
    with jax.enable_x64(True):
        program = program_of(fn, args)
        once = min((replay(program, d) for d in offered(program)), key=lambda p: project(p).bytes)
        fine = replay(program, offered(program)[-1])
        twice = [replay(parent, d) for parent in (once, fine) for d in offered(parent)]
        best = min(twice, key=lambda p: project(p).bytes)
        assert_computes(best, fn, args)
        assert compiled_bytes(best) < compiled_bytes(once)


def test_a_number_that_has_decided_something_which_is_kept_is_kept_too():
    def fn(x):
        """Takes one of two ways, and goes on in it, by a number that is chosen."""
        number = 10 * jnp.sin(x @ x)
        chosen, wave = jnp.argmax(number, axis=1), jnp.cos(number)
        y = jnp.tanh(x @ wave)
        for _ in range(3):
            y = jnp.tanh(x @ y)
        return y * jnp.take_along_axis(number, chosen[:, None], 1) * wave

    with jax.enable_x64(True):
        program = program_of(fn, (FIELD,))
    at = max(i for i, eqn in enumerate(program.eqns) if eqn.primitive.name == "tanh")
    end = next(i for i, eqn in enumerate(program.eqns) if eqn.primitive.name == "tanh")
    changed = replay(program, Checkpoint(path=(), site=program.site(at - 1), ends=(end,), small_bytes=0))
    names = [eqn.primitive.name for eqn in changed.eqns]
    assert (names.count("sin"), names.count("cos")) == (1, 2), "what was chosen from is not computed again"
    with jax.enable_x64(True):
        assert_computes(changed, fn, (FIELD,))


def test_operands_without_elements_do_not_wait():
    """What updates all elements has indices without elements: by these, nothing could be told from what was before."""

    def loss(layers, field):
        for first, second in layers:
            field = jnp.tanh(first @ field.at[...].multiply(field) @ second)
        return (field**2).mean()

    fn, args = jax.value_and_grad(loss), (LAYERS, FIELD)
    with jax.enable_x64(True):
        program = program_of(fn, args)
        for decision in offered(program)[:3]:
            changed = replay(program, decision)
            as_before, _ = numbered(changed)
            names = [eqn.primitive.name for eqn in changed.eqns if as_before.keys() & set(eqn.outvars)]
            assert "scatter-mul" not in names, "the compiler would take it for what it has already"
            assert_computes(changed, fn, args)


def test_small_values_wait():
    fn, args = PROGRAMS["layers"]
    program = program_of(fn, [np.asarray(a, np.float32) for a in args])
    assert offered(program, N * N * 4 - 1)
    assert not offered(program, N * N * 4)


def test_what_does_not_apply_is_a_miss():
    fn, args = PROGRAMS["layers"]
    program = program_of(fn, args)
    decision = offered(program)[1]
    first = decision.ends[0]
    for wrong in (
        dataclasses.replace(decision, site=program.site(0)),
        dataclasses.replace(decision, site=dataclasses.replace(decision.site, fingerprint="another")),
        dataclasses.replace(decision, ends=()),
        dataclasses.replace(decision, ends=(0,)),
        dataclasses.replace(decision, ends=(first, first)),
        dataclasses.replace(decision, ends=(first, 1 << 20)),
        dataclasses.replace(decision, small_bytes=1 << 30),
    ):
        with pytest.raises(ReplayMiss):
            replay(program, wrong)


def test_a_gradient_fits_a_part_of_what_it_needs():
    fn, args = PROGRAMS["fourier"]
    with jax.enable_x64(True):
        needs = jax.jit(fn).lower(*args).compile().memory_analysis()
        fixed = needs.argument_size_in_bytes + needs.output_size_in_bytes
        capped = exla.jit(fn, memory_limit=fixed + needs.temp_size_in_bytes // 2, records="off")
        plan = capped.plan(*args)
        assert "checkpoint equations 0 to " in str(plan)
        assert any(isinstance(d, Checkpoint) for d in plan.decisions), str(plan)
        for a, b in zip(jax.tree.leaves(capped(*args)), jax.tree.leaves(fn(*args)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9 * np.abs(b).max())


def test_gpus_compute_it_again_too():
    """By their compiler's count; that of TPUs, told the limit, computes again what it can by itself."""
    compiler_of(target := "gpu:h200")

    def loss(u):
        for _ in range(STEPS):
            u = jnp.fft.ifft2(jnp.fft.fft2(u * jnp.cos(u))).real
        return (u**2).mean()

    args = (jax.ShapeDtypeStruct((1024, 1024), jnp.float32),)
    needs = exla.compile(jax.grad(loss), args, target=target, records="off").plan.compiled_bytes
    plan = exla.compile(jax.grad(loss), args, target=target, memory_limit=int(0.7 * needs), records="off").plan
    assert plan.compiled_bytes <= 0.7 * needs
    assert any(isinstance(d, Checkpoint) for d in plan.decisions), str(plan)


def test_what_is_compared_for_equality_is_not_computed_again():
    """The gradient of a maximum, which is found by equality: in float32, where every last bit may be another one."""
    fn, args = PROGRAMS["largest"]
    with jax.enable_x64(True):
        exact = [np.asarray(a) for a in jax.tree.leaves(fn(*args))]
    args = [np.asarray(a, np.float32) for a in args]
    program = program_of(fn, args)
    once = [replay(program, decision) for decision in offered(program)]
    twice = [replay(changed, decision) for changed in once[::2] for decision in offered(changed)[::4]]
    assert len(once) > 2 and twice
    for changed in (*once[::2], *twice):
        got = jax.jit(lambda *xs, changed=changed: emit(changed, {})(*changed.consts, *xs))(*args)
        for a, b in zip(got, exact, strict=True):
            assert np.abs(a - b).max() <= 1e-5 * np.abs(b).max()
