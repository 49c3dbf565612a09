"""Rewriting: which replacements and reorderings pay, before anything is split.

Rules are applied in their order until none applies any more. Each change must pay by the model: a smaller projected peak
without much more predicted time, or less time without a larger peak; much less time may cost some.
"""

from __future__ import annotations

from dataclasses import dataclass

from exla.errors import ReplayMiss
from exla.ir.memory import project
from exla.ir.program import Program
from exla.passes.decisions import Reorder, Replace
from exla.passes.reorder import apply_reorder, enumerate_reorders
from exla.passes.replace import Declined, apply_replace, enumerate_replacements, names
from exla.search.cost import Rates, predict_s
from exla.strict import tolerate

MOST_CHANGES = 24


@dataclass(frozen=True, kw_only=True)
class Rewriting:
    """A program after the rewrites that pay.

    Attributes:
      program: the program.
      decisions: what was changed, in order.
      declined: what matched and was not applied, with reasons.
    """

    program: Program
    decisions: tuple[Replace | Reorder, ...] = ()
    declined: tuple[Declined, ...] = ()


def rewrite(program: Program, rates: Rates, exact: bool, room_bytes: int = 1 << 62) -> Rewriting:
    """Apply the rules in force, and better orders of products, to a fix-point.

    Args:
      program: the canonical program.
      rates: the machine, for predicted time.
      room_bytes: what values between the products may take.
      exact: whether every bit must stay as it is.

    Returns:
      The rewritten program; the given one where nothing pays.
    """
    rules = names(exact)
    decisions: list[Replace | Reorder] = []
    declined: dict[str, Declined] = {}
    while len(decisions) < MOST_CHANGES:
        with tolerate("rewriting"):
            found: tuple[Replace | Reorder, Program] | None = _next(program, rules, rates, declined)
            if found is None and not exact:
                found = _next_order(program, rates, room_bytes)
            if found is None:
                break
            decision, program = found
            decisions.append(decision)
            continue
        break
    return Rewriting(program=program, decisions=tuple(decisions), declined=tuple(declined.values()))


def _next(
    program: Program, rules: list[str], rates: Rates, declined: dict[str, Declined]
) -> tuple[Replace, Program] | None:
    before = None
    for found in enumerate_replacements(program, rules):
        if isinstance(found, Declined):
            declined[str(found)] = found
            continue
        decision, where, _ = found
        source = where.match.program.source(where.match.position)
        try:
            changed = apply_replace(program, decision)
        except ReplayMiss as miss:
            reason = str(miss)
        else:
            before = before or _worth(program, rates)
            after = _worth(changed, rates)
            if _pays(before, after):
                return decision, changed
            reason = f"it would not pay: {after[0]} bytes for {before[0]}, {after[1]:.2g} s for {before[1]:.2g} s"
        missed = Declined(rule=decision.rule, source=source, reason=reason)
        declined[str(missed)] = missed
    return None


def _next_order(program: Program, rates: Rates, room_bytes: int) -> tuple[Reorder, Program] | None:
    """The first contraction that is better evaluated in another order."""

    def seconds(products: int, read: int, written: int) -> float:
        return 2 * products / rates.flops + 4 * (read + written) / rates.bytes_per_s + rates.kernel_s

    before = None
    for decision, _ in enumerate_reorders(program, seconds, room_bytes):
        changed = apply_reorder(program, decision)
        before = before or _worth(program, rates)
        if _pays(before, _worth(changed, rates)):
            return decision, changed
    return None


def _worth(program: Program, rates: Rates) -> tuple[int, float]:
    return project(program).bytes, predict_s(program, rates)


def _pays(before: tuple[int, float], after: tuple[int, float]) -> bool:
    """Whether the change is worth it: (projected bytes, predicted seconds) before and after."""
    if after[0] < 0.9 * before[0]:
        return after[1] <= 1.2 * before[1]
    if after[1] < 0.7 * before[1]:
        return after[0] <= 3 * before[0]  # what is split anyway may be somewhat more
    return after[0] <= 1.1 * before[0] and after[1] < 0.95 * before[1]
