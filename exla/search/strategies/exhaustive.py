"""The exhaustive strategy: every complete candidate of the walks, in their order, as far as the budget goes."""

from __future__ import annotations

import random

from exla.search.strategy import SearchSpace, Steps, each, strategy


@strategy("exhaustive", measures=True)
def exhaustive(space: SearchSpace, generator: random.Random) -> Steps:
    """All of them."""
    yield from each(space.all())
