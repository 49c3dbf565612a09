"""Tuning: candidates are measured, and the fastest that obeys the limit and is right wins.

    tune(attempt, space, Budget(seconds=60, trials=32)) -> Tuned

The program as jax.jit compiles it is measured first. Then the strategy asks, and each candidate is compiled, counted,
compared with the plain program's values and timed in a process of its own, in turns with the plain program where that
obeys the limit. What was measured before, by this process or another, is taken from the records; what compiles to the
same code as an earlier candidate is not measured again. Every outcome is recorded before the next candidate, so that
nothing is lost when the process is killed; started again with the same seed, it goes on where it was.

The winner is measured once more against the plain program: nothing slower than that is kept where that obeys the limit.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from exla.errors import ExlaWarning, MeasureError
from exla.ir.program import Program
from exla.passes.decisions import Decision
from exla.search.allowed import allowed_for
from exla.search.attempt import Attempt
from exla.search.barred import as_recorded
from exla.search.choice import Choice, describe
from exla.search.interrupt import interruptible
from exla.search.measure import Runnable, Timing, timed
from exla.search.plan_file import write_plan
from exla.search.record import STATUSES
from exla.search.records import default_directory
from exla.search.smaller import Smaller, smaller
from exla.search.space import Candidate, Space
from exla.search.strategy import STRATEGIES, Outcome, Session
from exla.search.trials import Budget, Listener, Trial, Tuned, listener
from exla.search.values import Allowed
from exla.targets.hlo_text import hlo_hash

NOISE = 0.03
"""Times that differ by less are equal: the smaller peak wins, then fewer decisions."""
TURN_S = 1.5
"""Seconds for the turns of one candidate; the winner and its rival get twice that."""
SLOW_S = 1.0
"""A plain program that takes longer is compared with, but takes no turns."""
TIMEOUT_S = 60.0
"""Least seconds until a process is taken for hung; it has twenty times the plain program's time as well."""
DISTURBED = 2
"""Times longer or shorter than mostly, from which on the plain program was disturbed, and what took turns with it."""
MEMORY_SHARE = 0.8
"""Share of the machine's memory that a process may take before it is stopped."""
SMALL_BYTES = 1 << 30
"""What the plain program may take at the sizes at which values are compared where the whole one does not fit."""


@dataclass(kw_only=True)
class Tuning:
    """A search in progress.

    Attributes:
      attempt: compiles, counts and records.
      space: what can be done.
      seed: of the strategy.
      trials: what was tried.
      not_kept: why the winner is not recorded; "" where it is.
    """

    attempt: Attempt
    space: Space
    seed: int = 0
    trials: list[Trial] = field(default_factory=list)
    not_kept: str = ""
    _default: Trial | None = None
    _warned: bool = False
    _base_s: float | None = None
    _references: list[float] = field(default_factory=list)
    _codes: dict[str, Trial] = field(default_factory=dict)

    def default(self) -> Trial:
        """Candidate 0, measured where it obeys the limit."""
        bases = [r.extra["base_s"] for r in self.attempt.records() if isinstance(r.extra.get("base_s"), float)]
        self._base_s = next((b for b in bases if math.isfinite(b) and b > 0), None)
        self._codes.update(self._recorded_codes())
        self.attempt.records_compiled = False
        choice = self.attempt.plain()
        last = self.attempt.tried[-1]
        trial = Trial(decisions=(), status=self.attempt.outcome().status, peak_bytes=last.peak_bytes)
        if choice is None:
            self._record(trial, None, None)
        else:
            code = hlo_hash(choice.compiled.as_text())
            trial = self._known(()) or self._measured(trial, self.attempt.call.program, None, None, code)
            self._codes[code] = trial
        self._base_s = self._base_s or trial.run_s
        self._default = trial
        self.trials.append(trial)
        return trial

    def candidate(self, candidate: Candidate) -> Trial:
        """One candidate: from the records, from a twin, or compiled, compared and timed."""
        self.attempt.declined, self.attempt.sources = self.space.declined, self.space.sources
        known = self._known(candidate.all_decisions) if candidate.options is not None else None
        trial = known or self._fresh(candidate)
        if trial.status == "wrong_result":
            self.attempt.wrong.add(trial.decisions)
        self.trials.append(trial)
        return trial

    def _fresh(self, candidate: Candidate) -> Trial:
        choice = self.attempt.candidate(candidate)
        outcome = self.attempt.outcome()
        if choice is None:
            trial = Trial(decisions=candidate.all_decisions, status=outcome.status, peak_bytes=outcome.peak_bytes)
            self._record(trial, None, None)
            return trial
        trial = Trial(decisions=choice.decisions, status="ok", peak_bytes=outcome.peak_bytes)
        known = self._known(choice.decisions)
        if known is not None:
            return known
        twin = self._codes.get(code := hlo_hash(choice.compiled.as_text()))
        if twin is not None:
            trial = replace(twin, decisions=choice.decisions, peak_bytes=trial.peak_bytes, source="twin")
            self._record(trial, choice, None, code=code)
            return trial
        trial = self._measured(trial, choice.program, choice, candidate, code)
        self._codes[code] = trial
        return trial

    def _recorded_codes(self) -> Iterator[tuple[str, Trial]]:
        """Hash of the optimised HLO -> how it went, of what earlier processes measured."""
        for record in self.attempt.records():
            code = record.extra.get("hlo_hash")
            if isinstance(code, str) and (record.run_s is not None or record.status == "wrong_result"):
                yield code, Trial(decisions=(), status=record.status, run_s=record.run_s, source="record")

    def _measured(
        self, trial: Trial, program: Program, choice: Choice | None, candidate: Candidate | None, code: str
    ) -> Trial:
        """Time a candidate in turns with the plain program; `choice` None = that is the candidate."""
        reference = None
        if choice is not None and candidate is not None:
            if self._runs_plain():
                reference = self.attempt.runnable(self.attempt.call.program, ())
            elif (found := self._compared_smaller(trial, candidate)) is not None and found.status == "wrong_result":
                return self._finished(trial, choice, found, code)
        best = self.best()

        def measured() -> Timing:
            return self._compared(
                self.attempt.runnable(program, trial.decisions),
                reference,
                takes_turns=self._base_s is None or self._base_s < SLOW_S,
                seconds=TURN_S,
                best_s=None if best is None else best.run_s,
                timeout_s=TIMEOUT_S + 20 * ((best and best.run_s) or 0.0),
            )

        timing = measured()
        if timing.status == "ok" and self._disturbed(timing) > DISTURBED:
            timing = min(timing, measured(), key=self._disturbed)
        if timing.reference_s is not None:
            self._references.append(timing.reference_s)
        return self._finished(trial, choice, timing, code)

    def _disturbed(self, timing: Timing) -> float:
        """How many times as long or short as mostly the plain program took; 1 where that is not known."""
        if timing.status != "ok":
            return math.inf
        before = [s for s in (self._base_s, *self._references) if s is not None]
        if timing.reference_s is None or not before:
            return 1.0
        ratio = timing.reference_s / statistics.median(before)
        return max(ratio, 1 / ratio)

    def _compared(self, program: Runnable, reference: Runnable | None, **how: Any) -> Timing:
        """Time a program after its values were compared, as far as they may differ and it may take memory."""
        return timed(
            program,
            reference=reference,
            allowed=self._allowed,
            other_options=self.space.option_sets,
            ceiling_bytes=self._usable_bytes(),
            **how,
        )

    @cached_property
    def _allowed(self) -> Allowed:
        return allowed_for(self.attempt.call.program, exact=self.attempt.options.numerics == "exact")

    def _usable_bytes(self) -> int:
        """What a process that runs programs may take."""
        return int(MEMORY_SHARE * self.attempt.target.usable_bytes())

    def _finished(self, trial: Trial, choice: Choice | None, timing: Timing, code: str) -> Trial:
        if timing.status == "wrong_result" and choice is not None:
            self._report(trial, choice, timing)
        found = replace(trial, status=timing.status, run_s=self._against_default(timing))
        self._record(found, choice, timing, code=code)
        return found

    def _compared_smaller(self, trial: Trial, candidate: Candidate) -> Timing | None:
        """How the candidate does at sizes at which the plain program runs; None where it cannot be tried there."""
        small = self._smaller
        made = small and small.of(candidate)
        if small is None or made is None:
            self._warn_uncompared(trial)
            return None
        return self._compared(
            self.attempt.runnable(made.program, trial.decisions),
            self.attempt.runnable(small.program, ()),
            takes_turns=False,
            seconds=0.0,
            timeout_s=TIMEOUT_S,
        )

    @cached_property
    def _smaller(self) -> Smaller | None:
        """The program at sizes at which the plain one runs; None where there are none."""
        shrink = self.attempt.call.shrink
        return shrink and smaller(self.space, shrink, min(self._usable_bytes() // 4, SMALL_BYTES))

    def _runs_plain(self) -> bool:
        """Whether this machine can run the plain program, limit or not, so that values can be compared."""
        plain = next((t.compiled_bytes for t in self.attempt.tried if t.untouched), None)
        if plain is None:
            return False
        return 2 * plain.accounted < self._usable_bytes()

    def _warn_uncompared(self, trial: Trial) -> None:
        if self._warned:
            return
        self._warned = True
        warnings.warn(
            f"the plain program does not fit this machine, and {trial} could not be tried at smaller sizes either: its "
            "values are not compared with any. Tune at a smaller size first",
            ExlaWarning,
            stacklevel=2,
        )

    def _against_default(self, timing: Timing) -> float | None:
        """Seconds as if the machine had been as it was when the plain program was measured first."""
        if timing.reference_s is not None and self._base_s is None:
            self._base_s = timing.reference_s
        if timing.run_s is None or timing.reference_s is None or self._base_s is None:
            return timing.run_s
        return timing.run_s * self._base_s / timing.reference_s

    def best(self) -> Trial | None:
        """The fastest so far; within the noise the smallest peak, then the fewest decisions."""
        found = [t for t in self.trials if t.status == "ok" and t.run_s is not None]
        if not found:
            return None
        least = min(t.run_s for t in found if t.run_s is not None)
        near = [t for t in found if t.run_s is not None and t.run_s <= least * (1 + NOISE)]
        return min(near, key=lambda t: (t.peak_bytes or 0, len(t.decisions)))

    def winner(self, *, measured: bool = True) -> Choice | None:
        """The best, `measured` once more against the plain program where that obeys the limit."""
        best, default = self.best(), self._default
        if best is None:
            return None
        choice = self.attempt.again(best.decisions, "search")
        is_rival = default is not None and default.status == "ok" and not self._has_won(best)
        if measured and best.decisions and default is not None and is_rival:
            assert choice is not None
            timing = timed(
                self.attempt.runnable(choice.program, best.decisions),
                reference=self.attempt.runnable(self.attempt.call.program, ()),
                seconds=2 * TURN_S,
            )
            is_slower = timing.run_s is None or timing.reference_s is None or timing.run_s > timing.reference_s
            if is_slower:
                best, choice = default, self.attempt.again((), "search")
        if choice is not None and not self._has_won(best):
            self.not_kept = self._record(best, choice, None, winner=True)
        return choice

    def _has_won(self, trial: Trial) -> bool:
        """Whether the records say that this one won the last search."""
        winners = [r for r in self.attempt.records() if r.extra.get("winner") is True]
        return bool(winners) and list(winners[-1].decisions) == as_recorded(trial.decisions)

    def _known(self, decisions: Sequence[Decision]) -> Trial | None:
        """What the records say of a candidate, if it was measured or failed before."""
        plain = as_recorded(decisions)
        for record in reversed(self.attempt.records()):
            is_result = record.run_s is not None or record.status not in ("ok", "replay_miss")
            if is_result and list(record.decisions) == plain:
                return Trial(
                    decisions=tuple(decisions),
                    status=record.status,
                    peak_bytes=record.compiled_bytes,
                    run_s=record.run_s,
                    source="record",
                )
        return None

    def _record(
        self, trial: Trial, choice: Choice | None, timing: Timing | None, *, winner: bool = False, code: str = ""
    ) -> str:
        """Record how a candidate went, once; returns why that was impossible, or ""."""
        if trial.status not in STATUSES:  # "barred" is none
            return ""
        if not winner and self._known(trial.decisions) is not None:
            return ""
        extra: dict[str, Any] = {"winner": True} if winner else {}
        if code:
            extra["hlo_hash"] = code
        if timing is not None:
            extra.update(rounds=timing.rounds, said=timing.said, base_s=self._base_s)
            extra.update(
                {k: v for k in ("spread", "error") if (v := getattr(timing, k)) is not None and math.isfinite(v)}
            )
        return self.attempt.record(
            trial.decisions,
            trial.status,
            seed=self.seed,
            run_s=trial.run_s if trial.status == "ok" else None,
            projected_bytes=None if choice is None else choice.peak.bytes,
            compiled_bytes=trial.peak_bytes,
            is_default=not trial.decisions,
            extra=extra,
        )

    def _report(self, trial: Trial, choice: Choice, timing: Timing) -> None:
        """Leave a file with which the wrong values can be seen again, where one can be written, and say so."""
        program = describe(self.attempt.call, self.attempt.target)["program"]
        path = default_directory() / "wrong" / f"{program}-{len(self.trials)}.plan.json"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_plan(
                path,
                call=self.attempt.call,
                target=self.attempt.target,
                options=self.attempt.options,
                limit_bytes=self.attempt.limit_bytes,
                decisions=trial.decisions,
                error=timing.error,
                hlo_hash=hlo_hash(choice.compiled.as_text()),
            )
            report = f"please report it with {path}, which exla.load replays"
        except OSError as error:
            report = f"please report it; its decisions could not be written to {path}: {error}"
        warnings.warn(
            f"{trial}: its values differ from the plain program's by {timing.error} of the largest, or by as much of "
            f"themselves. It is not used; {report}",
            ExlaWarning,
            stacklevel=2,
        )


def tune(attempt: Attempt, space: Space, budget: Budget) -> Tuned:
    """Search by measuring.

    Args:
      attempt: compiles, counts and records; its options name the strategy.
      space: what can be done.
      budget: what may be spent.

    Returns:
      What was found.

    Raises:
      MeasureError: if the target is not one CPU, which is what can be measured in isolation.
    """
    if attempt.target.platform != "cpu" or attempt.call.devices > 1:
        raise MeasureError(
            f'only programs for one CPU are measured, not for {attempt.where}: use search="analytic" there'
        )
    heard = listener.get() or Listener()
    tuning = Tuning(attempt=attempt, space=space, seed=heard.seed)
    session = STRATEGIES.get(attempt.options.search).start(space, heard.seed)
    stop = "exhausted"
    with interruptible() as interrupted:
        try:
            stop = _search(tuning, session, budget, heard, interrupted)
            choice = tuning.winner(measured=not interrupted.is_set())
        except KeyboardInterrupt:
            stop = "interrupted"
            if tuning.best() is None:
                raise
            choice = tuning.winner(measured=False)
    found = Tuned(
        choice=choice,
        trials=tuple(tuning.trials),
        stop=stop,
        seconds=time.perf_counter() - attempt.started,
        plain_s=tuning._base_s,
        call=attempt.call,
        not_kept=tuning.not_kept,
    )
    heard.done(found)
    return found


def _search(tuning: Tuning, session: Session, budget: Budget, heard: Listener, interrupted: threading.Event) -> str:
    """Measure candidates until there is a reason to stop, which is returned."""
    heard.trial(tuning.default(), tuning.best())
    while (candidate := session.ask()) is not None:
        if interrupted.is_set():
            return "interrupted"
        if len(tuning.trials) > budget.trials:
            return "trials"
        if time.perf_counter() - tuning.attempt.started > budget.seconds:
            return "seconds"
        trial = tuning.candidate(candidate)
        heard.trial(trial, tuning.best())
        if trial.status == "barred":
            tuning.space.bar(candidate)
        session.tell(Outcome(status=trial.status, peak_bytes=trial.peak_bytes, run_s=trial.run_s))
    return "exhausted"
