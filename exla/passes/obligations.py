"""What every replace rule owes: its examples are found and its lookalikes are not, and values stay what they were.

`verify(name)` discharges the obligations of one rule:

* *found*: the rule applies to each example, plain and vmapped;
* *equal*: the rewritten example gives the plain one's values on small integers in float64, where nothing is rounded but
  roots and quotients, and on random numbers in float32 within the rule's tolerance;
* *not finite*: the same where an argument holds infinities and NaN, unless the rule reassociates;
* *idempotent*: the rule does not apply again to what it made, unless it is one that can go both ways (opt-in);
* *lookalike*: the rule does not apply to any counterexample;
* *made of*: every spelling of its pattern holds the primitives that the rule says, so that no program is passed over.

This tests; it does not prove. A rule's docstring says why it is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from exla.ir.emit import emit
from exla.ir.indexed import RENAMING
from exla.ir.program import Program, canonical
from exla.ir.rewrites import REPLACE_RULES, Example, ReplaceRule
from exla.passes.decisions import Replace
from exla.passes.patterns import argument_axes, spelling, spellings
from exla.passes.replace import Declined, apply_replace, enumerate_replacements
from exla.passes.unless import EXPANSIONS

FLOAT64_TOLERANCE = 1e-10


@dataclass(frozen=True, kw_only=True)
class Obligation:
    """One thing that a rule owes.

    Attributes:
      rule: the rule's name.
      kind: found, equal, not finite, idempotent, lookalike or made of.
      about: which example.
      holds: whether the rule keeps it.
      detail: what was measured, or what went wrong.
    """

    rule: str
    kind: str
    about: str
    holds: bool
    detail: str = ""


def verify(name: str, seed: int = 0) -> list[Obligation]:
    """Check everything that a rule owes.

    Args:
      name: the rule's name.
      seed: of the arguments that are drawn.
    """
    rule = REPLACE_RULES.get(name)
    found: list[Obligation] = []
    for n, example in enumerate(rule.examples):
        found += _of_example(name, rule, example, f"example {n}", seed, special=True)
        if example.draw is None:
            found += _of_example(name, rule, _vmapped(example), f"example {n}, vmapped", seed, special=False)
    for n, example in enumerate(rule.counterexamples):
        program = canonical(jax.make_jaxpr(example.fn)(*_arguments(example, seed, np.float32)))
        holds = _first(program, name) is None
        found.append(Obligation(rule=name, kind="lookalike", about=f"counterexample {n}", holds=holds))
    return [*found, *_of_spellings(name, rule)]


def _of_spellings(name: str, rule: ReplaceRule) -> Iterator[Obligation]:
    """Whether each spelling holds what the rule says that all do; views do not count: programs may lack them."""
    for which in range(spellings(rule)):
        for wide in (False, True):
            with jax.enable_x64(wide):
                pattern = spelling(rule, which)
            if pattern is not None:
                primitives = {eqn.primitive.name for eqn in pattern.program.eqns} - RENAMING
                lacks = sorted(set(rule.made_of) - primitives)
                about = f"spelling {which}{', 64 bits' if wide else ''}"
                yield Obligation(rule=name, kind="made of", about=about, holds=not lacks, detail=", ".join(lacks))


def _of_example(
    name: str, rule: ReplaceRule, example: Example, about: str, seed: int, *, special: bool
) -> Iterator[Obligation]:
    """What one example shows; `special`: on values that are not finite and on integers in float64 too."""
    single = _arguments(example, seed, np.float32)
    program, count = _rewritten(name, example.fn, single)
    yield Obligation(rule=name, kind="found", about=about, holds=count > 0)
    if not count:
        return
    if not rule.opt_in:
        yield Obligation(rule=name, kind="idempotent", about=about, holds=_first(program, name) is None)
    difference = _differences(program, example.fn)
    off = difference(single)
    allowed = rule.tolerance * float(np.finfo(np.float32).eps)
    yield Obligation(
        rule=name, kind="equal", about=f"{about}, float32", holds=off <= allowed, detail=f"{off:.1e} of {allowed:.1e}"
    )
    if not special:
        return
    for k, argument in enumerate(() if rule.reassociates else single):
        if argument.dtype.kind == "f" and argument.size > 1 and example.draw is None:
            off = difference([_spoilt(a) if n == k else a for n, a in enumerate(single)])
            yield Obligation(
                rule=name, kind="not finite", about=f"{about}, argument {k}", holds=off <= allowed, detail=f"{off:.1e}"
            )
    with jax.enable_x64(True):
        double = _arguments(example, seed, np.float64)
        program, count = _rewritten(name, example.fn, double)
        off = _differences(program, example.fn)(double) if count else np.inf
        about = f"{about}, integers in float64"
        holds = off <= FLOAT64_TOLERANCE * max(rule.tolerance, 1)
        yield Obligation(rule=name, kind="equal", about=about, holds=holds, detail=f"{off:.1e}")


def _first(program: Program, name: str) -> Replace | None:
    """The first place where a rule applies."""
    found = enumerate_replacements(program, [name])
    return next((d[0] for d in found if not isinstance(d, Declined)), None)


def _rewritten(name: str, fn: Callable[..., Any], arguments: Sequence[Any]) -> tuple[Program, int]:
    """A function with a rule applied wherever it is found, and how often that was."""
    program = canonical(jax.make_jaxpr(fn)(*arguments))
    for count in range(8):
        decision = _first(program, name)
        if decision is None:
            return program, count
        program = apply_replace(program, decision)
    return program, 8


def _differences(program: Program, fn: Callable[..., Any]) -> Callable[[Sequence[Any]], float]:
    """How far a program's values are from a function's, as a function of the arguments; each is compiled once."""
    rewritten, plain = jax.jit(emit(program, EXPANSIONS)), jax.jit(fn)
    return lambda arguments: _distance(rewritten(*program.consts, *arguments), jax.tree.leaves(plain(*arguments)))


def _distance(got: Sequence[Any], want: Sequence[Any]) -> float:
    """How far values are from others, relative to the largest; infinite where NaN or inf differ."""
    worst = 0.0
    for a, b in zip(got, want, strict=True):
        x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
        finite = np.isfinite(y)
        if x.shape != y.shape or not np.array_equal(x[~finite], y[~finite], equal_nan=True):
            return float("inf")
        scale = max(float(np.max(np.abs(y[finite]), initial=0)), 1e-30)
        worst = max(worst, float(np.max(np.abs(x[finite] - y[finite]), initial=0)) / scale)
    return worst


def _arguments(example: Example, seed: int, dtype: Any) -> list[Any]:
    """Arguments of an example: small integers in float64, normal numbers else."""
    generator = np.random.default_rng(seed)
    if example.draw is not None:
        return [np.asarray(a, dtype) for a in example.draw(generator)]
    found = []
    for text in example.arguments:
        axes, kind = argument_axes(text)
        shape = [int(n) for n in axes]
        if kind.kind == "i":
            found.append(generator.integers(0, 3, shape).astype(kind))
        elif dtype == np.float64:
            found.append(generator.integers(-2, 3, shape).astype(dtype))
        else:
            found.append(generator.normal(size=shape).astype(dtype))
    return found


def _vmapped(example: Example) -> Example:
    """The same of three at once."""
    arguments = []
    for text in example.arguments:
        axes, colon, dtype = text.partition(":")
        arguments.append(f"3 {axes}{colon}{dtype}")
    return Example(fn=jax.vmap(example.fn), arguments=tuple(arguments))


def _spoilt(argument: Any) -> Any:
    """The argument with an infinity, its negative and a NaN in it."""
    values = np.array(argument)
    flat = values.reshape(-1)
    flat[:: max(flat.size // 3, 1)][:3] = [np.inf, -np.inf, np.nan][: len(flat[:: max(flat.size // 3, 1)][:3])]
    return jnp.asarray(values)
