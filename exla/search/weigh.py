"""Two candidates that obey and between which the prediction is unsure: which one is kept.

Where the compiler estimates how long all its code runs (TPUs), that decides; on a CPU where the user allows a run
(`verify="run"`), both are timed; else the one that needs less memory is kept, as with all ties.
"""

from __future__ import annotations

from exla.errors import MeasureError
from exla.search.attempt import Attempt
from exla.search.choice import Choice
from exla.search.measure import timed
from exla.targets.cycles import estimated_cycles
from exla.units import format_bytes

SECONDS = 1.5
"""For the turns of two candidates that are timed."""


def weigh(attempt: Attempt, first: Choice, rival: Choice) -> tuple[Choice, str]:
    """Keep one of two choices.

    Args:
      attempt: that compiled both.
      first: what was predicted to be faster.
      rival: the next.

    Returns:
      The one that is kept, and how that was settled, in words.
    """
    if attempt.target.platform == "tpu":
        ours, theirs = (estimated_cycles(c.compiled.as_text()) for c in (first, rival))
        if ours is not None and theirs is not None and ours.is_whole and theirs.is_whole:
            kept = first if ours.total <= theirs.total else rival
            return kept, _said(kept is first, f"{ours.total:,.0f} against {theirs.total:,.0f} cycles estimated")
    if attempt.options.verify == "run" and not attempt.call.inline:
        programs = [attempt.runnable(c.program, c.decisions) for c in (rival, first)]
        try:
            found = timed(programs[1], reference=programs[0], seconds=SECONDS)
        except MeasureError:
            found = None
        if found is not None and found.run_s is not None and found.reference_s is not None:
            kept = first if found.run_s <= found.reference_s else rival
            return kept, _said(
                kept is first, f"{found.run_s * 1e3:.3g} against {found.reference_s * 1e3:.3g} ms measured"
            )
    kept = first if first.compiled_bytes.total <= rival.compiled_bytes.total else rival
    bytes_ = " against ".join(format_bytes(c.compiled_bytes.total) for c in (first, rival))
    return kept, _said(kept is first, f"{bytes_} compiled")


def _said(is_first: bool, why: str) -> str:
    return f"a close call: {'it' if is_first else 'the one that was predicted to be second'} was kept for {why}"
