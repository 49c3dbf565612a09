"""The driver: from a traced call to a compiled program that obeys the cap.

    decide(call, target, options) -> Choice

Candidate 0 is the program as `jax.jit` compiles it. If its bytes are within the limit it is used untouched, unless
something else is predicted to be far faster (`exla.search.faster`).
Otherwise the strategy names candidates of the space, the target compiles them, and those over the limit are
dropped, and the goal is tightened by what the compiler's figure was over it. A record of an earlier search is
replayed first. Nothing left: what was counted under another limit, and is within this one; else `MemoryLimitError`,
before anything has run.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import replace

from exla.errors import MemoryLimitError, ReplayMiss
from exla.ir.memory import Peak
from exla.ir.program import program_of
from exla.options import Options
from exla.passes.decisions import Decision
from exla.search.attempt import Attempt, most_counted
from exla.search.choice import Call, Choice, describe
from exla.search.faster import faster
from exla.search.patience import patience
from exla.search.ranker import Prediction, find_ranker
from exla.search.records import RecordStore, make_key
from exla.search.refusal import refusal
from exla.search.space import Candidate, Goal, Space
from exla.search.strategy import STRATEGIES, Outcome, Session
from exla.search.trials import Budget, Listener, Tuned, listener
from exla.search.tune import tune
from exla.search.weigh import can_weigh, weigh
from exla.strict import as_jax_raises, tolerate
from exla.targets.base import Target

MOST_COMPILES = 24
"""Candidates that are compiled for one call before it is refused, whatever the strategy."""
WORTH_COMPILING = 1.05
"""Predicted gain from which on another program is compiled in place of one that obeys. Where less was predicted of 20
programs of the zoo, they took 0.93 times as long without it (geometric mean; from 0.6 to 1.3)."""

RECORDED = ("program", "arguments", "target", "device", "jax", "jaxlib", "xla_flags", "exla", "limit", "options")


@as_jax_raises()
def decide(call: Call, target: Target, options: Options) -> Choice:
    """`search` for a program that obeys the limit; where exla itself fails, the plain program if that obeys it.

    Arguments, result and errors are those of `search`, and what `jax.jit` raises where it cannot compile the program.
    """
    try:
        with tolerate("planning"):
            return search(call, target, options)
    finally:
        program_of.cache_clear()
    attempt = _unrecorded(call, target, options)
    choice = attempt.plain()
    if choice is None:
        raise _refusal(attempt, (), attempt.floor)
    return choice


@as_jax_raises()
def follow(call: Call, target: Target, options: Options, decisions: Sequence[Decision]) -> Choice:
    """Compile what was decided before, and count it again.

    Args:
      call: the traced call.
      target: what to compile for.
      options: the user's options.
      decisions: of an earlier choice, for the same program.

    Raises:
      ReplayMiss: if a decision does not apply to this program, or does not compile for this target, or if its devices
        would exchange more or bits differ that must not.
      MemoryLimitError: if what was decided does not obey the limit.
    """
    attempt = _unrecorded(call, target, options)
    choice = attempt.again(decisions, "plan")
    last = attempt.tried[-1]
    if choice is None and (last.is_barred or last.peak_bytes is None):
        raise ReplayMiss(f"what was decided cannot be used on {target.name}: {last.error}")
    if choice is None:
        planned = space_of(call, target, options).build(decisions)
        raise _refusal(attempt, (planned,), attempt.floor)
    return choice


def limit_of(options: Options, target: Target) -> int:
    """The limit in bytes: what the user asks for, and never more than the device has."""
    usable = target.usable_bytes()
    return usable if options.memory_limit is None else min(options.memory_limit, usable)


def search(call: Call, target: Target, options: Options) -> Choice:
    """Choose and compile a program that obeys the limit.

    Args:
      call: the traced call.
      target: what to compile for.
      options: the user's options; `memory_limit` None means what the target has.

    Returns:
      The choice; its compiled bytes are at most its limit.

    Raises:
      MemoryLimitError: if no candidate obeys the limit. Nothing has run.
    """
    limit = limit_of(options, target)
    wants_measures = STRATEGIES.get(options.search).measures
    measures = wants_measures and not call.inline
    is_recorded = options.memory_limit is not None or measures
    store, key = store_and_key(call, target, options) if is_recorded else (None, {})
    attempt = Attempt(call=call, target=target, options=options, limit_bytes=limit, store=store, key=key)
    knobs = options.tensor_size_threshold is not None or options.tensor_split_size is not None
    unsplit_hopeless = call.fixed_bytes > limit
    if not knobs and not unsplit_hopeless:
        choice = None if measures and listener.get() else attempt.recorded()
        if choice is not None:
            return choice
        choice = None if measures else attempt.plain()
        if choice is not None:
            chooses = STRATEGIES.get(options.search).improves
            if not chooses:
                return choice
            with patience(attempt.so_far):
                return faster(attempt, choice, lambda: make_space(attempt, attempt.floor))
    asked: list[Candidate] = []
    space: Space | None = None
    if not unsplit_hopeless:
        space, choice = make_space(attempt, attempt.floor), None
        if measures:
            budget = Budget(seconds=options.search_seconds, trials=options.search_trials)
            tuned = tune(attempt, space, budget)
            choice = tuned.choice  # None where the budget was too short
            if options.learn == "online":
                _learn(target, space, tuned)
        with patience(attempt.so_far):
            choice = choice or _ask(attempt, space, "analytic" if wants_measures else options.search, asked)
            choice = choice or attempt.as_under_another_limit()
        if choice is not None:
            return choice
    raise _refusal(attempt, asked, attempt.floor, is_exhausted=space is not None and space.is_exhausted)


def space_of(call: Call, target: Target, options: Options) -> Space:
    """The space of a call, for whoever wants to look at it."""
    attempt = _unrecorded(call, target, options)
    return make_space(attempt, attempt.floor)


def _unrecorded(call: Call, target: Target, options: Options) -> Attempt:
    """A search that reads and writes no records."""
    limit = limit_of(options, target)
    return Attempt(call=call, target=target, options=options, limit_bytes=limit, store=None, key={})


def make_space(attempt: Attempt, floor: Peak) -> Space:
    """The space of a call.

    Programs are those of all devices together, and so is the goal: what each holds is taken for its share of it.

    Args:
      attempt: the search it is for.
      floor: the projected peak of the program as it is.
    """
    options, target, call = attempt.options, attempt.target, attempt.call
    goal_bytes = attempt.limit_bytes * call.devices + call.aliased_bytes
    return Space(
        program=call.program,
        goal=Goal(
            bytes=goal_bytes,
            most_chunk_bytes=options.tensor_split_size,
            most_value_bytes=options.tensor_size_threshold,
        ),
        machine=attempt.machine,
        exact=options.numerics == "exact",
        mixed=options.numerics == "mixed",
        rules=options.rules,
        option_sets=() if call.inline else attempt.all_option_sets(),
        room_bytes=max(goal_bytes - floor.arguments_bytes - floor.outputs_bytes, 0),
        barred=lambda seed: seed.cuts(call.spread),
        spread=call.spread,
        ranker=lambda: find_ranker(target.name),
        suits=attempt.option_sets,
    )


def _ask(attempt: Attempt, space: Space, name: str, asked: list[Candidate]) -> Choice | None:
    """Compile what a strategy asks for until something obeys the limit."""
    session = STRATEGIES.get(name).start(space)
    passed_over = 0
    while len(asked) + passed_over < MOST_COMPILES:
        candidate = session.ask()
        if candidate is None:
            return None
        if attempt.wrong.has(candidate.decisions):
            space.bar(candidate)
            session.tell(Outcome(status="barred"))
            passed_over += 1
            continue
        asked.append(candidate)
        attempt.declined, attempt.sources = space.declined, space.sources
        choice = attempt.candidate(candidate)
        outcome = attempt.outcome()
        if choice is None:
            if outcome.status == "barred":
                space.bar(candidate)
                asked.pop()
                passed_over += 1
            session.tell(outcome)
            continue
        settled = ""
        is_learned = STRATEGIES.get(name).weighs and space.leads() is not None
        can_be_weighed = is_learned and can_weigh(attempt, choice)
        if is_learned and (space.leads() or can_be_weighed):
            session.tell(replace(outcome, can_be_weighed=can_be_weighed))
            candidate, choice, settled = _weighed(attempt, session, candidate, choice, asked)
        elif STRATEGIES.get(name).improves:
            candidate, choice = _improved(attempt, session, candidate, choice, space.machine.sure_gain)
        weights = attempt.target.name if is_learned else ""
        return _with_prediction(choice, space, candidate, weights, settled)
    return None


def _weighed(
    attempt: Attempt, session: Session, candidate: Candidate, choice: Choice, asked: list[Candidate]
) -> tuple[Candidate, Choice, str]:
    """What is kept of what obeys and of the rivals that the strategy asks for; and why."""
    candidates, choices = [candidate], [choice]
    while (rival := session.ask()) is not None:
        other = None if attempt.wrong.has(rival.decisions) else attempt.candidate(rival)
        if other is not None:
            asked.append(rival)
            candidates.append(rival)
            choices.append(other)
        session.tell(Outcome(status="barred") if other is None else attempt.outcome())
    if len(choices) == 1:
        return candidate, choice, ""
    kept, settled = weigh(attempt, choices)
    candidate = candidates[next(k for k, c in enumerate(choices) if c is kept)]
    choice = replace(kept, tried=tuple(attempt.tried))
    attempt.chosen(choice)
    return candidate, choice, settled


def _improved(
    attempt: Attempt, session: Session, candidate: Candidate, choice: Choice, sure_gain: float
) -> tuple[Candidate, Choice]:
    """What obeys too and is predicted to be so much faster than what obeys that it is worth compiling.

    What computes as the program does by itself, under other compile options alone, is left for a sure gain only.
    """
    session.tell(attempt.outcome())
    while (faster := session.ask()) is not None:
        if faster.seconds >= candidate.seconds / (WORTH_COMPILING if candidate.decisions else sure_gain):
            break
        is_wrong = attempt.wrong.has(faster.decisions)
        other = None if is_wrong else attempt.candidate(faster)
        if other is not None:
            candidate, choice = faster, other
        session.tell(Outcome(status="barred") if is_wrong else attempt.outcome())
    return candidate, replace(choice, tried=tuple(attempt.tried))


def _learn(target: Target, space: Space, tuned: Tuned) -> None:
    """Move this machine's weights by what a search measured."""
    measured = {t.decisions: t.run_s for t in tuned.trials if t.run_s is not None and t.source != "twin"}
    with tolerate("learning from what was measured"):
        found = importlib.import_module("exla.training.online").learn(target.name, space, list(measured.items()))
        (listener.get() or Listener()).learned(str(found))


def _with_prediction(choice: Choice, space: Space, candidate: Candidate, weights: str, settled: str) -> Choice:
    """A choice with what was predicted of it, or that weights were not asked about it; "" = there are none."""
    if space.predicted is None:
        return replace(choice, prediction=Prediction.unranked(weights)) if weights else choice
    candidates, ranking = space.predicted
    return replace(choice, prediction=Prediction.of(ranking, candidates, candidate, settled))


def store_and_key(call: Call, target: Target, options: Options) -> tuple[RecordStore | None, dict[str, str]]:
    """Where a call's records are, and what they are found by; (None, {}) where the user wants none."""
    if options.records == "off":
        return None, {}
    parts = {
        **describe(call, target),
        "limit": str(options.memory_limit),
        "options": f"{'off' if options.search == 'off' else 'any'} {options.numerics} {options.tensor_size_threshold} "
        f"{options.tensor_split_size} {options.rules} {sorted(call.compiler_options.items())} {call.inline}",
    }
    return RecordStore(None), make_key(**{name: parts.get(name, "") for name in RECORDED})


def _refusal(
    search: Attempt, asked: Sequence[Candidate], floor: Peak, *, is_exhausted: bool = False
) -> MemoryLimitError:
    found = [(t.peak_bytes, t) for t in search.tried if t.peak_bytes is not None and not t.is_barred]
    fixed = search.call.fixed_bytes
    known = search.elsewhere if fixed <= search.limit_bytes else ()
    kept = [size for record in known if (size := most_counted(record)) > search.limit_bytes]
    if search.is_recording and search.records_compiled:
        kept += [size for size, t in found if t.compiled_bytes is not None]
    smallest = min((*kept, *(size for size, _ in found)), default=fixed)
    return refusal(
        program=search.call.program,
        options=search.options,
        limit_bytes=search.limit_bytes,
        smallest_bytes=smallest,
        plain_bytes=min((size for size, t in found if t.untouched), default=None),
        asked=asked,
        barred=[t for t in search.tried if t.is_barred],
        peak=floor,
        fixed_bytes=fixed,
        devices=search.call.devices,
        spread=search.call.spread,
        is_exhausted=is_exhausted,
        is_kept=smallest in kept,
    )
