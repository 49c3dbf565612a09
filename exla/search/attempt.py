"""One search in progress: candidates compiled, counted, measured, recorded, and replayed from records."""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import jax

from exla.errors import ExlaWarning, MeasureError, ReplayMiss
from exla.ir.emit import emit
from exla.ir.memory import Peak
from exla.ir.program import Program, as_struct
from exla.ir.scopes import numbered
from exla.options import Options
from exla.passes.apart import allows
from exla.passes.decisions import Change, CompileOption, Decision, Rewrite, from_json, to_json
from exla.passes.replace import Declined
from exla.passes.split.decide import Seed
from exla.passes.steady import Steady
from exla.passes.unless import EXPANSIONS
from exla.search.barred import Wrong, as_recorded, computed_otherwise, exchanges_more
from exla.search.choice import PLAIN, Call, Choice, Tried
from exla.search.cost import projected, work_of
from exla.search.garbage import uncollected
from exla.search.measure import NOISE_BYTES, Runnable, measured_bytes
from exla.search.record import Record
from exla.search.records import RecordStore
from exla.search.space import Candidate, replay_all
from exla.search.strategy import Outcome
from exla.strict import NotOurs, is_strict, tolerate
from exla.targets.base import Target, compile_for, place
from exla.targets.hlo_text import Collectives, collectives
from exla.targets.machine import ANY_WORK, Machine, Work
from exla.units import format_bytes

MOST_ELSEWHERE = 3
"""Candidates that are compiled again of those that were counted under other limits."""
MOST_SAID = 200
"""Characters of what a record says for people, of arguments and of options."""


@dataclass
class Attempt:
    """One search in progress.

    `records_compiled`: whether candidates are recorded as soon as they are compiled; `asked_from`: where in `tried` the
    last candidate begins, which may be compiled under several options.
    """

    call: Call
    target: Target
    options: Options
    limit_bytes: int
    store: RecordStore | None
    key: dict[str, str]
    started: float = field(default_factory=time.perf_counter)
    tried: list[Tried] = field(default_factory=list)
    records_compiled: bool = True
    declined: tuple[Declined, ...] = ()
    sources: Mapping[Decision, str] = field(default_factory=dict)
    exchanged: Collectives | None = None
    asked_from: int = 0

    def __post_init__(self) -> None:
        if self.options.verify == "run" and (self.target.platform != "cpu" or self.call.devices > 1):
            raise MeasureError(f'verify="run" is for one CPU; on {self.where} use verify="compile"')

    @cached_property
    def machine(self) -> Machine:
        """What is planned for: on one CPU, long reductions in blocks.

        But not where something is compared for equality with what it was reduced to: XLA stores it in between.
        """
        machine = self.target.machine()
        steady = Steady(program=self.call.program, seals=machine.keeps_branches)
        alone = self.target.platform == "cpu" and self.call.devices == 1 and not self.call.inline
        reorders = self.options.numerics != "exact"
        return replace(machine, blocks=alone and reorders and not steady.numbers)

    @property
    def where(self) -> str:
        """What the program runs on, in words, where it is not one CPU."""
        return f"{self.call.devices} devices" if self.target.platform == "cpu" else self.target.name

    def plain(self) -> Choice | None:
        """Candidate 0: the program as jax.jit compiles it.

        Raises:
          NotOurs: if jax.jit cannot compile it for another reason than its size.
        """
        begin, self.asked_from = time.perf_counter(), len(self.tried)
        try:
            compiled = self.call.compile_plain()
        except Exception as error:
            if not isinstance(error, jax.errors.JaxRuntimeError) or self.target.needed_bytes(error) is None:
                raise NotOurs from error
            self._missed(self.call.program, (), error, untouched=True)
            return None
        return self._judge(compiled, self.call.program, (), (), True, time.perf_counter() - begin)

    def candidate(self, candidate: Candidate) -> Choice | None:
        """Compile a candidate, under the options worth trying where it names none; keep the first that obeys.

        First those under which it is projected to.
        """
        program = candidate.program
        if candidate.options is not None or self.call.inline:
            sets: Sequence[Mapping[str, str]] = (compile_options(candidate.options or ()),)
        else:
            sets = sorted(self.option_sets(program), key=lambda names: self._exceeds(candidate.peak, names))
        self.asked_from = len(self.tried)
        for options in sets:
            choice = self._compile(program, candidate.decisions, candidate.seeds, options, "search")
            if choice is not None or self.outcome().status == "barred":  # no option changes that
                return choice
            counted = self.tried[-1].compiled_bytes
            if counted is not None and counted.accounted > self.limit_bytes:
                break  # nor the buffers
        return None

    def _exceeds(self, peak: Peak, options: Mapping[str, str]) -> bool:
        """Whether a candidate is projected to exceed the limit under some compile options."""
        return peak_under(options, peak, self.target).bytes > self.limit_bytes

    def option_sets(self, program: Program) -> Sequence[Mapping[str, str]]:
        """The compile options worth trying for a program, best first."""
        return self.target.option_sets(self._allowed(work_of(program, self.machine)), self.limit_bytes)

    def all_option_sets(self) -> Sequence[Mapping[str, str]]:
        """Those that may be worth trying for any program that the call's can be rewritten to."""
        has_exponentials = work_of(self.call.program, self.machine).exponentials > 0
        works = (self._allowed(work) for work in ANY_WORK if has_exponentials or not work.exponentials)
        sets = (names for work in works for names in self.target.option_sets(work, self.limit_bytes))
        return [dict(names) for names in dict.fromkeys(tuple(s.items()) for s in sets)]

    def _allowed(self, work: Work) -> Work:
        """Sums of products are in another order in wider vectors, which `numerics="exact"` does not allow."""
        return replace(work, exponentials=0.0) if self.options.numerics == "exact" else work

    def so_far(self) -> str:
        """What has been tried, in a sentence, for who waits."""
        peaks = [t.peak_bytes for t in list(self.tried) if t.peak_bytes is not None and not t.is_barred]
        found = f"{len(peaks)} compiled so far, the smallest takes {format_bytes(min(peaks))}" if peaks else "none yet"
        kept = "; what it finds is recorded, and replayed the next time" if self.is_recording else ""
        where, count = self._about()["source"], self.call.program.equation_count
        return f"{where} ({count} equations) within {format_bytes(self.limit_bytes)}, {found}{kept}"

    def outcome(self) -> Outcome:
        """How the candidate went that was compiled last: under the options with the smallest peak."""
        counted = (t for t in self.tried[self.asked_from :] if not t.error and t.peak_bytes is not None)
        best = min(counted, key=lambda t: t.peak_bytes or 0, default=self.tried[-1])
        if best.is_barred:
            return Outcome(status="barred", peak_bytes=best.peak_bytes, devices=self.call.devices)
        status = "compile_error" if best.peak_bytes is None else "over_limit"
        if best.peak_bytes is not None and best.peak_bytes <= self.limit_bytes:
            status = "ok"
        return Outcome(status=status, peak_bytes=best.peak_bytes, devices=self.call.devices)

    def _compile(
        self,
        program: Program,
        changes: Sequence[Decision],
        seeds: Sequence[Seed],
        options: Mapping[str, str],
        source: str,
    ) -> Choice | None:
        begin = time.perf_counter()
        constants = len(program.consts)
        types = [v.aval for v in self.call.program.outvars]
        structs = [as_struct(v.aval) for v in program.invars]
        structs[constants:] = place(structs[constants:], self.call.arguments)
        chosen = tuple(CompileOption(name=k, value=v) for k, v in options.items())
        decisions: tuple[Decision, ...] = (*changes, *chosen)
        try:
            compiled = compile_for(
                self.target,
                emit(program, EXPANSIONS, in_blocks=self.machine.blocks, types=types),
                structs,
                donate=[constants + k for k in self.call.donated],
                results=self.call.results,
                compiler_options={**options, **self.call.compiler_options},
            )
        except Exception as error:
            if is_strict() and not isinstance(error, jax.errors.JaxRuntimeError):
                raise
            self._missed(program, decisions, error, untouched=False)
            return None
        spent = time.perf_counter() - begin
        return self._judge(compiled, program, decisions, seeds, False, spent, source)

    def _missed(self, program: Program, decisions: Sequence[Decision], error: Exception, *, untouched: bool) -> None:
        """Note a candidate that did not compile, and how much it needs where that is why."""
        needed = self.target.needed_bytes(error)
        said = str(error).partition("\n")[0]
        self.tried.append(
            Tried(
                what=_words(decisions),
                decisions=tuple(decisions),
                untouched=untouched,
                compiled_bytes=None,
                needed_bytes=needed,
                error=said,
            )
        )
        status = "compile_error" if needed is None else "oom"
        if self.records_compiled:
            project = self._projecting(program, untouched, compile_options(decisions))
            self.record(decisions, status, projected_bytes=project().bytes, is_default=untouched)

    @cached_property
    def floor(self) -> Peak:
        """The projected peak of the program as `jax.jit` compiles it, likewise."""
        return _projected(self.call.program, self.target.machine())

    def _projecting(self, program: Program, untouched: bool, options: Mapping[str, str]) -> Callable[[], Peak]:
        """Projects the peak of a candidate, as compiled, once, for reports; empty where it cannot be projected.

        It holds the program, the machine and the target: who holds a choice then holds no call.
        """
        target, machine = self.target, self.target.machine() if untouched else self.machine
        return cache(lambda: peak_under(options, _projected(program, machine), target))

    def _judge(
        self,
        compiled: Any,
        program: Program,
        decisions: Sequence[Decision],
        seeds: Sequence[Seed],
        untouched: bool,
        compile_s: float,
        source: str = "search",
    ) -> Choice | None:
        counted = self.target.compiled_bytes(compiled)
        obeys = counted.total <= self.limit_bytes
        # what is recorded under this key has passed; what is over the limit is not worth compiling the plain program
        is_judged = source != "record" and (obeys or untouched or self._knows_plain)
        barred = self._exchanges_more(compiled, untouched) if is_judged else ""
        barred = barred or computed_otherwise(compiled, decisions)
        what = _words(decisions)
        self.tried.append(
            Tried(
                what=what,
                decisions=tuple(decisions),
                untouched=untouched,
                compiled_bytes=counted,
                error=barred,
                compile_s=compile_s,
            )
        )
        if barred:
            return None
        project = self._projecting(program, untouched, compile_options(decisions))
        known, measured = None, None
        if obeys and self.options.verify == "run":
            known = self._known_measure(decisions)
            measured = known if known is not None else self._measure(program, decisions)
        if measured is not None:
            self.tried[-1] = replace(self.tried[-1], measured_bytes=measured)
            if measured > counted.total + NOISE_BYTES:
                warnings.warn(
                    f"{what}: it took {measured} bytes and was counted as {counted.total}; that is a bug of exla's "
                    "count, please report it. It is judged by what it took",
                    ExlaWarning,
                    stacklevel=2,
                )
            obeys = measured <= self.limit_bytes
        if self.records_compiled and (source in ("search", "shipped") or measured != known):
            status = "ok" if obeys else "over_limit"
            self.record(
                decisions,
                status,
                compile_s=compile_s,
                projected_bytes=project().bytes,
                compiled_bytes=counted.total,
                measured_bytes=measured,
                is_default=untouched,
            )
        if not obeys:
            return None
        return Choice(
            compiled=compiled,
            untouched=untouched,
            decisions=tuple(decisions),
            program=program,
            project=project,
            compiled_bytes=counted,
            limit_bytes=self.limit_bytes,
            machine=self.machine,
            measured_bytes=measured,
            seeds=tuple(seeds),
            tried=tuple(self.tried),
            declined=self.declined,
            sources=self.sources,
            source=source,
            search_s=time.perf_counter() - self.started,
        )

    def _known_measure(self, decisions: Sequence[Decision]) -> int | None:
        """What an earlier process that ran a candidate took, where that is recorded."""
        plain = as_recorded(decisions)
        for record in reversed(self.records()):
            if record.measured_bytes is not None and list(record.decisions) == plain:
                return record.measured_bytes
        return None

    def _measure(self, program: Program, decisions: Sequence[Decision]) -> int:
        """What a candidate takes in a process of its own."""
        return measured_bytes(self.runnable(program, decisions))

    def runnable(self, program: Program, decisions: Sequence[Decision]) -> Runnable:
        """A candidate as it crosses over to another process."""
        constants = len(program.consts)
        return Runnable(
            fn=emit(program, EXPANSIONS, in_blocks=self.machine.blocks and bool(decisions)),
            structs=[as_struct(v.aval) for v in program.invars],
            consts=program.consts,
            donate=[constants + k for k in self.call.donated],
            options={**compile_options(decisions), **self.call.compiler_options},
        )

    def _exchanges_more(self, compiled: Any, untouched: bool) -> str:
        """What a program for several devices has them exchange that the plain one does not; "" where nothing."""
        if self.call.devices == 1:
            return ""
        found = collectives(compiled.as_text())
        if untouched:
            self.exchanged = found
        if untouched or not found.total:
            return ""
        if not self._knows_plain:  # compiled as if it had been tried before the candidate that is at hand
            at_hand, self.tried[self.asked_from :] = self.tried[self.asked_from :], []
            self.plain()
            self.asked_from = len(self.tried)
            self.tried += at_hand
        return exchanges_more(found, self.exchanged, self.call.program)

    @property
    def _knows_plain(self) -> bool:
        return any(t.untouched for t in self.tried)

    def chosen(self, choice: Choice) -> None:
        """Record once more what was chosen of several that obey: the next process replays the last of them."""
        if self.records_compiled:
            self.record(
                choice.decisions,
                "ok",
                projected_bytes=choice.peak.bytes,
                compiled_bytes=choice.compiled_bytes.total,
                measured_bytes=choice.measured_bytes,
                is_default=choice.untouched,
                extra={"chosen": True, "instead": choice.instead, "hint": choice.hint},
            )

    @property
    def is_recording(self) -> bool:
        """Whether what is compiled is kept for the next process."""
        return self.store is not None and self.options.records == "append"

    def records(self) -> Sequence[Record]:
        """The records of this call, oldest first."""
        return () if self.store is None else self.store.lookup(self.key)

    def _shipped(self) -> Sequence[Record]:
        """What comes with exla for this call, from a search by other code."""
        return () if self.store is None else self.store.shipped(self.key)

    def record(self, decisions: Sequence[Decision], status: str, *, seed: int = 0, **found: Any) -> str:
        """Record a candidate, where records are written.

        Args:
          decisions: the candidate.
          status: how it went.
          seed: of the strategy.
          **found: the other fields of a record, by name.

        Returns:
          Why it is not recorded; "" where it is.
        """
        if self.store is None or not self.is_recording:
            return f"records={self.options.records!r}"
        return self.store.append(
            Record(
                key=self.key,
                decisions=[to_json(d) for d in decisions],
                status=status,
                limit_bytes=self.limit_bytes,
                strategy=self.options.search,
                seed=seed,
                about=self._about(),
                **found,
            )
        )

    def _about(self) -> dict[str, str]:
        """What the hashes of the key stand for, for people."""
        program, known = self.call.program, self.target.fingerprint()
        source = program.source(len(program.eqns) - 1).rpartition("/")[2] if program.eqns else ""
        arguments = " ".join(v.aval.str_short(short_dtypes=True) for v in program.invars[len(program.consts) :])
        return {
            "source": source,
            "target": self.target.name,
            "device": known.get("device", ""),
            "arguments": arguments if len(arguments) <= MOST_SAID else f"{arguments[:MOST_SAID]}…",
            "options": self._options_in_words(),
        }

    def _options_in_words(self) -> str:
        """What of the options is in the key and not as it is by default."""
        names = ("numerics", "tensor_size_threshold", "tensor_split_size", "rules")
        said: dict[str, Any] = {name: getattr(self.options, name) for name in names}
        said |= {"search": "off"} if self.options.search == "off" else {}
        said = {name: value for name, value in said.items() if value != getattr(Options(), name)}
        said |= {"compiler_options": dict(self.call.compiler_options)} if self.call.compiler_options else {}
        inside = ["inside another program"] if self.call.inline else []
        return ", ".join([*(f"{name}={value!r}" for name, value in said.items()), *inside])[:MOST_SAID] or "default"

    @cached_property
    def wrong(self) -> Wrong:
        """The candidates that must never be chosen: those that are recorded, and what is added."""
        return Wrong.of(self.records())

    def recorded(self) -> Choice | None:
        """Replay what won an earlier search by measuring, else what this strategy chose before by counting.

        What comes with exla, from a search by other code, is asked last.
        """
        for source, records in (("record", self.records), ("shipped", self._shipped)):
            found = [r for r in reversed(records()) if r.status == "ok" and not self.wrong.has(r.decisions)]
            winners = [r for r in found if r.extra.get("winner") is True]
            mine = [r for r in found if r.run_s is None and r.strategy == self.options.search]
            counted = [r for r in mine if not r.is_default or r.extra.get("chosen") is True]
            for record in (*winners, *counted):
                instead, hint = (str(record.extra.get(name) or "") for name in ("instead", "hint"))
                if hint and self.options.verify == "run":
                    continue  # it can be found out now
                try:
                    choice = self.again([from_json(d) for d in record.decisions], source)
                except (ReplayMiss, ValueError):
                    continue
                return choice and replace(choice, instead=instead, hint=hint)
        return None

    @cached_property
    def elsewhere(self) -> Sequence[Record]:
        """What this strategy compiled under other limits and may be used; first what obeyed, loosest first."""
        known = [] if self.store is None else self.store.under_other_limits(self.key)
        wrong = Wrong(changes=[*self.wrong.changes, *Wrong.of(known).changes])
        counted = [
            r
            for r in reversed(known)
            if r.compiled_bytes is not None
            and r.strategy == self.options.search
            and r.status in ("ok", "over_limit")
            and not r.is_default
            and not wrong.has(r.decisions)
        ]
        return sorted(counted, key=lambda r: (r.status == "ok", r.limit_bytes or 0), reverse=True)

    def as_under_another_limit(self) -> Choice | None:
        """What was compiled under another limit and counted within this one, where a search has found nothing."""
        within = [r for r in self.elsewhere if most_counted(r) <= self.limit_bytes]
        for record in list({r.candidate: r for r in within}.values())[:MOST_ELSEWHERE]:
            try:
                choice = self.again([from_json(d) for d in record.decisions], "search")
            except (ReplayMiss, ValueError):
                continue
            if choice is not None:
                return choice
        return None

    def again(self, decisions: Sequence[Decision], source: str) -> Choice | None:
        """Replay what was decided before, under the compile options of then.

        Raises:
          ReplayMiss: if a decision does not apply.
        """
        if not decisions:
            return self.plain()
        with uncollected():
            program, changes, seeds = self._replayed(decisions)
        options = compile_options(decisions)
        known = set(self.target.option_names())
        if not options.keys() <= known:  # what a file says must not reach the compiler unseen
            raise ReplayMiss(
                f"{sorted(options.keys() - known)} are no compile options that exla sets on {self.target.name}"
            )
        return self._compile(program, changes, seeds, options, source)

    def _replayed(self, decisions: Sequence[Decision]) -> tuple[Program, list[Change], list[Seed]]:
        """The program that decisions make, as a search would: rewritten, numbered, then split."""
        rewrites = list(itertools.takewhile(lambda d: isinstance(d, Rewrite), decisions))
        rewritten, first, _, sources = replay_all(self.call.program, rewrites)
        start = numbered(rewritten)
        program, rest, seeds, more = replay_all(start, decisions[len(rewrites) :])
        self.sources = {**sources, **more}
        if not allows(Steady(program=start, seals=self.machine.keeps_branches), program, decisions):
            raise ReplayMiss(
                "it computes a sum that is compared for equality in more than one place, or alone a part that is "
                "compared with the whole, which may change the result; plan the program again"
            )
        return program, [*first, *rest], seeds


def most_counted(record: Record) -> int:
    """The larger of the compiler's count and of what a run took."""
    return max(record.compiled_bytes or 0, record.measured_bytes or 0)


def _projected(program: Program, machine: Machine) -> Peak:
    with tolerate("projecting its memory"):
        return projected(program, machine)
    return Peak(arguments_bytes=0, outputs_bytes=0, bytes=0, held=())


def peak_under(options: Mapping[str, str], peak: Peak, target: Target) -> Peak:
    """A projected peak with what libraries allocate under some of a target's compile options."""
    return peak.called(target.called_bytes(peak.libraries, options))


def compile_options(decisions: Sequence[Decision]) -> dict[str, str]:
    """The compile options among decisions, by name."""
    return {d.name: d.value for d in decisions if isinstance(d, CompileOption)}


def _words(decisions: Sequence[Decision]) -> str:
    return "; ".join(map(str, decisions)) or PLAIN
