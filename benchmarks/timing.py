"""Fair timing on a noisy machine: the rivals take turns, and their medians are compared.

Two programs timed one after the other differ by whatever else the machine did in between. Here each round runs every
rival once, A B A B, so that a slow minute slows all of them:

>>> seconds = alternate({"exla": f, "hand": g}, rounds=5)
>>> statistics.median(seconds["exla"]) / statistics.median(seconds["hand"])
"""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax

SCREEN_FACTOR = 1.5
"""Times the best within which a setting is tried once more."""


def seconds_of(run: Callable[[], Any]) -> float:
    """Wall-clock seconds until every array of the result is ready."""
    start = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - start


def alternate(rivals: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each rival in each round; the order of the rivals is reversed every other round."""
    seconds: dict[str, list[float]] = {name: [] for name in rivals}
    for turn in range(rounds):
        order = list(rivals) if turn % 2 == 0 else list(reversed(rivals))
        for name in order:
            seconds[name].append(seconds_of(rivals[name]))
    return seconds


def screen(rivals: Mapping[Any, Callable[[], Any]], failed: dict[Any, str] | None = None) -> dict[Any, float]:
    """Seconds of each setting of one rival: the first run of all, the better of two for those not far behind.

    Args:
      rivals: setting -> what runs it.
      failed: where what a setting raises is told, by setting; without it, it is raised.
    """
    seconds = {}
    for name, run in rivals.items():
        try:
            seconds[name] = seconds_of(run)
        except Exception as error:  # of any library: out of memory, as a rule
            if failed is None:
                raise
            failed[name] = f"{type(error).__name__}: {error}"[:300]
    near = SCREEN_FACTOR * min(seconds.values(), default=0)
    return {name: min(first, seconds_of(rivals[name])) if first <= near else first for name, first in seconds.items()}


def medians(rivals: Mapping[str, Callable[[], Any]], within_s: float) -> tuple[dict[str, float], int]:
    """Median seconds of each rival over as many rounds as some seconds hold, 5 to 41, and how many these were."""
    once = sum(map(seconds_of, rivals.values()))
    rounds = min(max(int(within_s / once), 5), 41)
    return {name: statistics.median(values) for name, values in alternate(rivals, rounds).items()}, rounds
