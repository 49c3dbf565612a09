"""Every primitive that JAX has is known: it has a factor rule, a reason to stay whole, or is flattened."""

import gc
from pathlib import Path

import jax
import jax.image
import jax.nn
import jax.numpy
import jax.scipy.linalg
import jax.scipy.ndimage
import jax.scipy.signal
import jax.scipy.special  # noqa: F401 - its primitives are what is looked for
from jax import lax
from jax.extend.core import Primitive, jaxprs_in_params

from exla._compat import INLINED_CALLS
from exla.ir.factors import BARRIERS, FACTOR_RULES
from exla.report.coverage import coverage

CALLS_OF_TRACING = {"custom_jvp_call_jaxpr", "custom_vjp_call"}


def made_of(name):
    """The primitive that one is made of which JAX makes on the fly: `jit` of "vjp_node[jit]"."""
    return name.partition("[")[2].removesuffix("]") or name


def test_no_primitive_of_this_jax_is_unseen():
    exported = {p.name for p in (getattr(lax, n) for n in dir(lax)) if isinstance(p, Primitive)}
    loaded = {p.name for p in gc.get_objects() if isinstance(p, Primitive) and not p.name.startswith("test_")}
    known = set(FACTOR_RULES) | set(BARRIERS) | set(INLINED_CALLS) | CALLS_OF_TRACING
    unseen = sorted({made_of(name) for name in exported | loaded} - known)
    assert not unseen, f"give each a factor rule, or a reason in exla/rules/factor/barriers.py: {unseen}"


def test_what_a_derivative_makes_on_the_fly_reaches_no_program():
    """jax 0.12 linearises calls and loops by primitives that it makes for each, and transposes these away."""

    @jax.jit
    def fn(x):
        called = jax.checkpoint(jax.jit(jax.numpy.sin))(x)
        return lax.scan(lambda c, _: (jax.jit(jax.numpy.cos)(c) * called, None), x, None, length=2)[0].sum()

    def by_vjp(x):
        return jax.vjp(fn, x)[1](jax.numpy.ones(()))

    def linear(x):
        return jax.linearize(fn, x)[1](x)

    for derived in (jax.grad(fn), by_vjp, linear, jax.hessian(fn), jax.vmap(jax.grad(lambda x: fn(x[None])))):
        found = set(primitives(jax.make_jaxpr(derived)(jax.numpy.ones(3)).jaxpr))
        assert {"scan", "sin"} <= found and not [name for name in found if made_of(name) != name]


def primitives(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn.primitive.name
        for inner in jaxprs_in_params(eqn.params):
            yield from primitives(inner)


def test_no_primitive_is_both():
    assert not set(FACTOR_RULES) & set(BARRIERS)


def test_the_page_is_made_from_the_registries():
    page = Path(__file__).resolve().parents[2] / "docs" / "coverage.md"
    assert page.read_text() == coverage(), "python -m exla.report.coverage > docs/coverage.md"
