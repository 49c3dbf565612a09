"""The heuristic strategy: the paper's rule, kept as the baseline.

After the rewrites, the largest value that holds the peak is split along its longest axis, into the largest chunks that
fit; what still does not fit inside the loop is split again. No time is predicted. Where the compiler counts more than
was projected, the next smaller chunks follow, then the next axis.

Source: Artemev et al., Memory Safe Computations with XLA Compiler, NeurIPS 2022, section 3.3.
"""

from __future__ import annotations

import random

from exla.search.strategies.off import worth_compiling
from exla.search.strategy import SearchSpace, Steps, each, strategy


@strategy("heuristic", measures=False)
def heuristic(space: SearchSpace, generator: random.Random) -> Steps:
    """The largest value's longest axis in the largest chunks."""
    yield from each(worth_compiling(space))
    for start in (space.rewritten, *space.moved(space.rewritten)):
        yield from each(space.below(start))
    if space.rewritten.decisions:
        yield from each(space.below(space.root))
