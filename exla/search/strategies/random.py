"""The random strategy: complete candidates drawn evenly, none twice. What every other strategy has to beat."""

from __future__ import annotations

import random as randomness

from exla.search.moves import TRIES
from exla.search.strategy import SearchSpace, Steps, strategy


@strategy("random", measures=True)
def random(space: SearchSpace, generator: randomness.Random) -> Steps:
    """Samples, until many in a row bring nothing new."""
    seen, misses = set(), 0
    while misses < TRIES:
        candidate = space.sample(generator)
        if candidate is None or candidate.all_decisions in seen:
            misses += 1
            continue
        misses = 0
        seen.add(candidate.all_decisions)
        yield candidate
