"""Strategies: who says which candidate to look at next.

A strategy is a generator: it is given the space and a source of randomness, yields candidates, and is sent the outcome
of each.

    @strategy("random", measures=True)
    def propose(space, generator):
        while True:
            outcome = yield space.sample(generator)

A `Session` runs one with three verbs: `start` makes it, `ask` gives the next candidate or None at the end, `tell` says
how it went. The driver owns everything else: compiling, limits, records, clocks, budgets. So strategies see no device,
and can be run against recorded spaces. The same seed gives the same questions for the same answers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from exla.registry import Registry
from exla.search.garbage import uncollected
from exla.search.ranker import Ranking
from exla.search.space import Candidate, Goal


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a candidate went.

    Attributes:
      status: as of a record: "ok", "over_limit", "compile_error", …; "barred" where its devices would exchange more, or
        bits would differ that must not.
      peak_bytes: what it takes by the compiler's word; None where that is unknown.
      run_s: seconds of one run; None where it was not measured. NaN never gets here.
      devices: how many devices share the program; peak_bytes is that of each.
      can_be_weighed: whether others can be weighed against it by how long they run, which is not yet known of any.
    """

    status: str
    peak_bytes: int | None = None
    run_s: float | None = None
    devices: int = 1
    can_be_weighed: bool = False


class SearchSpace(Protocol):
    """What a strategy may ask of a space: `exla.search.space.Space`, or a recorded one."""

    @property
    def goal(self) -> Goal: ...
    @property
    def option_sets(self) -> Sequence[Mapping[str, str]]: ...
    @property
    def root(self) -> Candidate: ...
    @property
    def rewritten(self) -> Candidate: ...
    def has_small_values(self, candidate: Candidate, goal: Goal | None = None) -> bool: ...
    def is_steady(self, candidate: Candidate) -> bool: ...
    def is_met(self, candidate: Candidate, goal: Goal | None = None) -> bool: ...
    def unsplit(self) -> Iterator[Candidate]: ...
    def moved(self, start: Candidate, goal: Goal | None = None) -> Iterator[Candidate]: ...
    def distributed(self, start: Candidate) -> Iterator[Candidate]: ...
    def sealed(self, start: Candidate) -> Iterator[Candidate]: ...
    def stored(self, start: Candidate, goal: Goal | None = None) -> Iterator[Candidate]: ...
    def under(self, candidate: Candidate) -> Iterator[Candidate]: ...
    def suited(self, candidate: Candidate) -> Iterator[Candidate]: ...
    def all(self) -> Iterator[Candidate]: ...
    def below(self, parent: Candidate, depth: int | None = None) -> Iterator[Candidate]: ...
    def leads(self) -> bool | None: ...
    def learned(self, candidates: Sequence[Candidate]) -> Ranking: ...
    def ranked(self, start: Candidate, goal: Goal | None = None, most_splits: int = ...) -> list[Candidate]: ...
    def sample(self, generator: random.Random) -> Candidate | None: ...
    def mutate(self, parent: Candidate, generator: random.Random) -> Candidate | None: ...
    def cross(self, one: Candidate, other: Candidate, generator: random.Random) -> Candidate | None: ...


Steps = Generator[Candidate, Outcome, None]
Propose = Callable[[SearchSpace, random.Random], Steps]


def each(candidates: Iterable[Candidate]) -> Steps:
    """Ask for one after the other, however they go."""
    for candidate in candidates:
        _ = yield candidate  # what a list cannot be sent


def starts(space: SearchSpace) -> list[Candidate]:
    """What is split: the program after the rewrites, then as it is; one where nothing was rewritten."""
    return [space.rewritten, space.root] if space.rewritten.decisions else [space.root]


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """One way to choose.

    Attributes:
      name: what `search=` calls it.
      propose: the generator.
      measures: whether it is told how long candidates run, and goes on after the first that obeys the limit.
      weighs: whether what it asks after the first that obeys are rivals of that, to be compiled and weighed against it,
        where candidates were ranked by what was learned.
      improves: whether what it asks else after the first that obeys is to be used instead, where it is predicted to be
        faster and obeys too.
    """

    name: str
    propose: Propose
    measures: bool
    weighs: bool = False
    improves: bool = False

    def start(self, space: SearchSpace, seed: int = 0) -> Session:
        """A session of this strategy on a space."""
        return Session(self.propose(space, random.Random(seed)))


class Session:
    """A strategy at work: ask, tell, ask, tell, until `ask` gives None."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._next: Candidate | None = None
        self._began = False
        self._ended = False

    def ask(self) -> Candidate | None:
        """The next candidate; the same one until it is told about; None at the end."""
        if not self._began:
            self._began = True
            self._advance(lambda: next(self._steps))
        return None if self._ended else self._next

    def tell(self, outcome: Outcome) -> None:
        """How the candidate went that was asked last."""
        if not self._began or self._ended:
            raise RuntimeError("tell follows an ask that gave a candidate")
        self._advance(lambda: self._steps.send(outcome))

    def _advance(self, step: Callable[[], Candidate]) -> None:
        try:
            with uncollected():
                self._next = step()
        except StopIteration:
            self._ended, self._next = True, None


STRATEGIES: Registry[Strategy] = Registry("strategy", package="exla.search.strategies")


def strategy(
    name: str, *, measures: bool, weighs: bool = False, improves: bool = False
) -> Callable[[Propose], Propose]:
    """Register a generator as a strategy."""

    def add(propose: Propose) -> Propose:
        flags = {"measures": measures, "weighs": weighs, "improves": improves}
        STRATEGIES.register(name)(Strategy(name=name, propose=propose, **flags))
        return propose

    return add
