"""Replaying a decision on a freshly traced program, whatever kind it is."""

from __future__ import annotations

from exla.ir.program import Program
from exla.passes.arrange import apply_arrange
from exla.passes.checkpoint import apply_checkpoint
from exla.passes.collect import apply_collect
from exla.passes.decisions import (
    Arrange,
    Change,
    Checkpoint,
    Collect,
    Distribute,
    Fold,
    Rematerialize,
    Reorder,
    Replace,
    Seal,
    Share,
    Sink,
    Store,
    Swap,
)
from exla.passes.distribute import apply_distribute
from exla.passes.fold import apply_fold
from exla.passes.rematerialize import apply_rematerialize
from exla.passes.reorder import apply_reorder
from exla.passes.replace import apply_replace
from exla.passes.seal import apply_seal
from exla.passes.share import apply_share
from exla.passes.sink import apply_sink
from exla.passes.split.decide import apply_split
from exla.passes.store import apply_store
from exla.passes.swap import apply_swap


def replay(program: Program, decision: Change) -> Program:
    """Apply a decision that changes the program.

    Raises:
      ReplayMiss: if it does not apply.
    """
    if isinstance(decision, Replace):
        return apply_replace(program, decision)
    if isinstance(decision, Reorder):
        return apply_reorder(program, decision)
    if isinstance(decision, Swap):
        return apply_swap(program, decision)
    if isinstance(decision, Fold):
        return apply_fold(program, decision)
    if isinstance(decision, Collect):
        return apply_collect(program, decision)
    if isinstance(decision, Distribute):
        return apply_distribute(program, decision)
    if isinstance(decision, Seal):
        return apply_seal(program, decision)
    if isinstance(decision, Arrange):
        return apply_arrange(program, decision)
    if isinstance(decision, Store):
        return apply_store(program, decision)
    if isinstance(decision, Share):
        return apply_share(program, decision)
    if isinstance(decision, Checkpoint):
        return apply_checkpoint(program, decision)
    if isinstance(decision, Rematerialize):
        return apply_rematerialize(program, decision)
    return apply_sink(program, decision) if isinstance(decision, Sink) else apply_split(program, decision)
