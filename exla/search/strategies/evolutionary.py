"""The evolutionary strategy: the ranker's best, then their children.

The population begins as the candidates that promise most by prediction. Each step takes a parent by tournament, and
mutates it or crosses it with another; now and then (epsilon) it looks somewhere at random instead. What counts is the
measured time; a candidate over the limit is no parent.
"""

from __future__ import annotations

import random

from exla.search.moves import TRIES
from exla.search.space import Candidate
from exla.search.strategy import Outcome, SearchSpace, Steps, starts, strategy

FIRST = 6
POPULATION = 12
TOURNAMENT = 3
EPSILON = 0.1
CROSSED = 0.3


@strategy("evolutionary", measures=True)
def evolutionary(space: SearchSpace, generator: random.Random) -> Steps:
    """Seeded by prediction, epsilon-greedy."""
    seen: set[tuple] = set()
    population: list[tuple[float, Candidate]] = []

    def told(candidate: Candidate, outcome: Outcome) -> None:
        if outcome.status == "ok":
            population.append((candidate.seconds if outcome.run_s is None else outcome.run_s, candidate))
            population.sort(key=lambda pair: pair[0])
            del population[POPULATION:]

    for candidate in _seeds(space):
        if candidate.all_decisions not in seen:
            seen.add(candidate.all_decisions)
            told(candidate, (yield candidate))
    misses = 0
    while misses < TRIES:
        child = _child(space, population, generator)
        if child is None or child.all_decisions in seen:
            misses += 1
            continue
        misses = 0
        seen.add(child.all_decisions)
        told(child, (yield child))


def _seeds(space: SearchSpace) -> list[Candidate]:
    counts = (FIRST, FIRST // 2)
    found = [c for start, count in zip(starts(space), counts, strict=False) for c in space.ranked(start)[:count]]
    return [*space.unsplit(), *found]


def _child(space: SearchSpace, population: list[tuple[float, Candidate]], generator: random.Random) -> Candidate | None:
    if not population or generator.random() < EPSILON:
        return space.sample(generator)

    def parent() -> Candidate:
        return population[min(generator.randrange(len(population)) for _ in range(TOURNAMENT))][1]  # best first

    if len(population) > 1 and generator.random() < CROSSED:
        return space.cross(parent(), parent(), generator)
    return space.mutate(parent(), generator)
