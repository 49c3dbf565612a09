"""Every primitive that JAX has is known: it has a factor rule, a reason to stay whole, or is flattened."""

import gc
from pathlib import Path

import jax.image
import jax.nn
import jax.numpy
import jax.scipy.linalg
import jax.scipy.ndimage
import jax.scipy.signal
import jax.scipy.special  # noqa: F401 - its primitives are what is looked for
from jax import lax
from jax.extend.core import Primitive

from exla._compat import INLINED_CALLS
from exla.ir.factors import BARRIERS, FACTOR_RULES
from exla.report.coverage import coverage

CALLS_OF_TRACING = {"custom_jvp_call_jaxpr", "custom_vjp_call"}


def test_no_primitive_of_this_jax_is_unseen():
    exported = {p.name for p in (getattr(lax, n) for n in dir(lax)) if isinstance(p, Primitive)}
    loaded = {p.name for p in gc.get_objects() if isinstance(p, Primitive) and not p.name.startswith("test_")}
    known = set(FACTOR_RULES) | set(BARRIERS) | set(INLINED_CALLS) | CALLS_OF_TRACING
    unseen = sorted((exported | loaded) - known)
    assert not unseen, f"give each a factor rule, or a reason in exla/rules/factor/barriers.py: {unseen}"


def test_no_primitive_is_both():
    assert not set(FACTOR_RULES) & set(BARRIERS)


def test_the_page_is_made_from_the_registries():
    page = Path(__file__).resolve().parents[2] / "docs" / "coverage.md"
    assert page.read_text() == coverage(), "python -m exla.report.coverage > docs/coverage.md"
