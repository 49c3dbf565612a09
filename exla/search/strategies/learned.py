"""The learned strategy: a cost model, trained on profiled programs, ranks the pool.

The pool (`exla.search.pool`) is the part of the space that is worth telling apart; the model is that of the target
(`exla.search.ranker`). What it ranks first is compiled first; what the compiler puts over the limit is left out, and
the next one follows. Where the driver can weigh candidates by how long they run, by the compiler's estimate on TPUs and
by a run where the user allows one, two more are compiled, the one that is predicted to be fastest and the next;
elsewhere the next, where the models of the ensemble do not agree that the first is faster. Where nothing of the pool
obeys, or nothing was learned for the target, the analytic strategy goes on.

Models that pick no better than the prediction do not lead: the analytic strategy does, and what they rank first is
weighed against what that found, where that can be. The two are wrong about different programs.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import islice

from exla.search.pool import pool
from exla.search.space import Candidate
from exla.search.strategies.analytic import analytic
from exla.search.strategy import SearchSpace, Session, Steps, each, strategy

MOST_MISSES = 6
"""Candidates over the limit after which the analytic strategy goes on, which tightens its goal by each."""
RIVALS = 2
"""Candidates that are weighed against the first that obeys, where it can be told which is faster."""


@strategy("learned", measures=False, weighs=True, improves=True)
def learned(space: SearchSpace, generator: random.Random) -> Steps:
    """The fastest by what was learned."""
    leads = space.leads()
    if not leads:
        yield from analytic(space, generator) if leads is None else _advised(space, generator)
        return
    candidates = pool(space)
    ranking = space.learned(candidates)
    for place, position in enumerate(ranking.order[:MOST_MISSES]):
        outcome = yield candidates[position]
        if outcome.status == "ok":
            following = ranking.order[place + 1 :]
            if outcome.can_be_weighed:
                fastest = [r for r in following if r == 0]  # by prediction: the pool is sorted by it
                yield from _rivals(candidates[r] for r in dict.fromkeys((*fastest, *following)))
            else:
                yield from each(candidates[r] for r in following[:1] if ranking.is_close(position, r))
            return
    yield from analytic(space, generator)


def _advised(space: SearchSpace, generator: random.Random) -> Steps:
    """The analytic strategy, but that what is ranked first follows the first that obeys, where that is weighed."""
    session = Session(analytic(space, generator))
    while (candidate := session.ask()) is not None:
        outcome = yield candidate
        if outcome.can_be_weighed:
            first = candidate if candidate.options is not None else next(iter(space.suited(candidate)))
            candidates = [c for c in pool(space) if c.all_decisions != first.all_decisions]
            yield from _rivals(candidates[k] for k in space.learned(candidates).order)
            return
        session.tell(outcome)


def _rivals(candidates: Iterable[Candidate]) -> Steps:
    """Ask for one after the other until `RIVALS` obey, `MOST_MISSES` at most."""
    obeying = 0
    for candidate in islice(candidates, MOST_MISSES):
        outcome = yield candidate
        obeying += outcome.status == "ok"
        if obeying == RIVALS:
            return
