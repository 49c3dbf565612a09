"""`Plan`: what exla decided for one signature, and why, as data and as text.

The four byte counts are never mixed: `limit_bytes` (the cap), `projected_bytes` (our model), `compiled_bytes` (the
compiler's buffer assignment, plus a bound on what it leaves out), `measured_bytes` (a running process; None until
something has measured it).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from exla.ir.factors import BARRIERS
from exla.ir.program import Program, value_bytes
from exla.ir.rewrites import REPLACE_RULES
from exla.passes.decisions import Decision, Split
from exla.passes.replace import Declined
from exla.report.words import in_words
from exla.search.choice import Choice, Tried
from exla.search.cost import projected
from exla.targets.base import CompiledBytes
from exla.units import format_bytes

MOST_VALUES = 12


@dataclass(frozen=True, kw_only=True)
class ValueReport:
    """What was done about one big value of the user's program.

    Attributes:
      name: type and primitive, e.g. "f32[20000,20000] from `exp`".
      bytes: its whole size.
      source: the user's line.
      fate: what was done, or why nothing was.
    """

    name: str
    bytes: int
    source: str
    fate: str


FROM = {
    "record": ": this was found by an earlier search, and recorded",
    "shipped": ": this was found by a search before exla's release, and comes with it",
    "plan": ": this was loaded from a plan",
    "executable": ": this was loaded from a plan with its executable",
}
"""Where decisions are from that no search was made for."""


NOT_APPLIED = (
    'rewrites that were found and not applied ("it" is what stands left of ->; the form right of it rounds otherwise):'
)
"""The heading of `Plan.declined`."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What exla decided for one signature of a function.

    Attributes:
      decisions: what the candidate is made of; empty where the program is used as it is.
      words: the decisions in words, with the values and source lines that they are about.
      limit_bytes: the cap on arguments + outputs + temporaries - aliased.
      projected_bytes: what our model expects of the chosen program.
      compiled_bytes: the compiler's figure for it.
      measured_bytes: what a process that ran it took, arguments included, or None.
      unaccounted_bytes: the part of compiled_bytes that bounds what the compiler's own figure leaves out.
      plain: the compiler's figure for the unchanged program, or None where it was not asked.
      untouched: whether this is the program exactly as jax.jit compiles it.
      values: what was done about each big value.
      tried: the candidates in the order they were compiled.
      declined: rewrites that were found and not applied: the rule, what it computes in which other form, and why not.
      prediction: what was predicted of the candidate by what was learned, in words; empty where nothing was.
      source: "search", "record", "shipped" (a record that comes with exla, made by other code), "plan" (a saved one) or
        "executable" (a saved one with what was compiled).
      search_s: seconds that planning and compiling took.
      instead: why something else is used although the unchanged program obeys, in words; "" where that is not so.
      hint: what may be faster than the unchanged program, which is used, in words; "" where nothing is known to be.
      compiled: jax's Compiled object.
      program: the chosen program, as a jaxpr in which chunk loops are `exla_split` equations.
    """

    decisions: tuple[Decision, ...]
    words: tuple[str, ...]
    limit_bytes: int
    projected_bytes: int
    compiled_bytes: int
    measured_bytes: int | None
    unaccounted_bytes: int
    plain: CompiledBytes | None
    untouched: bool
    values: tuple[ValueReport, ...]
    tried: tuple[Tried, ...]
    declined: tuple[str, ...]
    prediction: tuple[str, ...]
    source: str
    search_s: float
    instead: str
    hint: str
    compiled: Any = field(repr=False)
    program: Any = field(repr=False)

    def __str__(self) -> str:
        measured = "not measured" if self.measured_bytes is None else format_bytes(self.measured_bytes)
        library = self.unaccounted_bytes
        bound = f" (of which {format_bytes(library)} bound what library calls take)" if library else ""
        lines = [
            "exla plan",
            f"  limit      {format_bytes(self.limit_bytes)}",
            f"  projected  {format_bytes(self.projected_bytes)}",
            f"  compiled   {format_bytes(self.compiled_bytes)}{bound}",
            f"  measured   {measured}",
        ]
        if self.plain is not None and not self.untouched:
            lines.append(f"  jax.jit    {_figure(self.plain)}")
        elif needed := next((t.needed_bytes for t in self.tried if t.untouched), None):
            lines.append(f"  jax.jit    does not compile: it needs {format_bytes(needed)}")
        elif not self.untouched:
            lines.append("  jax.jit    not compiled" + FROM.get(self.source, ""))
        if self.untouched:
            lines.append("  decisions: none; the program obeys the limit and is used exactly as jax.jit compiles it")
            lines += [f"  faster?    {self.hint}"] if self.hint else []
        else:
            faster = f"  faster     than the program as it is, which obeys too: {self.instead}"
            lines += [faster] if self.instead else []
            lines.append("  decisions:")
            lines += [f"    {k}. {words}" for k, words in enumerate(self.words, 1)]
        return "\n".join(lines)


def make_plan(original: Program, choice: Choice) -> Plan:
    """Describe a choice.

    Args:
      original: the canonical program before any decision.
      choice: what the driver chose for it.
    """
    plain = next((t.compiled_bytes for t in choice.tried if t.untouched), None)
    return Plan(
        decisions=choice.decisions,
        words=tuple(_in_words(choice)),
        limit_bytes=choice.limit_bytes,
        projected_bytes=choice.peak.bytes,
        compiled_bytes=choice.compiled_bytes.total,
        measured_bytes=choice.measured_bytes,
        unaccounted_bytes=choice.compiled_bytes.unaccounted,
        plain=plain,
        untouched=choice.untouched,
        values=tuple(_values(original, choice)),
        tried=tuple(_told_apart(choice.tried)),
        declined=tuple(map(_declined, choice.declined)),
        prediction=() if choice.prediction is None else tuple(choice.prediction.lines()),
        source=choice.source,
        search_s=choice.search_s,
        instead=choice.instead,
        hint=choice.hint,
        compiled=choice.compiled,
        program=choice.program.jaxpr,
    )


def explain_text(plan: Plan) -> str:
    """Say in words what was split, what was left alone, and why."""
    lines = [str(plan), "", "big values, largest first:"]
    for value in plan.values:
        where = f"  [{value.source}]" if value.source else ""
        lines.append(f"  {format_bytes(value.bytes):>24}  {value.name}{where}")
        lines.append(f"  {'':>24}    {value.fate}")
    if not plan.values:
        lines.append("  none")
    if plan.declined:
        lines += ["", NOT_APPLIED, *(f"  {why}" for why in plan.declined)]
    if plan.prediction:
        lines += ["", "why this candidate:", *(f"  {line}" for line in plan.prediction)]
    lines += ["", f"candidates compiled ({plan.source}, {plan.search_s:.2f} s):"]
    for tried in plan.tried:
        if tried.compiled_bytes is None:
            verdict = "did not compile"
            if tried.needed_bytes is not None:
                verdict = f"does not fit the device, needs {format_bytes(tried.needed_bytes)}"
            lines.append(f"  {verdict} ({tried.error}): {tried.what}")
            continue
        verdict = "obeys" if tried.compiled_bytes.total <= plan.limit_bytes else "over the limit"
        verdict = f"not used, {tried.error}" if tried.error else verdict
        lines.append(f"  {_figure(tried.compiled_bytes)}, {verdict}: {tried.what}")
    return "\n".join(lines)


def _declined(declined: Declined) -> str:
    """A rule that was not applied, with what it does and why not."""
    rule = REPLACE_RULES.get(declined.rule)
    return f"{declined.rule}, {rule.rewrite}: {declined.reason}" + (f"  [{declined.source}]" if declined.source else "")


def _told_apart(tried: Sequence[Tried]) -> Iterator[Tried]:
    """Candidates, each with words that no other one has."""
    for one, words in zip(tried, in_words([t.decisions for t in tried]), strict=True):
        yield replace(one, what="; ".join(words))


def _in_words(choice: Choice) -> Iterator[str]:
    """Each decision in words; a split that was searched for names its value and the user's line."""
    seeds = iter(choice.seeds)
    for decision in choice.decisions:
        seed = next(seeds, None) if isinstance(decision, Split) else None
        if seed is None or not isinstance(decision, Split):
            source = choice.sources.get(decision)
            yield str(decision) + (f"  [{source}]" if source else "")
            continue
        program, position = seed.region.program, decision.site.position
        values = program.invars if position < 0 else program.eqns[position].outvars
        var = values[decision.result]
        _, source = program.origin(var)
        trips = -(-seed.region.size // decision.chunk)
        yield f"{decision} ({trips} of them): {program.describe(var)}" + (f"  [{source}]" if source else "")


def _figure(counted: CompiledBytes) -> str:
    """A compiler's figure, and apart from it the bound on what it leaves out."""
    text = format_bytes(counted.accounted)
    if counted.unaccounted:
        text += f" and at most {format_bytes(counted.unaccounted)} more inside library calls"
    return text


def _values(original: Program, choice: Choice) -> list[ValueReport]:
    """The biggest values of the original program and what became of each."""
    made = [v for eqn in original.eqns for v in eqn.outvars if hasattr(v.aval, "shape")]
    by_size = sorted([*original.invars, *made], key=value_bytes, reverse=True)[:MOST_VALUES]
    stored = {h.var for h in projected(original, replace(choice.machine, blocks=False)).held}
    outputs = {v for v in original.outvars if not hasattr(v, "val")}
    fates = _fates(choice)
    reports = []
    for var in by_size:
        if value_bytes(var) == 0:
            continue
        position = original.producers.get(var)
        name = original.describe(var)
        _, source = original.origin(var)
        if position is None:
            fate = "argument: the caller holds it"
        elif (name, source) in fates:
            fate = fates[name, source]
        elif var in outputs:
            fate = "output: whole in the end"
        elif source and source in choice.sources.values():
            fate = "not computed this way any more: its line was rewritten"
        elif choice.untouched:
            fate = "left alone: the program obeys the limit"
        else:
            fate = _unsplit_fate(original, position, var in stored)
        reports.append(ValueReport(name=name, bytes=value_bytes(var), source=source, fate=fate))
    return reports


def _unsplit_fate(original: Program, position: int, stored: bool) -> str:
    name = original.eqns[position].primitive.name
    if original.factors(position) is None:
        why = BARRIERS.find(name)
        return f"kept whole: `{name}` has no factor rule, so it is a barrier" + (f": {why}" if why else "")
    return (
        "kept whole: the limit is obeyed without cutting it" if stored else "not stored whole: fused into what uses it"
    )


def _fates(choice: Choice) -> dict[tuple[str, str], str]:
    """(name, source) of the values that the chosen splits cut or could not cut."""
    splits = [d for d in choice.decisions if isinstance(d, Split)]
    fates: dict[tuple[str, str], str] = {}
    for seed, split in zip(choice.seeds, splits, strict=False):
        region = seed.region
        program = region.program
        trips = -(-region.size // split.chunk)
        stacked = {o.stacked[0] for o in region.outputs if o.stacked is not None}
        levels = len(region.levels)
        for var, (axis, _) in region.makers:
            how = "written chunk by chunk into the whole" if var in stacked else "only one chunk exists at a time"
            again = f", in up to {levels} loops over the chunks, one after another" if levels > 1 else ""
            fate = f"split along axis {axis}: {trips} chunks of {split.chunk}, {how}{again}"
            fates.setdefault((program.describe(var), program.origin(var)[1]), fate)
        for var, why in region.blocked.items():
            if var in program.producers:
                fates.setdefault((program.describe(var), program.origin(var)[1]), f"not split further: {why}")
    return fates
