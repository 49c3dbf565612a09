"""The exhaustive strategy: every complete candidate of the walks, in their order, as far as the budget goes."""

from __future__ import annotations

import random

from exla.search.space import Space
from exla.search.strategy import Steps, strategy


@strategy("exhaustive", measures=True)
def exhaustive(space: Space, generator: random.Random) -> Steps:
    """All of them."""
    yield from space.all()
