"""The learned strategy: a cost model, trained on profiled programs, ranks the pool.

The pool (`exla.search.pool`) is the part of the space that is worth telling apart; the model is that of the target
(`exla.search.ranker`). What is predicted to be fastest is compiled first; what the compiler puts over the limit is left
out, and the next one follows. Where the models of the ensemble do not agree that the first is faster than the next,
that one is compiled too, and the driver weighs the two. Where nothing of the pool obeys, or there is no model, the
analytic strategy goes on.
"""

from __future__ import annotations

import random

from exla.search.pool import pool
from exla.search.strategies.analytic import analytic
from exla.search.strategy import SearchSpace, Steps, strategy

MOST_MISSES = 6
"""Candidates over the limit after which the analytic strategy goes on, which tightens its goal by each."""


@strategy("learned", measures=False, weighs=True, improves=True)
def learned(space: SearchSpace, generator: random.Random) -> Steps:
    """The fastest by what was learned."""
    candidates = pool(space)
    ranking = space.learned(candidates)
    order = () if ranking is None else ranking.order
    for position, following in zip(order[:MOST_MISSES], (*order[1:], None), strict=False):
        outcome = yield candidates[position]
        if outcome.status == "ok":
            if ranking is not None and following is not None and ranking.is_close(position, following):
                _ = yield candidates[following]
            return
    yield from analytic(space, generator)
