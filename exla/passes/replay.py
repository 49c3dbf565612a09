"""Replaying a decision on a freshly traced program, whatever kind it is."""

from __future__ import annotations

from exla.ir.program import Program
from exla.passes.decisions import Sink, Split
from exla.passes.sink import apply_sink
from exla.passes.split.decide import apply_split


def replay(program: Program, decision: Split | Sink) -> Program:
    """Apply a decision that changes the program.

    Raises:
      ReplayMiss: if it does not apply.
    """
    return apply_split(program, decision) if isinstance(decision, Split) else apply_sink(program, decision)
