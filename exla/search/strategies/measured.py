"""The measured strategy: rank by prediction, measure the best, learn from it, rank again.

The pool holds what the beam found from each start, under each option set, and some samples. The first few are measured
in the order of prediction. Then the prediction is corrected: a ridge regression of log(measured / predicted) on
a few numbers of each candidate (trips, chunk, working set, option set), which starts from "no correction" and moves as
far as the measurements say. The pool is ranked anew, steps around the best so far join it, and so on.
"""

from __future__ import annotations

import math
import random

import numpy as np

from exla.search.moves import TRIES
from exla.search.space import Candidate
from exla.search.strategy import SearchSpace, Steps, starts, strategy

BATCH = 4
SAMPLES = 16
NEIGHBOURS = 6
UNMET = 8
"""Candidates that are tried of a start where all are projected over the limit: the projection may be too high."""
RIDGE = 1.0
EPSILON = 0.1


@strategy("measured", measures=True)
def measured(space: SearchSpace, generator: random.Random) -> Steps:
    """Measure what promises most by what was measured so far."""
    pool = {c.all_decisions: c for c in _first(space)}
    known: dict[tuple, tuple[Candidate, float]] = {}
    seen: set[tuple] = set()
    for _ in range(SAMPLES):
        _join(pool, space.sample(generator))
    while True:
        for _ in range(BATCH):
            rest = [c for key, c in pool.items() if key not in seen]
            if not rest:
                break
            correction = Correction([*known.values()])
            explores = len(known) > BATCH and generator.random() < EPSILON
            chosen = generator.choice(rest) if explores else min(rest, key=correction.score)
            seen.add(chosen.all_decisions)
            outcome = yield chosen
            if outcome.status == "ok" and outcome.run_s:
                known[chosen.all_decisions] = (chosen, outcome.run_s)
        before = len(pool)
        best = sorted(known.values(), key=lambda pair: pair[1])[:3]
        for _ in range(TRIES if len(seen) == len(pool) else NEIGHBOURS):
            _join(pool, space.mutate(generator.choice(best)[0], generator) if best else space.sample(generator))
            if len(pool) >= before + NEIGHBOURS:
                break
        if len(seen) == len(pool):
            return


def _first(space: SearchSpace) -> list[Candidate]:
    """What the beam finds, without a loop and with, under each option set."""
    found = [*space.unsplit()]
    for start in starts(space):
        ranked = space.ranked(start)
        met = [c for c in ranked if space.is_met(c)]
        found += [dressed for c in met or ranked[:UNMET] for dressed in space.under(c)]
    return found


def _join(pool: dict[tuple, Candidate], candidate: Candidate | None) -> None:
    if candidate is not None:
        pool.setdefault(candidate.all_decisions, candidate)


class Correction:
    """What measurements say about the prediction.

    Args:
      known: candidates with the seconds that they took.
    """

    def __init__(self, known: list[tuple[Candidate, float]]) -> None:
        self._weights: np.ndarray | None = None
        if len(known) >= 2:
            rows = np.array([features(c) for c, _ in known])
            ratios = np.array([math.log(s) - _log_predicted(c) for c, s in known])
            self._scale = np.maximum(np.abs(rows).max(axis=0), 1e-9)
            rows = rows / self._scale
            penalty = RIDGE * np.eye(rows.shape[1])
            penalty[0, 0] = 1e-6  # all of them slower or faster by the same factor says nothing about their order
            self._weights = np.linalg.solve(rows.T @ rows + penalty, rows.T @ ratios)

    def score(self, candidate: Candidate) -> float:
        """The logarithm of the corrected seconds, up to a constant."""
        logarithm = _log_predicted(candidate)
        if self._weights is not None:
            logarithm += float(np.array(features(candidate)) / self._scale @ self._weights)
        return logarithm


def _log_predicted(candidate: Candidate) -> float:
    return math.log(max(candidate.seconds, 1e-9)) if math.isfinite(candidate.seconds) else 10.0


def features(candidate: Candidate) -> list[float]:
    """What a correction may depend on: 1, splits, the logarithms of chunks and of temporary bytes, option set."""
    chunks = [math.log2(s.chunk) for s in candidate.splits]
    off = sum(not option.value for option in candidate.options or ())
    temporary = math.log2(max(candidate.peak.temporary_bytes, 1))
    return [
        1.0,
        float(len(chunks)),
        chunks[0] if chunks else 0.0,
        chunks[-1] if chunks else 0.0,
        temporary,
        float(off),
        float(len(candidate.decisions) - len(chunks)),
        float(any(s.growth.again for s in candidate.splits)),
        float(any(s.growth.online for s in candidate.splits)),
    ]
