"""Who orders candidates by what was learned: the cost model, if there are weights for the target.

    ranker = find_ranker("cpu")                  # None where exla comes with no weights for it
    ranking = ranker.rank(space.starts, candidates, space.option_sets)
    ranking.order[0], ranking.is_close(*ranking.order[:2])

The cost model is imported when it is first asked for, not before: `exla` starts without it.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from exla.errors import CheckpointError, ExlaWarning
from exla.search.space import Candidate

MODULE = "exla.cost_model.candidates"
MOST_DIFFERENCES = 4
"""Numbers of a candidate and the runner-up that are shown."""


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Candidates in the order of predicted speed.

    Attributes:
      order: positions of the candidates, the fastest first.
      scores: of each candidate, in the order they were given; lower is faster, on no scale.
      doubts: of each, how far the models of an ensemble are apart, on the scale of the scores.
      weights: name of the weights.
      summaries: of each candidate, the mean over its nodes of each number that the model read, by name.
    """

    order: tuple[int, ...]
    scores: tuple[float, ...]
    doubts: tuple[float, ...]
    weights: str
    summaries: tuple[Mapping[str, float], ...] = field(default=(), repr=False)

    def is_close(self, first: int, second: int) -> bool:
        """Whether the models do not agree that one candidate is faster than another that comes after it."""
        return self.scores[second] - self.scores[first] < max(self.doubts[first], self.doubts[second])


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What was predicted of a candidate that was chosen.

    Attributes:
      weights: name of the weights.
      place: its place in the predicted order, from 1; 0 = it is what the analytic search found, which is not ranked.
      count: how many candidates were ranked.
      rival: the runner-up in words: the first in the order but the candidate itself; "" where there is none.
      margin: how much lower the candidate's score is than the runner-up's, in standard deviations of all scores.
      doubt: how far the models are apart about the two, in the same unit.
      differs: name, value and the runner-up's value of what the model read that differs most between the two.
      settled: how one of several that were weighed was kept; "" where none were.
    """

    weights: str
    place: int
    count: int
    rival: str
    margin: float
    doubt: float
    differs: tuple[tuple[str, float, float], ...]
    settled: str = ""

    @classmethod
    def of(
        cls, ranking: Ranking, candidates: Sequence[Candidate], chosen: Candidate, settled: str
    ) -> Prediction | None:
        """What was predicted of one of the candidates that were ranked; None where it is none of them."""
        mine = next((k for k, c in enumerate(candidates) if c.all_decisions == chosen.all_decisions), None)
        if mine is None:
            return cls.unranked(ranking.weights, settled) if settled else None
        rival = next((k for k in ranking.order if k != mine), None)
        differs: list[tuple[str, float, float]] = []
        if rival is not None and ranking.summaries:
            ours, theirs = ranking.summaries[mine], ranking.summaries[rival]
            differs = [(name, ours[name], theirs[name]) for name in ours if ours[name] != theirs[name]]
            differs.sort(key=lambda d: -abs(d[1] - d[2]) / max(abs(d[1]), abs(d[2]), 1e-9))
        return cls(
            weights=ranking.weights,
            place=ranking.order.index(mine) + 1,
            count=len(candidates),
            rival="" if rival is None else str(candidates[rival]),
            margin=0.0 if rival is None else ranking.scores[rival] - ranking.scores[mine],
            doubt=max(ranking.doubts[k] for k in (mine, rival) if k is not None),
            differs=tuple(differs[:MOST_DIFFERENCES]),
            settled=settled,
        )

    @classmethod
    def unranked(cls, weights: str, settled: str = "") -> Prediction:
        """Of what the analytic search found, where the weights say what to weigh against it; "" = nothing was."""
        return cls(weights=weights, place=0, count=0, rival="", margin=0.0, doubt=0.0, differs=(), settled=settled)

    def lines(self) -> list[str]:
        """In words, for people."""
        if self.place == 0:
            found = ["found by the analytic search", f"the weights {self.weights} say what is weighed against it"]
            found[1] += "" if self.settled else ', which takes a run: verify="run"'
        else:
            found = [f"number {self.place} of {self.count} by the weights {self.weights}"]
        if self.rival:
            found.append(f"runner-up: {self.rival}")
            way = "ahead" if self.margin >= 0 else "behind"
            margin, doubt = abs(self.margin), self.doubt
            found.append(f"{way} by {margin:.2f} standard deviations of all scores; the models are {doubt:.2f} apart")
        if self.differs:
            pairs = ", ".join(f"{name} {ours:.3g} against {theirs:.3g}" for name, ours, theirs in self.differs)
            found.append(f"what differs most, as means over the program: {pairs}")
        return [*found, self.settled] if self.settled else found


class CandidateRanker(Protocol):
    """Orders the candidates of a space; `leads` says whether by that order alone one is to be chosen."""

    @property
    def leads(self) -> bool: ...

    def rank(
        self, starts: Sequence[Candidate], candidates: Sequence[Candidate], option_sets: Sequence[Mapping[str, str]]
    ) -> Ranking: ...


def file_name(target: str) -> str:
    """What files of a target are called: "tpu:v5e" -> "tpu-v5e"."""
    return target.replace(":", "-")


def targets_of(weights: Path) -> frozenset[str]:
    """The targets whose weights are in a file, as `file_name` has them: tpu-v5e+tpu-v6e.0.npz -> tpu-v5e, tpu-v6e."""
    return frozenset(weights.name.split(".")[0].split("+"))


@lru_cache(maxsize=32)
def find_ranker(target: str) -> CandidateRanker | None:
    """The ranker of a target; None, with a warning that says why, where there is none."""
    try:
        found = importlib.import_module(MODULE).ranker_for(target)
    except (CheckpointError, ImportError) as error:
        reason = str(error)
    else:
        if found is not None:
            return found
        reason = "exla comes with none for it"
    warnings.warn(
        f'search="learned" has no weights for {target} ({reason}): candidates are ranked as search="analytic" does',
        ExlaWarning,
        stacklevel=2,
    )
    return None
