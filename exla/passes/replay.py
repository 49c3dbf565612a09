"""Replaying a decision on a freshly traced program, whatever kind it is."""

from __future__ import annotations

from exla.ir.program import Program
from exla.passes.decisions import Change, Reorder, Replace, Sink
from exla.passes.reorder import apply_reorder
from exla.passes.replace import apply_replace
from exla.passes.sink import apply_sink
from exla.passes.split.decide import apply_split


def replay(program: Program, decision: Change) -> Program:
    """Apply a decision that changes the program.

    Raises:
      ReplayMiss: if it does not apply.
    """
    if isinstance(decision, Replace):
        return apply_replace(program, decision)
    if isinstance(decision, Reorder):
        return apply_reorder(program, decision)
    return apply_sink(program, decision) if isinstance(decision, Sink) else apply_split(program, decision)
