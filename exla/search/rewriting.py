"""Rewriting: which replacements and reorderings pay, before anything is split.

Rules are applied in their order until none applies any more. Each change must pay by the model (`exla.search.worth`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from exla import _compat
from exla.errors import ReplayMiss
from exla.ir.program import Program
from exla.ir.rewrites import REPLACE_RULES, ReplaceRule
from exla.passes.collect import enumerate_collections
from exla.passes.decisions import Replace, Rewrite, Store
from exla.passes.fold import enumerate_folds
from exla.passes.reorder import enumerate_reorders
from exla.passes.replace import Declined, apply_replace, enumerate_replacements, names
from exla.passes.replay import replay
from exla.passes.swap import enumerate_swaps
from exla.search.cost import projected
from exla.search.worth import Before
from exla.strict import tolerate
from exla.targets.machine import Machine

MOST_CHANGES = 24
FOLDED = 8
"""A transposed copy that takes a smaller share of the room may lie beside a product's chunks."""


@dataclass(frozen=True, kw_only=True)
class Rewriting:
    """A program after the rewrites that pay.

    Attributes:
      program: the program.
      decisions: what was changed, in order.
      sources: the user's line of each.
      declined: what matched and was not applied, with reasons.
    """

    program: Program
    decisions: tuple[Rewrite, ...] = ()
    sources: tuple[str, ...] = ()
    declined: tuple[Declined, ...] = ()


def rewrite(
    program: Program,
    machine: Machine,
    exact: bool,
    room_bytes: int = 1 << 62,
    asked_for: Sequence[str] = (),
    reorders: bool = True,
) -> Rewriting:
    """Apply the rules in force, and better orders of products, to a fix-point.

    Args:
      program: the canonical program.
      machine: the machine, for predicted time.
      exact: whether every bit must stay as it is.
      room_bytes: what values between the products may take.
      asked_for: opt-in rules that are in force too.
      reorders: whether products may be evaluated in another order.

    Returns:
      The rewritten program; the given one where nothing pays.
    """
    rules = [name for name in names(exact, asked_for) if _suits(REPLACE_RULES.get(name), machine)]
    in_chunks = machine
    if projected(program, machine).temporary_bytes > room_bytes:  # a chunk accumulates little, and stays cached
        machine = replace(machine, accumulator_bytes=None)
        in_chunks = replace(machine, bytes_per_s=machine.cached_bytes_per_s)
    decisions: list[Rewrite] = []
    sources: list[str] = []
    declined: dict[str, Declined] = {}
    while len(decisions) < MOST_CHANGES:
        found: tuple[Rewrite, Program] | None = None
        with tolerate("rewriting"):
            found = _next(program, rules, in_chunks, declined, not decisions)
            if found is None and not exact:
                found = _next_order(program, machine, room_bytes, reorders) or _next_fold(program, machine, room_bytes)
        if found is None:
            break
        decisions.append(found[0])
        sources.append(source_of(program, found[0]))
        program = found[1]
    return Rewriting(
        program=program, decisions=tuple(decisions), sources=tuple(sources), declined=tuple(declined.values())
    )


def _suits(rule: ReplaceRule, machine: Machine) -> bool:
    """Whether a rule is meant for such a machine."""
    return rule.slow_top_k is None or rule.slow_top_k == (machine.threads > 0)


def source_of(program: Program, decision: Rewrite | Store) -> str:
    """The user's line of what a decision changes."""
    for position, which in decision.path:
        program = Program(jaxpr=_compat.bodies(program.eqns[position])[which].jaxpr)
    return program.source(decision.site.position)


def _next(
    program: Program, rules: list[str], machine: Machine, declined: dict[str, Declined], reports: bool
) -> tuple[Replace, Program] | None:
    """The first replacement that pays; what is declined is reported for the user's own program only.

    What would not pay is reported once for each line.
    """
    before = Before(program, machine)
    for found in enumerate_replacements(program, rules):
        if isinstance(found, Declined):
            if reports:
                declined[str(found)] = found
            continue
        decision = found[0]
        try:
            changed = apply_replace(program, decision)
        except ReplayMiss as miss:
            reason = str(miss)
        else:
            if before.pays(changed, REPLACE_RULES.get(decision.rule)):
                return decision, changed
            reason = ""
        if not reports:
            continue
        source = source_of(program, decision)
        if f"{decision.rule} {source}" not in declined:
            reason = reason or f"the rewrite would not pay: {before.beside(changed)}"
            declined[f"{decision.rule} {source}"] = Declined(rule=decision.rule, source=source, reason=reason)
    return None


def _next_order(program: Program, machine: Machine, room_bytes: int, reorders: bool) -> tuple[Rewrite, Program] | None:
    """The first product, or contraction of several, that is better evaluated in another order."""

    def seconds(products: int, read: int, written: int) -> float:
        return 2 * products / machine.flops + 4 * (read + written) / machine.bytes_per_s + machine.kernel_s

    enumerated = enumerate_reorders(program, seconds, room_bytes) if reorders else ()
    orders = (decision for decision, _ in enumerated)
    swaps = enumerate_swaps(program) if machine.product_passes > 1 else ()
    before = Before(program, machine)
    for decision in itertools.chain[Rewrite](enumerate_collections(program), orders, swaps):
        changed = replay(program, decision)
        if before.pays(changed):
            return decision, changed
    return None


def _next_fold(program: Program, machine: Machine, room_bytes: int) -> tuple[Rewrite, Program] | None:
    """The first product of a transposed copy that is large beside the room, where it costs nothing to do without it."""
    before = Before(program, machine)
    for decision in enumerate_folds(program, max(room_bytes // FOLDED, 1)):
        changed = replay(program, decision)
        if before.is_free(changed):
            return decision, changed
    return None
