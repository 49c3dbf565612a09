"""The learned strategy: a cost model, trained on profiled programs, ranks the pool.

The pool (`exla.search.pool`) is the part of the space that is worth telling apart; the model is that of the target
(`exla.search.ranker`). What is predicted to be fastest is compiled first; what the compiler puts over the limit is left
out, and the next one follows. Where the compiler says how long all of the first runs (TPUs), the next two are compiled
too; elsewhere the next, where the models of the ensemble do not agree that the first is faster. The driver weighs them.
Where nothing of the pool obeys, or there is no model, the analytic strategy goes on.
"""

from __future__ import annotations

import random

from exla.search.pool import pool
from exla.search.strategies.analytic import analytic
from exla.search.strategy import SearchSpace, Steps, each, strategy

MOST_MISSES = 6
"""Candidates over the limit after which the analytic strategy goes on, which tightens its goal by each."""
RIVALS = 2
"""Candidates that are compiled beside the first that obeys, where the compiler says which is faster."""


@strategy("learned", measures=False, weighs=True, improves=True)
def learned(space: SearchSpace, generator: random.Random) -> Steps:
    """The fastest by what was learned."""
    candidates = pool(space)
    ranking = space.learned(candidates)
    order = () if ranking is None else ranking.order
    for place, position in enumerate(order[:MOST_MISSES]):
        outcome = yield candidates[position]
        if outcome.status == "ok":
            rivals = order[place + 1 : place + 1 + RIVALS]
            if not outcome.estimated:
                rivals = tuple(r for r in rivals[:1] if ranking is not None and ranking.is_close(position, r))
            yield from each(candidates[r] for r in rivals)
            return
    yield from analytic(space, generator)
