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
FASTER = 0.97
"""What takes no less than this share of the time of the first that obeys is not kept instead: that may be noise."""


def weigh(attempt: Attempt, choices: Sequence[Choice]) -> tuple[Choice, str]:
    """Keep one of several choices.

    Args:
      attempt: that compiled them.
      choices: two or more, what was predicted to be faster before what was not.

    Returns:
      The one that is kept, of equals the first; and how that was settled, in words. One of which the compiler does not
      estimate all, where it does of the first, is not kept.
    """
    found = by_time(attempt, choices)
    return found or _kept(choices, [c.compiled_bytes.total for c in choices], format_bytes, "compiled")


def by_time(attempt: Attempt, choices: Sequence[Choice]) -> tuple[Choice, str] | None:
    """As `weigh`, by how long they run alone; None where that cannot be told."""
    cycles = [math.inf if (found := cycles_of(attempt, choice)) is None else found for choice in choices]
    if cycles[0] < math.inf:
        return _kept(choices, cycles, "{:,.0f}".format, "cycles estimated")
    shares = _timed(attempt, choices) if _may_run(attempt) else None
    if shares is not None:
        return _kept(choices, shares, "{:.2f}".format, "of the first one's time", margin=FASTER)
    return None


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
    """Each one's time as a share of the first's, in turns with it; None where one cannot be measured."""
    first, *rivals = (attempt.runnable(c.program, c.decisions) for c in choices)
    shares = [1.0]
    for rival in rivals:
        try:
            found = timed(rival, reference=first, seconds=SECONDS)
        except MeasureError:
            return None
        if found.run_s is None or found.reference_s is None:
            return None
        shares.append(found.run_s / found.reference_s)
    return shares


def _kept(
    choices: Sequence[Choice], costs: Sequence[float], words: Callable[[Any], str], what: str, margin: float = 1.0
) -> tuple[Choice, str]:
    least = min(range(len(costs)), key=costs.__getitem__)
    least = least if costs[least] < margin * costs[0] else 0
    others = " and ".join(words(c) if c < math.inf else "unknown" for k, c in enumerate(costs) if k != least)
    who = "the first" if least == 0 else "another than the first"
    why = f"{words(costs[least])} against {others} {what}"
    return choices[least], f"of the {len(choices)} that were weighed {who} was kept: {why}"
