"""Recorded spaces: programs whose candidates were all measured, so that strategies can be compared with no device.

    for space in read_spaces(path):
        curve = simulate("measured", space, trials=32, seed=0)

A recorded space is asked like `exla.search.space.Space`, and knows only what was recorded: its candidates have no
program, only decisions, projected bytes and predicted seconds. What a strategy asks for is answered from the record.
The prediction is the one of the time of recording; `benchmarks.spaces` makes it anew when the model changes.

A file holds one JSON line for each space: its name, limit, how the plain program went, and the candidates.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from exla.ir.memory import Peak
from exla.passes.decisions import Change, CompileOption, Decision, Split, from_json, to_json
from exla.search.beam import MOST_SPLITS, speed
from exla.search.ranker import Ranking
from exla.search.space import Candidate, Goal
from exla.search.strategy import STRATEGIES, Outcome

SPACES = Path(__file__).with_name("spaces")
"""Where recorded spaces are packaged."""
NEAREST = 5
"""A step in a recorded space leads to one of so many nearest candidates."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One candidate of a recorded space.

    Attributes:
      decisions: the candidate; () = the program as jax.jit compiles it.
      status: as of a record of tuning.
      run_s: median seconds of one run; None where it has none.
      peak_bytes: what it takes by the compiler's word.
      projected_bytes: what was projected.
      arguments_bytes, outputs_bytes: of the program.
      predicted_s: what was predicted; None for the plain program.
      option_rank: how late the target would try its compile options: 0 = first.
    """

    decisions: tuple[Decision, ...]
    status: str
    run_s: float | None
    peak_bytes: int | None
    projected_bytes: int
    arguments_bytes: int
    outputs_bytes: int
    predicted_s: float
    option_rank: int = 0

    def candidate(self) -> Candidate:
        """As strategies see it."""
        peak = Peak(
            arguments_bytes=self.arguments_bytes, outputs_bytes=self.outputs_bytes, bytes=self.projected_bytes, held=()
        )
        options = tuple(d for d in self.decisions if isinstance(d, CompileOption))
        changes: tuple[Change, ...] = tuple(d for d in self.decisions if not isinstance(d, CompileOption))
        return Candidate(
            program=None, decisions=changes, seeds=(), peak=peak, seconds=self.predicted_s, options=options or None
        )

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {**asdict(replace(self, decisions=())), "decisions": [to_json(d) for d in self.decisions]}

    @classmethod
    def of_json(cls, data: Mapping[str, Any]) -> Measured:
        """From plain data.

        Raises:
          ValueError: if it is not a candidate.
        """
        try:
            decisions = tuple(from_json(d) for d in data["decisions"])
            found = cls(**{**data, "decisions": decisions})
        except (TypeError, KeyError) as error:
            raise ValueError(f"not a candidate of a recorded space: {error}") from error
        numbers = (found.run_s if found.run_s is not None else 0.0, found.predicted_s)
        if not all(isinstance(n, (int, float)) and math.isfinite(n) and n >= 0 for n in numbers):
            raise ValueError(f"run_s={found.run_s!r} and predicted_s={found.predicted_s!r} are not both seconds")
        if (found.status == "ok") != (found.run_s is not None):
            raise ValueError(f"a candidate with status {found.status!r} has run_s={found.run_s!r}")
        return found


@dataclass(kw_only=True)
class RecordedSpace:
    """A space whose candidates were measured.

    Attributes:
      name: of the program.
      limit_bytes: the limit under which it was recorded.
      default: the program as jax.jit compiles it.
      measured: the other candidates.
      about: device, versions, command.
    """

    name: str
    limit_bytes: int
    default: Measured
    measured: Sequence[Measured]
    about: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def _known(self) -> dict[tuple[Decision, ...], Measured]:
        return {m.candidate().all_decisions: m for m in self.measured}

    @cached_property
    def _candidates(self) -> list[Candidate]:
        return [m.candidate() for m in self.measured]

    @property
    def goal(self) -> Goal:
        return Goal(bytes=self.limit_bytes)

    def leads(self) -> None:
        """None: a candidate that was read has no program that a model could look at."""
        return None

    def learned(self, candidates: Sequence[Candidate]) -> Ranking:
        """Nothing was learned that could rank them."""
        raise LookupError("candidates that were read have no program")

    @property
    def plain_obeys(self) -> bool:
        """Whether the program as jax.jit compiles it obeys the limit."""
        return self.default.status == "ok"

    @property
    def best_s(self) -> float:
        """The least time of all that obeys; inf where nothing does."""
        return min((m.run_s for m in (self.default, *self.measured) if m.run_s is not None), default=math.inf)

    def outcome(self, candidate: Candidate) -> Outcome | None:
        """What was recorded of a candidate; None where nothing was.

        One that names no compile options goes as with the first of the target's with which it obeys.
        """
        found = self._known.get(candidate.all_decisions)
        if found is None and candidate.options is None:
            same = [
                m for c, m in zip(self._candidates, self.measured, strict=True) if c.decisions == candidate.decisions
            ]
            found = min(same, key=lambda m: (m.status != "ok", m.option_rank), default=None)
        if found is None:
            return None
        return Outcome(status=found.status, peak_bytes=found.peak_bytes, run_s=found.run_s)

    # What strategies ask of a space

    @property
    def option_sets(self) -> Sequence[Mapping[str, str]]:
        return list({c.options: {o.name: o.value for o in c.options} for c in self._candidates if c.options}.values())

    @cached_property
    def root(self) -> Candidate:
        return replace(self.default.candidate(), options=None)

    @property
    def rewritten(self) -> Candidate:
        """The start with the most rewrites that any candidate has."""
        starts = {tuple(d for d in c.decisions if not isinstance(d, Split)): c for c in self._candidates}
        most = max(starts, key=len, default=())
        return replace(self.root, decisions=most) if most else self.root

    def has_small_values(self, candidate: Candidate, goal: Goal | None = None) -> bool:
        return True

    def is_steady(self, candidate: Candidate) -> bool:
        return True

    def is_met(self, candidate: Candidate, goal: Goal | None = None) -> bool:
        return candidate.peak.bytes <= (goal or self.goal).bytes

    def unsplit(self) -> Iterator[Candidate]:
        yield from (c for c in self._candidates if not c.splits)

    def moved(self, start: Candidate, goal: Goal | None = None) -> Iterator[Candidate]:
        """What was moved is among what was split."""
        yield from ()

    def distributed(self, start: Candidate) -> Iterator[Candidate]:
        """What was distributed is among what was split."""
        yield from ()

    def sealed(self, start: Candidate) -> Iterator[Candidate]:
        """What was sealed is among what was split."""
        yield from ()

    def stored(self, start: Candidate, goal: Goal | None = None) -> Iterator[Candidate]:
        """What was kept elsewhere is among the unsplit and what was split."""
        yield from ()

    def under(self, candidate: Candidate) -> Iterator[Candidate]:
        yield candidate

    suited = under

    def all(self) -> Iterator[Candidate]:
        yield from self._candidates

    def below(self, parent: Candidate, depth: int | None = None) -> Iterator[Candidate]:
        """Those of one start, in the order of the walks."""
        yield from (c for c in self._of(parent) if self._known[c.all_decisions].option_rank == 0)

    def ranked(self, start: Candidate, goal: Goal | None = None, most_splits: int = MOST_SPLITS) -> list[Candidate]:
        found = [c for c in self._of(start) if self.is_met(c, goal) and len(c.splits) <= most_splits]
        return sorted(found, key=lambda c: (self._known[c.all_decisions].option_rank > 0, speed(c)))

    def _of(self, start: Candidate) -> list[Candidate]:
        count = len(start.decisions)
        starts = [c for c in self._candidates if c.splits and c.decisions[:count] == start.decisions]
        return [c for c in starts if count or isinstance(c.decisions[0], Split)]

    def sample(self, generator: random.Random) -> Candidate | None:
        return generator.choice(self._candidates) if self._candidates else None

    def mutate(self, parent: Candidate, generator: random.Random) -> Candidate | None:
        return self._near([parent], generator)

    def cross(self, one: Candidate, other: Candidate, generator: random.Random) -> Candidate | None:
        return self._near([one, other], generator)

    def _near(self, parents: Sequence[Candidate], generator: random.Random) -> Candidate | None:
        given = {p.all_decisions for p in parents}
        others = [c for c in self._candidates if c.all_decisions not in given]
        near = sorted(others, key=lambda c: sum(distance(c, p) for p in parents))[:NEAREST]
        return generator.choice(near) if near else None


def distance(one: Candidate, other: Candidate) -> float:
    """How many steps apart two candidates are: a decision counts 1, a factor of two in a chunk a quarter."""
    shared = [(a, b) for a, b in zip(one.splits, other.splits, strict=False) if replace(a, chunk=b.chunk) == b]
    chunks = sum(abs(math.log2(a.chunk / b.chunk)) / 4 for a, b in shared)
    rest = [{d for d in c.all_decisions if not isinstance(d, Split)} for c in (one, other)]
    return chunks + len(one.splits) + len(other.splits) - 2 * len(shared) + len(rest[0] ^ rest[1])


def simulate(strategy: str, space: RecordedSpace, trials: int, seed: int = 0) -> list[float]:
    """Run a strategy on a recorded space.

    What does not obey the limit, or fails, costs a compilation and is no evaluation: nothing was timed.

    Args:
      strategy: its name.
      space: the space.
      trials: how many candidates may be timed.
      seed: of the strategy.

    Returns:
      After each evaluation the best time found as a multiple of the best of the space; inf where nothing obeyed. One
      that stops early keeps what it has. Where the plain program obeys, it counts from the start.
    """
    best = math.inf if space.default.run_s is None else space.default.run_s
    curve: list[float] = []
    session = STRATEGIES.get(strategy).start(space, seed)
    while len(curve) < trials and (candidate := session.ask()) is not None:
        outcome = space.outcome(candidate) or Outcome(status="replay_miss")
        if outcome.run_s is not None:
            best = min(best, outcome.run_s)
            curve.append(best / space.best_s)
        session.tell(outcome)
    last = best / space.best_s
    return [*curve, *[last] * (trials - len(curve))]


def write_space(path: Path, space: RecordedSpace) -> None:
    """Add a space to a file."""
    row = {
        "space": space.name,
        "limit_bytes": space.limit_bytes,
        "about": dict(space.about),
        "default": space.default.to_json(),
        "candidates": [m.to_json() for m in space.measured],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row, allow_nan=False) + "\n")


def read_spaces(path: Path) -> list[RecordedSpace]:
    """Read a file of spaces.

    Raises:
      ValueError: for a line that is no space, naming it.
    """
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            found.append(
                RecordedSpace(
                    name=row["space"],
                    limit_bytes=row["limit_bytes"],
                    about=row["about"],
                    default=Measured.of_json(row["default"]),
                    measured=[Measured.of_json(m) for m in row["candidates"]],
                )
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}:{number} is no recorded space: {error}") from error
    return found


def packaged() -> list[Path]:
    """The files of spaces that come with exla."""
    return sorted(SPACES.glob("*.jsonl"))


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How a strategy did on a set of spaces.

    Attributes:
      strategy: its name.
      plain_obeys: whether these are the spaces in which the plain program obeys the limit, or the others.
      spaces: how many they are.
      candidates: how many were measured in them.
      mean: evaluations -> geometric mean over spaces of the best found / the best there is.
      worst: evaluations -> the largest of those.
      slower: how many of these programs it would make slower than the plain one that obeys.
    """

    strategy: str
    plain_obeys: bool
    spaces: int
    candidates: int
    mean: Mapping[int, float]
    worst: Mapping[int, float]
    slower: int


def compare(
    spaces: Sequence[RecordedSpace], strategies: Sequence[str], counts: Sequence[int], seeds: Sequence[int]
) -> list[Comparison]:
    """Run strategies on recorded spaces.

    Args:
      spaces: those in which something obeys.
      strategies: their names.
      counts: evaluations after which they are compared.
      seeds: the median over these is taken.
    """
    rows = []
    groups = [[s for s in spaces if s.plain_obeys == obeys] for obeys in (False, True)]
    for name, group in itertools.product(strategies, filter(None, groups)):
        curves = []
        for space in group:
            runs = [simulate(name, space, max(counts), seed) for seed in seeds]
            curves.append([statistics.median(at) for at in zip(*runs, strict=True)])
        mean = {k: statistics.geometric_mean(c[k - 1] for c in curves) for k in counts}
        worst = {k: max(c[k - 1] for c in curves) for k in counts}
        final = [c[-1] * s.best_s for c, s in zip(curves, group, strict=True)]
        slower = sum(
            s.default.run_s is not None and time > 1.000001 * s.default.run_s
            for s, time in zip(group, final, strict=True)
        )
        rows.append(
            Comparison(
                strategy=name,
                plain_obeys=group[0].plain_obeys,
                spaces=len(group),
                candidates=sum(len(s.measured) for s in group),
                mean=mean,
                worst=worst,
                slower=slower,
            )
        )
    return rows
