"""`exla.jit` for `jax.jit`, in calls of JAX's public functions: the same trees, types and values, or a refusal.

Each call is made under 64 KiB; where that is refused, under 64 KiB more than its arguments and outputs take. JAX is the
judge: the plain function in float32, and where the two differ, the plain function in float64. A call that is not in
`NEED_NOT_BE_SPLIT` has to be split, so that what is compared is never the same program twice.
"""

import pkgutil

import jax
import numpy as np
import pytest

import exla
from exla.passes.decisions import CompileOption
from tests.swap.calls import CALLS, public
from tests.swap.expectations import JAX_LOSES_NAN, NEED_NOT_BE_SPLIT, SLOW, TOLERANCES

LIMIT = 64 * 1024
TOLERANCE = 1e-5


pytestmark = pytest.mark.usefixtures("compiled_quickly")


def numbers(x):
    """An array's numbers; a random key's are its bits."""
    return np.asarray(jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x)


def size(tree):
    return sum(numbers(x).nbytes for x in jax.tree.leaves(tree))


def is_inexact(x):
    return jax.dtypes.issubdtype(x.dtype, np.inexact)


def as_jax_does(name, function):
    """`jax.jit` of the function, without the library that loses NaN where it matters."""
    without = {"compiler_options": {"xla_cpu_experimental_ynn_fusion_type": ""}}
    return jax.jit(function, **(without if name in JAX_LOSES_NAN else {}))


def in_float64(function, arguments):
    """What the plain function gives in float64."""
    jax.config.update("jax_enable_x64", True)
    try:
        wide = [x.astype(np.float64) if x.dtype == np.float32 else x for x in arguments]
        return jax.tree.map(numbers, jax.jit(function)(*wide))
    finally:
        jax.config.update("jax_enable_x64", False)


def what_differs(got, want, tolerance):
    """Where two arrays differ, in words; "" where they agree."""
    inexact = is_inexact(got)
    got, want = numbers(got), numbers(want)
    if not inexact:
        return "" if np.array_equal(got, want) else f"{np.sum(got != want)} of {want.size} elements differ"
    wide = np.complex128 if np.iscomplexobj(want) else np.float64
    got, want = got.astype(wide), want.astype(wide)
    finite = np.isfinite(want)
    if not np.array_equal(finite, np.isfinite(got)) or not np.array_equal(got[~finite], want[~finite], equal_nan=True):
        return f"not finite elsewhere: {np.sum(~np.isfinite(got))} elements of {want.size}, not {np.sum(~finite)}"
    error = np.max(np.abs(got[finite] - want[finite]), initial=0)
    scale = max(np.max(np.abs(want[finite]), initial=0), 1e-30)
    return "" if error <= tolerance * scale else f"error {error:.3g} of {scale:.3g}"


def check(name, got, function, arguments, want):
    """That a result is JAX's: its tree, shapes, types and values."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    tolerance, in_64 = TOLERANCES.get(name, TOLERANCE), None
    for k, (g, w) in enumerate(zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)):
        assert (g.shape, g.dtype, g.weak_type) == (w.shape, w.dtype, w.weak_type), f"{name}, output {k}"
        differs = what_differs(g, w, tolerance)
        if differs and is_inexact(w):
            in_64 = jax.tree.leaves(in_float64(function, arguments)) if in_64 is None else in_64
            differs = what_differs(g, in_64[k], tolerance) and differs
        assert not differs, f"{name}, output {k}: {differs}"


def call(function, arguments, limit):
    """The plan and the result under a limit, or nothing where it is refused."""
    f = exla.jit(function, memory_limit=limit, records="off")
    try:
        got = f(*arguments)
    except exla.MemoryLimitError:
        return None
    plan = f.plan(*arguments)
    assert plan.compiled_bytes <= limit
    return plan, got


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.sweep) if n in SLOW else n for n in CALLS])
def test_exla_jit_gives_what_jax_jit_gives(name):
    function, arguments = CALLS[name]
    want = as_jax_does(name, function)(*arguments)
    called = call(function, arguments, LIMIT) or call(function, arguments, size(arguments) + size(want) + LIMIT)
    if called is None:
        assert name in NEED_NOT_BE_SPLIT, "refused"
        return
    plan, got = called
    check(name, got, function, arguments, want)
    if name not in NEED_NOT_BE_SPLIT:
        assert not plan.untouched
        assert not all(isinstance(d, CompileOption) for d in plan.decisions)


@pytest.mark.sweep
@pytest.mark.parametrize("name", CALLS)
def test_the_same_in_float64(name, x64):
    function, arguments = CALLS[name]
    arguments = [x.astype(np.float64) if x.dtype == np.float32 else x for x in arguments]
    want = as_jax_does(name, function)(*arguments)
    for limit in (LIMIT, size(arguments) + size(want) + LIMIT):
        called = call(function, arguments, limit)
        if called is not None:
            check(name, called[1], function, arguments, want)


def test_the_table_is_of_public_functions():
    assert all(callable(pkgutil.resolve_name(public(name))) for name in CALLS)
    assert CALLS.keys() >= {*SLOW, *NEED_NOT_BE_SPLIT, *TOLERANCES, *JAX_LOSES_NAN}


def test_the_table_is_wide_and_most_of_it_has_to_be_split():
    assert len({public(name) for name in CALLS}) >= 600
    assert len({public(name) for name in CALLS.keys() - NEED_NOT_BE_SPLIT}) >= 480
    assert len({public(name) for name in CALLS.keys() - NEED_NOT_BE_SPLIT - SLOW}) >= 140
