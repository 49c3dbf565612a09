"""The space: every candidate that the passes offer for a program under a limit, and ways to walk it.

A candidate is what the program becomes by a sequence of decisions:

* it *starts* as the program itself, or after the first few of the rewrites that pay (`Space.starts`), maybe with big
  values computed inside the loops that read them;
* it is *split* along one region after another (`Space.offers`), each into chunks of a size (`Space.chunks`), until
  its projected peak is within the goal: there it is complete;
* what its loops multiply whole is transposed before them, or not (`Space.arranged`);
* it is compiled under one of the target's option sets (`Space.option_sets`).

So the space is a tree whose leaves are the complete candidates. `Space.all` walks it, the largest value first and the
largest chunks first; `Space.size` counts its leaves or, where there are many, estimates them from random walks
(Knuth 1975, *Estimating the efficiency of backtrack programs*); `sample`, `mutate` and `cross` move about in it at
random. Nothing is compiled here: a candidate that the compiler's figure puts over the limit is found out by the driver.

`docs/space.md` says what is in the space and what is not.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from exla.ir.memory import Peak, largest_bytes
from exla.ir.program import Program, value_bytes
from exla.ir.scopes import numbered
from exla.ir.spread import Spread
from exla.passes.apart import allows
from exla.passes.arrange import enumerate_arrangements
from exla.passes.decisions import Change, CompileOption, Decision, Distribute, Rewrite, Seal, Share, Split, Store
from exla.passes.distribute import enumerate_distributions
from exla.passes.paths import program_at
from exla.passes.replace import Declined
from exla.passes.replay import replay
from exla.passes.seal import enumerate_seals
from exla.passes.split.chunks import grid, probe
from exla.passes.split.decide import Seed, apply_seed, enumerate_splits, growths, replay_split
from exla.passes.steady import Steady
from exla.search import moves
from exla.search.beam import MOST_SPLITS, rank
from exla.search.checkpointed import checkpointed
from exla.search.cost import predict_with_memory_s, projected
from exla.search.kept import stored
from exla.search.moved import MOST_BARRED, sunk, thresholds
from exla.search.rewriting import rewrite, source_of
from exla.strict import tolerate
from exla.targets.machine import Machine

if TYPE_CHECKING:
    from exla.search.ranker import CandidateRanker, Ranking

MOST_ARRANGED = 6
MOST_STEADIED = 16
DEPTH = 2
"""How many splits one after another `Space.all` and the random walks go; strategies may go further."""
RATIO = 2
"""Chunk sizes that are tried grow by this factor."""
MOST_TRIED = 2_000_000
"""As `Space.most_tried`: a minute or two."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A program with what made it, and what is predicted for it.

    Attributes:
      program: the program after the decisions; None where the candidate was read from records.
      decisions: those that change the program, in order.
      seeds: the region of each split among them.
      peak: its projected peak.
      seconds: predicted time of one run; inf where nothing was predicted.
      options: the compile options; None = those of the target that suit it, the first with which it obeys.
    """

    program: Any
    decisions: tuple[Change, ...]
    seeds: tuple[Seed, ...]
    peak: Peak
    seconds: float
    options: tuple[CompileOption, ...] | None = None

    @property
    def all_decisions(self) -> tuple[Decision, ...]:
        """The decisions, compile options among them."""
        return (*self.decisions, *(self.options or ()))

    @property
    def splits(self) -> tuple[Split, ...]:
        return tuple(d for d in self.decisions if isinstance(d, Split))

    @property
    def outcome(self) -> tuple[str, int, float]:
        """What the decisions lead to: the same where they differ only in thresholds of growth that changed nothing."""
        return str(self), self.peak.bytes, self.seconds

    def __str__(self) -> str:
        return "; ".join(map(str, self.all_decisions)) or "the program as it is"


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What is wanted of a candidate.

    Attributes:
      bytes: what its projected peak may be, arguments included.
      most_chunk_bytes: the paper's tensor_split_size: working set that no chunk may exceed, or None.
      most_value_bytes: the paper's tensor_size_threshold: values above it are split although they fit, or None.
      finest: whether regions grow over all values, however small, that are then cut along with the big ones.
      coarser: whether values may stay whole, too, that take a good part of the room.
    """

    bytes: int
    most_chunk_bytes: int | None = None
    most_value_bytes: int | None = None
    finest: bool = False
    coarser: bool = False


@dataclass(frozen=True, kw_only=True)
class Size:
    """How many complete candidates there are: counted, or estimated from random walks."""

    candidates: int
    exact: bool

    def __str__(self) -> str:
        return f"{self.candidates:,}" if self.exact else f"about {float(f'{self.candidates:.2g}'):,.0f}"


@dataclass(kw_only=True)
class Space:
    """What can be done to one program.

    Attributes:
      program: the canonical program.
      goal: what is wanted.
      machine: what is planned for.
      exact: whether what is cut must keep every bit, wherever the chunks begin.
      mixed: whether values may wait in narrower types than they are computed in.
      rules: opt-in replace rules that are in force too.
      reorders: whether products may be evaluated in another order.
      option_sets: the target's compile options; empty where they are not exla's to choose.
      room_bytes: what a rewritten product may take between its factors.
      barred: seeds that are not to be split.
      spread: (argument, axis) -> how devices share it out.
      ranker: finds what orders candidates by what was learned, where there is such; None = nothing does.
      suits: program -> those of the option sets that are worth trying with it; None = all.
      depth: how many splits one after another the walks make.
      ratio: how chunk sizes grow in the walks.
      most_tried: splits that the beam tries, times the equations of the program, those of bodies included.
      predicted: what was ranked last by what was learned, and how.
      barred_shares: how often what computes something on shares was barred.
      known_shared: what `exla.search.moved` has found.
    """

    program: Program
    goal: Goal
    machine: Machine
    exact: bool = False
    mixed: bool = False
    rules: tuple[str, ...] = ()
    reorders: bool = True
    option_sets: Sequence[Mapping[str, str]] = ()
    room_bytes: int = 1 << 62
    barred: Callable[[Seed], bool] = lambda seed: False
    spread: Mapping[tuple[int, int], Spread] = field(default_factory=dict)
    ranker: Callable[[], CandidateRanker | None] | None = None
    suits: Callable[[Program], Sequence[Mapping[str, str]]] | None = None
    depth: int = DEPTH
    ratio: float = RATIO
    most_tried: int = MOST_TRIED
    declined: tuple[Declined, ...] = field(default=(), init=False)
    sources: Mapping[Decision, str] = field(default_factory=dict, init=False)
    predicted: tuple[Sequence[Candidate], Ranking] | None = field(default=None, init=False)
    _steady: dict[tuple[Change, ...], Steady] = field(default_factory=dict, init=False)
    _steadied: dict[tuple[Change, ...], Candidate] = field(default_factory=dict, init=False)
    _barred: set[Split] = field(default_factory=set, init=False)
    barred_shares: Counter[Share] = field(default_factory=Counter, init=False)
    known_shared: dict[Any, Candidate | None] = field(default_factory=dict, init=False)
    _offered: dict[Any, list[Seed]] = field(default_factory=dict, init=False)
    _cut: dict[tuple[Change, ...], Candidate] = field(default_factory=dict, init=False)
    _same: dict[Any, Candidate] = field(default_factory=dict, init=False)
    _unfused: dict[tuple[Change, ...], Peak] = field(default_factory=dict, init=False)
    _moved: dict[Any, list[Candidate]] = field(default_factory=dict, init=False)

    # What a candidate is worth

    def peak(self, program: Program, *, fused: bool = True) -> Peak:
        """The projected peak of a program on this machine."""
        return projected(program, self.machine, fused=fused, searching=True)

    def is_met(self, candidate: Candidate, goal: Goal | None = None) -> bool:
        """Whether a candidate is complete: its projected peak is within the goal."""
        goal = goal or self.goal
        if candidate.peak.bytes > goal.bytes:
            return False
        if not self.has_small_values(candidate, goal) or not self.is_steady(candidate):
            return False
        loops = (e.params["loop"] for e in candidate.program.eqns if e.primitive.name == "exla_split")
        return goal.most_chunk_bytes is None or all(self.peak(p.body).bytes <= goal.most_chunk_bytes for p in loops)

    def has_small_values(self, candidate: Candidate, goal: Goal | None = None) -> bool:
        """Whether no value is above the paper's threshold."""
        most = (goal or self.goal).most_value_bytes
        return most is None or largest_bytes(candidate.program) <= most

    def of(self, program: Program, decisions: Sequence[Change], seeds: Sequence[Seed]) -> Candidate:
        """The candidate that a program is."""
        return self._on(self.machine, program, decisions, seeds)

    def _start(self, program: Program, decisions: Sequence[Change]) -> Candidate:
        """A program that no split has touched, with long reductions as XLA computes them; in blocks they need less."""
        return self._on(replace(self.machine, blocks=False), numbered(program), decisions, ())

    def _on(self, machine: Machine, program: Program, decisions: Sequence[Change], seeds: Sequence[Seed]) -> Candidate:
        peak = projected(program, machine, searching=True)
        seconds = predict_with_memory_s(program, peak, machine)
        return Candidate(program=program, decisions=tuple(decisions), seeds=tuple(seeds), peak=peak, seconds=seconds)

    # The tree

    @cached_property
    def root(self) -> Candidate:
        """The program as it is."""
        return self._start(self.program, ())

    @cached_property
    def starts(self) -> tuple[Candidate, ...]:
        """The candidates that no split has touched: the program as it is, and after each rewrite that pays.

        Their equations are numbered (`exla.ir.scopes`), so that those of a candidate say where they come from.
        """
        made = rewrite(self.program, self.machine, self.exact, self.room_bytes, self.rules, self.reorders)
        self.declined, self.sources = made.declined, dict(zip(made.decisions, made.sources, strict=True))
        program, found = self.program, [self.root]
        for count, decision in enumerate(made.decisions, 1):
            program = made.program if count == len(made.decisions) else replay(program, decision)
            found.append(self._start(program, made.decisions[:count]))
        return tuple(found)

    @property
    def rewritten(self) -> Candidate:
        """The program after every rewrite that pays; the root where none does."""
        return self.starts[-1]

    def sealed(self, start: Candidate) -> Iterator[Candidate]:
        """A start that computes what is compared for equality by itself, where it is a sum or the like."""
        return self._steadied_by(enumerate_seals, start) if self.machine.keeps_branches else iter(())

    def distributed(self, start: Candidate) -> Iterator[Candidate]:
        """A start in which different comparisons for equality, and what follows from them, have values of their own."""
        return iter(()) if self.exact else self._steadied_by(enumerate_distributions, start)

    def _steadied_by(
        self, offers: Callable[[Steady], Iterator[Distribute | Seal]], start: Candidate
    ) -> Iterator[Candidate]:
        """A start after each decision that is offered next, for as long as one is; nothing where none is."""
        made = start
        with tolerate("computing by itself what is compared for equality"):
            for _ in range(MOST_STEADIED):
                steady = self.steady(made)
                decision = None if steady is None else next(offers(steady), None)
                if decision is None:
                    break
                made = self._steadied_with(made, decision)
        if made is not start:
            yield made

    def _steadied_with(self, start: Candidate, decision: Distribute | Seal) -> Candidate:
        decisions = (*start.decisions, decision)
        if decisions not in self._steadied:
            self.sources = {**self.sources, decision: source_of(start.program, decision)}
            self._steadied[decisions] = self.of(numbered(replay(start.program, decision)), decisions, ())
        return self._steadied[decisions]

    def stored(self, start: Candidate, goal: Goal | None = None) -> Iterator[Candidate]:
        """The program whose values wait elsewhere, or in narrower types: see `exla.search.kept`."""
        return stored(self, start, goal or self.goal)

    def moved(self, start: Candidate, goal: Goal | None = None) -> Iterator[Candidate]:
        """The program with values computed in what reads them, on each device's share, or again for what is late."""
        return itertools.chain(self.sunk(start, goal), self.checkpointed(start, goal))

    def sunk(self, start: Candidate, goal: Goal | None = None) -> Iterator[Candidate]:
        """The program with values computed in what reads them, or on each device's share."""
        return self._kept(sunk, start, goal or self.goal)

    def checkpointed(self, start: Candidate, goal: Goal | None = None) -> Iterator[Candidate]:
        """The program with values computed again for what reads them late."""
        return self._kept(checkpointed, start, goal or self.goal)

    def _kept(
        self, made_by: Callable[[Space, Candidate, Goal], Iterator[Candidate]], start: Candidate, goal: Goal
    ) -> Iterator[Candidate]:
        """What is made of a start for a goal; kept."""
        if self.spread:  # what is barred on shares meanwhile is not offered again
            return made_by(self, start, goal)
        key = (made_by, start.decisions, goal)
        if key not in self._moved:
            self._moved[key] = list(made_by(self, start, goal))
        return iter(self._moved[key])

    def offers(self, parent: Candidate, goal: Goal | None = None) -> Iterator[Seed]:
        """The regions that could be split next: those of what holds the peak, the largest value first."""
        goal = goal or self.goal
        unfused = self.unfused(parent)
        largest = max((value_bytes(h.var) for h in unfused.held), default=0)
        room = max(goal.bytes - parent.peak.arguments_bytes - parent.peak.outputs_bytes, 1)
        most = min(largest // 2, goal.most_value_bytes or largest)
        whole = thresholds(room, goal.coarser)
        small = sorted({1 if goal.finest else min(threshold, max(most, 1)) for threshold in whole})
        held = unfused.held if not parent.seeds else (*parent.peak.held, *unfused.held)
        key = (parent.decisions, tuple(small))
        if key not in self._offered:
            ways = growths(small, self.exact, keep=not parent.seeds)
            self._offered[key] = list(enumerate_splits(parent.program, held, ways))
        any_will_do = self.steady(parent) is None
        for seed in self._offered[key]:
            if self.is_barred(seed) or not seed.region.least_chunk < seed.region.size:
                continue
            if any_will_do or self._is_steady_when_cut(parent, seed):
                yield seed

    def steady(self, candidate: Candidate) -> Steady | None:
        """What must be computed in one place in what is made of a candidate; None where nothing must."""
        found = self._compared(candidate.decisions)
        return found if found.numbers else None

    def _compared(self, decisions: Sequence[Decision]) -> Steady:
        start = self._start_of(decisions)
        return self._steady.setdefault(
            start.decisions, Steady(program=start.program, seals=self.machine.keeps_branches)
        )

    def is_steady(self, candidate: Candidate) -> bool:
        """Whether what is compared is made of sums that the candidate computes in one place."""
        return self.allows(candidate.program, candidate.decisions)

    def allows(self, program: Program, decisions: Sequence[Decision]) -> bool:
        """`is_steady` of the program that some decisions make."""
        return allows(self._compared(decisions), program, decisions)

    def _is_steady_when_cut(self, parent: Candidate, seed: Seed) -> bool:
        """Whether a split keeps that, whatever its chunks: by those that the beam tries first."""
        made = self.cut_if_possible(parent, seed, probe(seed.region.size, seed.region.least_chunk))
        return made is not None and self.is_steady(made)

    def bar(self, candidate: Candidate) -> None:
        """Offer none of a candidate's splits any more, and none of its shares where these are to blame.

        They are where every split is inside them and no axis of the mesh is left to be exchanged along; else after a
        few such candidates.
        """
        self._barred.update(seed.split(0) for seed in candidate.seeds)
        for share in (d for d in candidate.decisions if isinstance(d, Share)):
            is_to_blame = not share.other_axes and all(split.path for split in candidate.splits)
            self.barred_shares[share] += MOST_BARRED if is_to_blame else 1

    def is_barred(self, seed: Seed) -> bool:
        """Whether a region is not to be split."""
        return seed.split(0) in self._barred or self.barred(seed)

    def leads(self) -> bool | None:
        """Whether what was learned for the target is to choose, or to be weighed only; None where nothing was."""
        ranker = None if self.ranker is None else self.ranker()
        return None if ranker is None else ranker.leads

    def learned(self, candidates: Sequence[Candidate]) -> Ranking:
        """Candidates in the order of what was learned for the target, where anything was."""
        ranker = None if self.ranker is None else self.ranker()
        if ranker is None:
            raise LookupError("nothing was learned for this target: leads() is None")
        ranking = ranker.rank(self.starts, candidates, self.option_sets)
        self.predicted = (candidates, ranking)
        return ranking

    def ranked(self, start: Candidate, goal: Goal | None = None, most_splits: int = MOST_SPLITS) -> list[Candidate]:
        """The candidates that promise most, best first: within the goal by predicted time, else the smallest peaks."""
        return rank(self, start, goal or self.goal, most_splits)

    def chunks(self, seed: Seed) -> list[int]:
        """The chunk sizes of the walks, smallest first; a strategy may ask for any other."""
        return grid(seed.region.size, seed.region.least_chunk, self.machine.lanes, self.ratio)

    def cut(self, parent: Candidate, seed: Seed, chunk: int) -> Candidate:
        """The candidate that splitting a region of another one makes."""
        decisions = (*parent.decisions, seed.split(chunk))
        if decisions not in self._cut:
            # Another goal has other thresholds of growth, and mostly the same regions.
            same = (parent.decisions, seed.identity, chunk)
            if same not in self._same:
                program = apply_seed(parent.program, seed, chunk)
                self._same[same] = self.of(program, decisions, (*parent.seeds, seed))
            self._cut[decisions] = self._same[same]
        return self._cut[decisions]

    @property
    def is_exhausted(self) -> bool:
        """Whether so much was tried that the beam is to come to an end."""
        return len(self._same) * self.root.program.equation_count > self.most_tried

    def arranged(self, candidate: Candidate, goal: Goal | None = None) -> Candidate | None:
        """A candidate with what its loops multiply whole transposed before them, as much as is within the goal."""
        if self.exact or self.machine.product_passes == 1:
            return None
        made, found = candidate, True
        while found and len(made.decisions) < len(candidate.decisions) + MOST_ARRANGED:
            found = False
            for decision in enumerate_arrangements(made.program):
                with tolerate(f"trying to {decision}"):
                    further = self.after(made, decision)
                    if self.is_met(further, goal):
                        made, found = replace(further, options=candidate.options), True
                        break
        return made if made is not candidate else None

    def with_less(self, candidate: Candidate, goal: Goal) -> Candidate:
        """A candidate beyond a goal arranged as far as that takes less, or as it is.

        What a loop transposes on every trip lies beside what it transposes.
        """
        if self.is_met(candidate, goal):
            return candidate
        other = self.arranged(candidate, replace(goal, bytes=candidate.peak.bytes - 1))
        return candidate if other is None else other

    def after(self, candidate: Candidate, decision: Change) -> Candidate:
        """The candidate that one more decision makes of another; no split.

        Raises:
          ReplayMiss: if it does not apply.
        """
        decisions = (*candidate.decisions, decision)
        if decisions not in self._cut:
            self._cut[decisions] = self.of(replay(candidate.program, decision), decisions, candidate.seeds)
        return self._cut[decisions]

    def both(self, candidate: Candidate, goal: Goal | None = None) -> Iterator[Candidate]:
        """A candidate, and the same arranged where that is another."""
        yield candidate
        other = self.arranged(candidate, goal)
        if other is not None:
            yield other

    def unfused(self, candidate: Candidate) -> Peak:
        """The projected peak of a candidate if nothing were fused."""
        if candidate.decisions not in self._unfused:
            self._unfused[candidate.decisions] = self.peak(candidate.program, fused=False)
        return self._unfused[candidate.decisions]

    def build(self, decisions: Sequence[Decision], *, anew: bool = False) -> Candidate:
        """The candidate of these decisions, made from the program as it is; `anew` as of `replay_all`.

        Raises:
          ReplayMiss: if one does not apply.
        """
        start = self._start_of(decisions)
        rest = decisions[len(start.decisions) :]
        program, changes, seeds, _ = replay_all(start.program, rest, anew=anew)
        options = tuple(d for d in decisions if isinstance(d, CompileOption))
        return replace(self.of(program, (*start.decisions, *changes), seeds), options=options or None)

    def _start_of(self, decisions: Sequence[Decision]) -> Candidate:
        """The start that some decisions begin with: the one with most of them."""
        start = self.starts[start_of([s.decisions for s in self.starts], decisions)]
        for decision in decisions[len(start.decisions) :]:
            if not isinstance(decision, Distribute | Seal):
                break
            start = self._steadied_with(start, decision)
        return start

    @cached_property
    def uncut(self) -> list[Candidate]:
        """What splits begin with: each start, as it is and with values moved into the loops that read them."""
        return [c for start in self.starts for c in (start, *self.moved(start))]

    def under(self, candidate: Candidate) -> Iterator[Candidate]:
        """A candidate under each option set."""
        return self._with(candidate, self.option_sets)

    def suited(self, candidate: Candidate) -> Iterator[Candidate]:
        """A candidate under each option set that is worth trying with it."""
        return self._with(candidate, self.suits(candidate.program) if self.suits and self.option_sets else ())

    def _with(self, candidate: Candidate, option_sets: Sequence[Mapping[str, str]]) -> Iterator[Candidate]:
        for names in option_sets or ({},):
            chosen = tuple(CompileOption(name=k, value=v) for k, v in names.items())
            yield replace(candidate, options=chosen or None)

    def all(self) -> Iterator[Candidate]:
        """Every complete candidate: by start, then the largest value, then its longest axis and largest chunks."""
        for start in self.uncut:
            yield from self._met(start)
            for candidate in self.below(start):
                for made in self.both(candidate):
                    yield from self.under(made)

    def unsplit(self) -> Iterator[Candidate]:
        """The complete candidates without a loop, but for the program as jax.jit compiles it."""
        for start in self.uncut:
            yield from self._met(start)

    def _met(self, start: Candidate) -> Iterator[Candidate]:
        if self.is_met(start) and (start.decisions or any(self.option_sets)):
            yield from self.under(start)

    def below(self, parent: Candidate, depth: int | None = None) -> Iterator[Candidate]:
        """The complete candidates that splitting a candidate leads to, in the order of `all`."""
        depth = self.depth if depth is None else depth
        if depth == 0:
            return
        offers = list(self.offers(parent))
        values = list(dict.fromkeys(map(_value_of, offers)))
        for seed in sorted(offers, key=lambda s: (values.index(_value_of(s)), -s.region.size)):
            for chunk in reversed(self.chunks(seed)):
                made = self.cut_if_possible(parent, seed, chunk)
                if made is None:
                    continue
                if self.is_met(made):
                    yield made
                else:
                    yield from self.below(made, depth - 1)

    def cut_if_possible(self, parent: Candidate, seed: Seed, chunk: int) -> Candidate | None:
        """`cut`; None where it fails, with a warning that says so."""
        with tolerate(f"trying to {seed.split(chunk)}"):
            return self.cut(parent, seed, chunk)
        return None

    def size(self, most: int = 2000, walks: int = 64, seed: int = 0) -> Size:
        """How many complete candidates `all` would yield.

        Args:
          most: up to so many are counted one by one.
          walks: random walks that more are estimated from.
          seed: of those.
        """
        counted = sum(1 for _ in itertools.islice(self.all(), most))
        if counted < most:
            return Size(candidates=counted, exact=True)
        generator = random.Random(seed)
        weights = [weight for _, weight in (moves.walk(self, generator) for _ in range(walks))]
        return Size(candidates=max(round(sum(weights) / walks), most), exact=False)

    # Moves

    def sample(self, generator: random.Random) -> Candidate | None:
        """A complete candidate drawn at random: of several walks one, by how many paths there are like it."""
        return moves.sample(self, generator)

    def mutate(self, parent: Candidate, generator: random.Random) -> Candidate | None:
        """A complete candidate one step away: another chunk size, option set or way to grow, a split more or less."""
        return moves.mutate(self, parent, generator)

    def cross(self, one: Candidate, other: Candidate, generator: random.Random) -> Candidate | None:
        """A complete candidate with what one parent rewrites and the other splits, or with chunks between theirs."""
        return moves.cross(self, one, other, generator)


def start_of(starts: Sequence[Sequence[Decision]], decisions: Sequence[Decision]) -> int:
    """Which of several programs, by the decisions that made them, some decisions begin with: the one with most."""
    fitting = [k for k, begin in enumerate(starts) if tuple(decisions[: len(begin)]) == tuple(begin)]
    return max(fitting, key=lambda k: len(starts[k]))


def _value_of(seed: Seed) -> tuple[Any, ...]:
    """What names the value that a seed cuts."""
    return seed.decision.path, seed.decision.site, seed.decision.result


def _sited(program: Program, decision: Change) -> Change:
    """A decision about the equation that is at its position here, whatever the sizes were where it was made."""
    here = program_at(program, decision.path)
    position = decision.site.position
    if not 0 <= position < len(here.eqns):
        return decision
    return replace(decision, site=here.site(position))


def replay_all(
    program: Program, decisions: Sequence[Decision], *, anew: bool = False
) -> tuple[Program, list[Change], list[Seed], dict[Decision, str]]:
    """Replay decisions on a program, compile options left out.

    Args:
      program: the program.
      decisions: what is replayed.
      anew: whether equations are found by position alone: the decisions were made where other sizes were.

    Returns:
      The program; the decisions that changed it; the region of each split; the user's line of each rewrite and of
      each value that is kept elsewhere.

    Raises:
      ReplayMiss: if one does not apply.
    """
    changes, seeds, sources = list[Change](), list[Seed](), dict[Decision, str]()
    for decision in decisions:
        if isinstance(decision, CompileOption):
            continue
        if anew:
            decision = _sited(program, decision)
        changes.append(decision)
        if isinstance(decision, Split):
            program, seed = replay_split(program, decision)
            seeds.append(seed)
            continue
        changed = replay(program, decision)
        if isinstance(decision, Rewrite | Store):
            sources[decision] = source_of(program, decision)
        program = changed
    return program, changes, seeds, sources
