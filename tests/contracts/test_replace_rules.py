"""Every replace rule keeps its obligations: found in its examples, right on them, and in none of its lookalikes."""

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from exla.ir.program import canonical
from exla.ir.rewrites import REPLACE_RULES, Example, ReplaceRule
from exla.passes import replace
from exla.passes.obligations import verify
from exla.passes.patterns import argument_axes
from exla.report.rules import page

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("compiled_quickly")


@pytest.mark.parametrize("name", REPLACE_RULES)
def test_a_rule_keeps_its_obligations(name):
    assert [o for o in verify(name) if not o.holds] == []


@pytest.mark.parametrize("name", REPLACE_RULES)
def test_a_rule_says_where_it_is_from_and_has_lookalikes(name):
    rule = REPLACE_RULES.get(name)
    assert "->" in rule.rewrite and rule.source
    assert rule.examples
    assert rule.counterexamples or name.startswith("discovered_")


@pytest.mark.parametrize("name", [n for n in REPLACE_RULES if n.startswith(("squared_", "nearest_", "one_hot_"))])
def test_a_replacement_of_primitives_is_traced_without_calls(name):
    """Each process that replays one traces it: one call of `jax.numpy` in it, and it is traced twice."""
    rule = REPLACE_RULES.get(name)
    every = {a: argument_axes(text) for a, text in rule.arguments.items()}
    structs = [jax.ShapeDtypeStruct([300] * len(axes), dtype) for axes, dtype in every.values()]
    extra = {"sizes": {axis: 5 for axis in rule.sizes}} if rule.sizes else {}
    traced = jax.make_jaxpr(lambda *values: rule.replacement(*values, **extra))(*structs)
    assert {e.primitive.name for e in traced.jaxpr.eqns} & {"jit", "pjit"} == set()
    assert len(canonical(traced).eqns) > 1


def test_the_page_is_made_from_the_registry():
    written = ROOT / "docs" / "rules.md"
    assert written.read_text() == page(), "python -m exla.report.rules > docs/rules.md"


def test_rules_are_tried_in_one_order_whichever_is_imported_first():
    names = "import exla.rules.replace.weighted_distance; from exla.ir.rewrites import REPLACE_RULES as rules"
    words = [sys.executable, "-c", f"{names}; print(*rules.in_order(rare=False))"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == [n for n in REPLACE_RULES.in_order() if not n.startswith("discovered_")], done.stderr


def broken(**changes):
    parts = {
        "rewrite": "sum(x) -> sum(x)",
        "source": "this test",
        "arguments": {"x": "n m"},
        "patterns": (lambda x: jnp.sum(x * x, axis=-1),),
        "replacement": lambda x: jnp.sum(x**2, axis=-1),
        "examples": (Example(fn=lambda x: jnp.sum(x * x, axis=1), arguments=("6 4",)),),
    }
    return ReplaceRule(**{**parts, **changes})


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("equal", {"replacement": lambda x: jnp.sum(x**2, axis=-1) + 1}),
        ("equal", {"replacement": lambda x: jnp.sum(jnp.abs(x), axis=-1)}),
        ("not finite", {"replacement": lambda x: jnp.sum(jnp.nan_to_num(x) ** 2, axis=-1)}),
        ("found", {"examples": (Example(fn=lambda x: jnp.sum(x, axis=1), arguments=("6 4",)),)}),
        ("idempotent", {"replacement": lambda x: jnp.sum(x * x, axis=-1)}),
        ("made of", {"made_of": ("reduce_sum", "sub")}),
        ("lookalike", {"counterexamples": (Example(fn=lambda x: jnp.sum(x * x, axis=0), arguments=("6 4",)),)}),
    ],
)
def test_a_rule_that_breaks_an_obligation_is_found_out(monkeypatch, kind, changes):
    monkeypatch.setitem(REPLACE_RULES._entries, "broken", broken(**changes))
    replace._spellings.cache_clear()
    assert kind in {o.kind for o in verify("broken") if not o.holds}
    replace._spellings.cache_clear()
