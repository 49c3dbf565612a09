"""Candidates that obey and between which the prediction is unsure: which one is kept.

Where the compiler estimates how long all their code runs (TPUs), that decides; on a CPU where the user allows a run
(`verify="run"`), they are timed; else the one that needs the least memory is kept, as with all ties.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from exla.errors import MeasureError
from exla.search.attempt import Attempt
from exla.search.choice import Choice
from exla.search.measure import timed
from exla.targets.cycles import estimated_cycles
from exla.units import format_bytes

SECONDS = 1.5
"""For the turns of two candidates that are timed."""


def weigh(attempt: Attempt, choices: Sequence[Choice]) -> tuple[Choice, str]:
    """Keep one of several choices.

    Args:
      attempt: that compiled them.
      choices: two or more, what was predicted to be faster before what was not.

    Returns:
      The one that is kept, of equals the first; and how that was settled, in words. One of which the compiler does not
      estimate all, where it does of the first, is not kept.
    """
    cycles = [math.inf if (found := cycles_of(attempt, choice)) is None else found for choice in choices]
    if cycles[0] < math.inf:
        return _kept(choices, cycles, "{:,.0f}".format, "cycles estimated")
    if _may_run(attempt):
        seconds = _timed(attempt, choices)
        if seconds is not None:
            return _kept(choices, seconds, lambda s: f"{s * 1e3:.3g}", "ms measured")
    return _kept(choices, [c.compiled_bytes.total for c in choices], format_bytes, "compiled")


def can_weigh(attempt: Attempt, choice: Choice) -> bool:
    """Whether others can be weighed against a choice by how long they run."""
    return _may_run(attempt) or cycles_of(attempt, choice) is not None


def _may_run(attempt: Attempt) -> bool:
    return attempt.options.verify == "run" and attempt.target.platform == "cpu" and not attempt.call.inline


def cycles_of(attempt: Attempt, choice: Choice) -> float | None:
    """How long the compiler estimates that a choice runs; None where it says nothing, or not of all its code."""
    found = estimated_cycles(choice.compiled.as_text()) if attempt.target.platform == "tpu" else None
    return found.total if found is not None and found.is_whole else None


def _timed(attempt: Attempt, choices: Sequence[Choice]) -> list[float] | None:
    """Seconds of each, the first's from its turns with the last; None where one cannot be measured."""
    first, *rivals = (attempt.runnable(c.program, c.decisions) for c in choices)
    seconds: list[float] = []
    for rival in rivals:
        try:
            found = timed(rival, reference=first, seconds=SECONDS)
        except MeasureError:
            return None
        if found.run_s is None or found.reference_s is None:
            return None
        seconds = [found.reference_s, *seconds[1:], found.run_s]
    return seconds


def _kept(
    choices: Sequence[Choice], costs: Sequence[float], words: Callable[[Any], str], what: str
) -> tuple[Choice, str]:
    least = min(range(len(costs)), key=costs.__getitem__)
    others = " and ".join(words(c) if c < math.inf else "unknown" for k, c in enumerate(costs) if k != least)
    who = "the first" if least == 0 else f"number {least + 1}"
    why = f"{words(costs[least])} against {others} {what}"
    return choices[least], f"of the {len(choices)} that were weighed {who} was kept: {why}"
