"""The replace pass: what a rule's pattern computes is computed by its replacement.

    rewrite: exp(-sum((x[:, None] - y[None])**2, -1)) -> exp(-max(|x|^2 + |y|^2 - 2 x @ y.T, 0))

`rewrite` applies the registered rules, in their order, to a fix-point, and keeps a change only if it pays: a smaller
projected peak, or the same and less predicted time. A value that the pattern covers and that others read as well stays
computed for them, and that counts. What matched and was not applied is reported with the reason.
"""

from __future__ import annotations

import difflib
import functools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

import jax
from jax import lax

from exla import _compat
from exla._compat import Literal
from exla.errors import OptionError, ReplayMiss
from exla.ir.indexed import Term
from exla.ir.memory import Path
from exla.ir.program import Program, as_struct, evaluate
from exla.ir.rewrites import REPLACE_RULES, Admitted, ReplaceRule
from exla.passes.decisions import Replace
from exla.passes.match import Found, find
from exla.passes.paths import at_site, bodies_to_rewrite
from exla.passes.patterns import Pattern, spelling, spellings
from exla.passes.rewritten import rewritten
from exla.passes.unless import unless_p


@dataclass(frozen=True, kw_only=True)
class Declined:
    """A match that was not applied.

    Attributes:
      rule: the rule's name.
      source: the user's line.
      reason: why not.
    """

    rule: str
    source: str
    reason: str

    def __str__(self) -> str:
        where = f"  [{self.source}]" if self.source else ""
        return f"{self.rule}: {self.reason}{where}"


@functools.cache
def _spelling(name: str, which: int, wide: bool) -> Pattern | None:
    """`spelling`, traced once with 64-bit types and once without."""
    return spelling(REPLACE_RULES.get(name), which)


@functools.cache
def _spellings(name: str, wide: bool) -> Mapping[str, Sequence[Pattern]]:
    """The spellings of a rule, by the primitive that makes their results."""
    found = defaultdict[str, list[Pattern]](list)
    for which in range(spellings(REPLACE_RULES.get(name))):
        pattern = _spelling(name, which, wide)
        if pattern is not None:
            found[pattern.made_by].append(pattern)
    return dict(found)


def enumerate_replacements(
    program: Program, rules: Sequence[str], path: Path = ()
) -> Iterator[tuple[Replace, Found, Admitted] | Declined]:
    """Every place in a program, bodies of control flow included, where a rule's pattern is found.

    Args:
      program: the program.
      rules: names of the rules, the first ones first.
      path: where the program is.

    Yields:
      A decision with what was found, or a match that the rule's guard declines.
    """
    primitives = {eqn.primitive.name for eqn in program.eqns}
    for name in rules:
        rule = REPLACE_RULES.get(name)
        if not primitives.issuperset(rule.made_of):
            continue
        for position in reversed(range(len(program.eqns))):
            found = _find(name, program, position)
            if found is None or 0 in found.match.sizes.values():
                continue
            admitted = rule.guard(found.match)
            if isinstance(admitted, str):
                yield Declined(rule=name, source=program.source(position), reason=admitted)
            else:
                yield Replace(path=path, site=program.site(position), rule=name), found, admitted
    for body, inner in bodies_to_rewrite(program, path):
        yield from enumerate_replacements(body, rules, inner)


def _find(name: str, program: Program, position: int) -> Found | None:
    by_primitive = _spellings(name, bool(jax.config.jax_enable_x64))
    return _first(by_primitive.get(program.eqns[position].primitive.name, ()), program, position)


def _find_again(name: str, program: Program, position: int) -> Found | None:
    """`_find` for who looks at one equation: no more spellings are traced than up to the one that is there."""
    wide = bool(jax.config.jax_enable_x64)
    traced = (_spelling(name, which, wide) for which in range(spellings(REPLACE_RULES.get(name))))
    alike = (p for p in traced if p is not None and p.made_by == program.eqns[position].primitive.name)
    return _first(alike, program, position)


def _first(patterns: Iterable[Pattern], program: Program, position: int) -> Found | None:
    """The first of some patterns that is found at an equation."""
    return next((found for p in patterns if (found := find(p, program, position)) is not None), None)


def apply_replace(program: Program, decision: Replace) -> Program:
    """Replay a replacement.

    Args:
      program: the outermost program.
      decision: the replacement.

    Returns:
      The program with the rule's replacement in place of what its pattern matched.

    Raises:
      ReplayMiss: if the rule does not match there.
    """
    return at_site(program, decision, lambda inner, position: _replace(inner, position, decision))


def _replace(program: Program, position: int, decision: Replace) -> Program:
    rule = REPLACE_RULES.find(decision.rule)
    found = None if rule is None else _find_again(decision.rule, program, position)
    if rule is None or found is None:
        raise ReplayMiss(f"{decision}: the rule does not match there")
    admitted = rule.guard(found.match)
    if isinstance(admitted, str):
        raise ReplayMiss(f"{decision}: {admitted}")
    reads = [found.terms[name].atom for name in rule.arguments] + [v for _, v in admitted.extras] + list(found.leaves)
    return rewritten(program, position, reads, lambda get: compute(rule, found, admitted, get))


def compute(rule: ReplaceRule, found: Found, admitted: Admitted, get: Callable[[Any], Any]) -> list[Any]:
    """The results of a match as the rule's replacement computes them, in the program's own axes."""
    arguments, mapped = [], []
    for name in rule.arguments:
        term = found.terms[name]
        present = [b for b in found.batch if b in term.indices]
        arguments.append(_laid_out(get(term.atom), found, term, present, found.arguments[name]))
        mapped.append(present)
    extra: dict[str, Any] = {"sizes": dict(found.match.sizes)} if rule.sizes else {}
    if admitted.extras:
        extra["extras"] = [(kind, get(v)) for kind, v in admitted.extras]

    def call(*values: Any) -> Any:
        return rule.replacement(*values, **extra)

    used = [b for b in found.batch if any(b in present for present in mapped)]
    for b in reversed(used):
        call = jax.vmap(call, in_axes=[0 if b in present else None for present in mapped])
    made = call(*arguments)
    safe, outs = made if rule.checked else (None, made)
    flat = jax.tree.leaves(outs)
    wanted = [v.aval for v in found.match.program.eqns[found.match.position].outvars]
    if len(flat) != len(wanted):
        raise ReplayMiss(f"the replacement has {len(flat)} results, not {len(wanted)}")
    results = [
        _put_back(x, found, used, axes, term, aval.shape)
        for x, axes, term, aval in zip(flat, found.axes, found.results, wanted, strict=True)
    ]
    results = [
        lax.convert_element_type(r, aval.dtype) if r.dtype.kind == "i" == aval.dtype.kind else r
        for r, aval in zip(results, wanted, strict=True)
    ]
    if any(r.dtype != aval.dtype for r, aval in zip(results, wanted, strict=True)):
        raise ReplayMiss(f"the replacement's types are {[str(r.dtype) for r in results]}")
    if safe is None:
        return results
    if safe.ndim == len(used):
        safe = lax.reduce_and(safe, range(safe.ndim)) if safe.ndim else safe
    else:
        axes = tuple(a if n > 1 else None for a, n in zip(found.axes[0], safe.shape[len(used) :], strict=True))
        safe = _put_back(safe, found, used, axes, found.results[0], None)
    leaves, eqns = _each_read(found)
    otherwise = _otherwise(found, safe, [ours for _, ours in leaves], eqns)
    return unless_p.bind(safe, *results, *(get(theirs) for theirs, _ in leaves), otherwise=otherwise)


def _each_read(found: Found) -> tuple[list[tuple[Any, Any]], list[Any]]:
    """The leaves, one for each read: (the program's variable, what stands for it in the original equations); and these.

    What is read as rows by one equation and as columns by another, as points of which the nearest among themselves are
    sought, is cut along the rows in one place and whole in the other.
    """
    leaves, eqns = list[tuple[Any, Any]](), []
    for position in sorted(found.match.inside):
        eqn = found.match.program.eqns[position]
        invars = []
        for v in eqn.invars:
            if not isinstance(v, Literal) and v in found.leaves:
                leaves.append((v, _compat.Var(v.aval)))
                v = leaves[-1][1]
            invars.append(v)
        eqns.append(eqn.replace(invars=invars))
    return leaves, eqns


def _otherwise(found: Found, safe: Any, leaves: Sequence[Any], eqns: Sequence[Any]) -> Any:
    """What is computed where the replacement may not be used: the original equations."""
    program, count = found.match.program, len(found.results)
    results = program.eqns[found.match.position].outvars
    body = program.jaxpr.replace(invars=list(leaves), constvars=[], outvars=list(results), eqns=list(eqns))

    def run(mask: Any, *values: Any) -> list[Any]:
        exact = evaluate(body, values[count:], lambda eqn, operands: _compat.bind(eqn, *operands))
        return [
            lax.select(_broadcast(mask, e.shape) if mask.ndim else lax.broadcast(mask, e.shape), cheap, e)
            for cheap, e in zip(values[:count], exact, strict=True)
        ]

    structs = [as_struct(v.aval) for v in (*results, *leaves)]
    mask = jax.ShapeDtypeStruct(safe.shape, safe.dtype)
    return jax.make_jaxpr(run)(mask, *structs)


def _laid_out(value: Any, found: Found, term: Term, batch: Sequence[int], axes: Sequence[int | None]) -> Any:
    """An argument in the pattern's axes, batch axes first; broadcast along what it does not have."""
    long = [i for i in term.indices if i is not None]
    value = _reshaped(lax.convert_element_type(value, term.atom.aval.dtype), [found.sizes[i] for i in long])
    groups = [() if a is None else found.groups[a] for a in axes]
    order = [*batch, *(i for group in groups for i in group)]
    value = _transposed(value, [long.index(i) for i in order if i in long])
    if len(long) < len(order):
        sizes = [found.sizes[i] for i in order]
        value = lax.broadcast_in_dim(value, sizes, [at for at, i in enumerate(order) if i in long])
    return _reshaped(value, [*(found.sizes[i] for i in batch), *(math.prod(found.sizes[i] for i in g) for g in groups)])


def _put_back(
    value: Any, found: Found, batch: Sequence[int], axes: Sequence[int | None], term: Term, shape: Any
) -> Any:
    """A result of the replacement in the axes of the program's own result; without a shape, unit axes stay so."""
    groups = [() if a is None else found.groups[a] for a in axes]
    order = [*batch, *(i for group in groups for i in group)]
    value = _reshaped(value, [found.sizes[i] for i in order])
    long = [i for i in term.indices if i in order]
    value = _transposed(value, [order.index(i) for i in long])
    value = _reshaped(value, [found.sizes[i] if i in order else 1 for i in term.indices])
    return value if shape is None else _broadcast(value, shape)


def _reshaped(value: Any, shape: Sequence[int]) -> Any:
    return value if tuple(value.shape) == tuple(shape) else lax.reshape(value, tuple(shape))


def _transposed(value: Any, order: Sequence[int]) -> Any:
    return value if list(order) == sorted(order) else lax.transpose(value, tuple(order))


def _broadcast(value: Any, shape: Sequence[int]) -> Any:
    """A value in which an axis of 1 becomes as long as that of a shape, of the same rank."""
    return value if tuple(value.shape) == tuple(shape) else lax.broadcast_in_dim(value, shape, range(len(shape)))


def names(exact: bool, asked_for: Sequence[str] = ()) -> list[str]:
    """Names of the rules that are in force, in order.

    Args:
      exact: whether only those that keep every bit are.
      asked_for: opt-in rules that are in force too, by name or by pattern ("discovered_*").
    """
    chosen = []
    for name in REPLACE_RULES.in_order(rare=bool(asked_for)):
        rule = REPLACE_RULES.get(name)
        if (rule.exact or not exact) and (not rule.opt_in or any(fnmatch(name, wanted) for wanted in asked_for)):
            chosen.append(name)
    return chosen


def check_names(asked_for: Sequence[str]) -> None:
    """Refuse a name that no rule has.

    Raises:
      OptionError: which lists the opt-in rules.
    """
    for name in asked_for:
        if not any(fnmatch(known, name) for known in REPLACE_RULES):
            optional = [n for n in REPLACE_RULES if REPLACE_RULES.get(n).opt_in and not n.startswith("discovered_")]
            near = difflib.get_close_matches(name, list(REPLACE_RULES), n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise OptionError(
                f"no replace rule named {name!r}{hint}; there can be asked for: {', '.join(optional)}, discovered_*"
            )
