"""The driver: from a traced call to a compiled program that obeys the cap.

    decide(call, target, options) -> Choice

Candidate 0 is the program as `jax.jit` compiles it. If its bytes are within the limit it is used untouched.
Otherwise the strategy proposes split programs, the target compiles the best few, those over the limit are
dropped, and the goal is tightened by what the compiler's figure was over it. A record of an earlier search is
replayed first. Nothing left: `MemoryLimitError`, before anything has run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from exla.errors import MemoryLimitError, ReplayMiss
from exla.ir.emit import emit
from exla.ir.fingerprint import fingerprint
from exla.ir.memory import Peak, largest_bytes, project
from exla.ir.program import Program, as_struct
from exla.options import Options
from exla.passes.decisions import Change, CompileOption, Decision, from_json, to_json
from exla.passes.replace import Declined
from exla.passes.replay import replay
from exla.passes.split.decide import Seed
from exla.passes.unless import EXPANSIONS
from exla.search.cost import Rates, product_share
from exla.search.records import Record, RecordStore, make_key
from exla.search.refusal import refusal
from exla.search.rewriting import rewrite
from exla.search.strategies.heuristic import Proposal, propose
from exla.strict import is_strict, tolerate
from exla.targets.base import CompiledBytes, Target
from exla.version import rules_hash

MOST_COMPILES = 8
HOPELESS = 3
"""After so many candidates in a row that come no nearer to the limit, the search gives up."""

RECORDED = ("program", "arguments", "target", "device", "jax", "jaxlib", "xla_flags", "exla", "limit", "options")


@dataclass(frozen=True, kw_only=True)
class Call:
    """One signature of a function, traced.

    Attributes:
      program: the canonical program.
      compile_plain: compiles the function exactly as `jax.jit` does.
      donated: positions of donated arguments among the flat arguments.
      compiler_options: the user's own.
      inline: whether it becomes part of somebody else's program, whose compiler options are not exla's to choose.
    """

    program: Program
    compile_plain: Callable[[], Any]
    donated: tuple[int, ...]
    compiler_options: Mapping[str, Any]
    inline: bool = False


@dataclass(frozen=True, kw_only=True)
class Tried:
    """One candidate that was compiled.

    Attributes:
      what: its decisions in words.
      untouched: whether it is the program as `jax.jit` compiles it.
      compiled_bytes: the compiler's figure; None where it did not compile.
      error: what the compiler said then.
    """

    what: str
    untouched: bool
    compiled_bytes: CompiledBytes | None
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What the driver chose.

    Attributes:
      compiled: jax's Compiled; of the user's function where `untouched`, else of flat constants and arguments.
      untouched: whether it is the program as `jax.jit` compiles it.
      decisions: what was decided.
      program: the program after the decisions.
      peak: its projected peak.
      compiled_bytes: the compiler's figure.
      limit_bytes: the limit that it obeys.
      seeds: the regions that were split.
      tried: every candidate that was compiled, in order.
      declined: rewrites that were found and not applied, with reasons.
      sources: the user's lines of the rewrites that were.
      source: "search" or "record".
      search_s: seconds it took.
    """

    compiled: Any
    untouched: bool
    decisions: tuple[Decision, ...]
    program: Program
    peak: Peak
    compiled_bytes: CompiledBytes
    limit_bytes: int
    seeds: tuple[Seed, ...] = ()
    tried: tuple[Tried, ...] = ()
    declined: tuple[Declined, ...] = ()
    sources: Mapping[Decision, str] = field(default_factory=dict)
    source: str = "search"
    search_s: float = 0.0


@dataclass
class _Search:
    """One search in progress."""

    call: Call
    target: Target
    options: Options
    limit_bytes: int
    store: RecordStore | None
    key: dict[str, str]
    started: float = field(default_factory=time.perf_counter)
    tried: list[Tried] = field(default_factory=list)
    declined: tuple[Declined, ...] = ()
    sources: Mapping[Decision, str] = field(default_factory=dict)

    def plain(self) -> Choice | None:
        """Candidate 0: the program as jax.jit compiles it."""
        begin = time.perf_counter()
        compiled = self.call.compile_plain()
        return self._judge(compiled, self.call.program, (), (), True, time.perf_counter() - begin)

    def candidate(
        self, program: Program, changes: Sequence[Decision], seeds: Sequence[Seed], source: str = "search"
    ) -> Choice | None:
        """Compile a rewritten program under the options worth trying, and keep the first that obeys the limit."""
        sets = ({},) if self.call.inline else self.target.option_sets(product_share(program))
        for options in sets:
            choice = self._compile(program, changes, seeds, options, source)
            if choice is not None:
                return choice
        return None

    def _compile(
        self,
        program: Program,
        changes: Sequence[Decision],
        seeds: Sequence[Seed],
        options: Mapping[str, str],
        source: str,
    ) -> Choice | None:
        begin = time.perf_counter()
        structs = [as_struct(v.aval) for v in program.invars]
        constants = len(program.consts)
        chosen = tuple(CompileOption(name=k, value=v) for k, v in options.items())
        decisions: tuple[Decision, ...] = (*changes, *chosen)
        try:
            compiled = self.target.compile(
                emit(program, EXPANSIONS),
                structs,
                donate=[constants + k for k in self.call.donated],
                compiler_options={**options, **self.call.compiler_options},
            )
        except Exception as error:
            if is_strict() and not isinstance(error, jax.errors.JaxRuntimeError):
                raise
            said = str(error).partition("\n")[0]
            self.tried.append(Tried(what=_words(decisions), untouched=False, compiled_bytes=None, error=said))
            self._record(decisions, "compile_error", _projected(program), None, False, None)
            return None
        spent = time.perf_counter() - begin
        return self._judge(compiled, program, decisions, seeds, False, spent, source)

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
        self.tried.append(Tried(what=_words(decisions), untouched=untouched, compiled_bytes=counted))
        peak = _projected(program)
        obeys = counted.total <= self.limit_bytes
        if source == "search":
            self._record(decisions, "ok" if obeys else "over_limit", peak, counted, untouched, compile_s)
        if not obeys:
            return None
        return Choice(
            compiled=compiled,
            untouched=untouched,
            decisions=tuple(decisions),
            program=program,
            peak=peak,
            compiled_bytes=counted,
            limit_bytes=self.limit_bytes,
            seeds=tuple(seeds),
            tried=tuple(self.tried),
            declined=self.declined,
            sources=self.sources,
            source=source,
            search_s=time.perf_counter() - self.started,
        )

    def _record(
        self,
        decisions: Sequence[Decision],
        status: str,
        peak: Peak,
        counted: CompiledBytes | None,
        untouched: bool,
        compile_s: float | None,
    ) -> None:
        if self.store is None or self.options.records != "append":
            return
        self.store.append(
            Record(
                key=self.key,
                decisions=[to_json(d) for d in decisions],
                status=status,
                compile_s=compile_s,
                run_s=None,
                limit_bytes=self.limit_bytes,
                projected_bytes=peak.bytes,
                compiled_bytes=None if counted is None else counted.total,
                measured_bytes=None,
                is_default=untouched,
                strategy=self.options.search,
                seed=0,
            )
        )

    def recorded(self) -> Choice | None:
        """Replay what an earlier search chose, if it was anything but the program as it is."""
        if self.store is None:
            return None
        for record in reversed(self.store.lookup(self.key)):
            if record.status != "ok" or record.is_default:
                continue
            try:
                decisions = [from_json(d) for d in record.decisions]
                changes = [d for d in decisions if not isinstance(d, CompileOption)]
                program = self.call.program
                for change in changes:
                    program = replay(program, change)
            except (ReplayMiss, ValueError):
                continue
            return self.candidate(program, changes, (), "record")
        return None


def _projected(program: Program) -> Peak:
    """The projected peak, for the report; empty where it cannot be projected."""
    with tolerate("projecting its memory"):
        return project(program)
    return Peak(arguments_bytes=0, outputs_bytes=0, bytes=0, held=())


def _words(decisions: Sequence[Decision]) -> str:
    return "; ".join(map(str, decisions)) or "as jax.jit compiles it"


def decide(call: Call, target: Target, options: Options) -> Choice:
    """`search` for a program that obeys the limit; where exla itself fails, the plain program if that obeys it.

    Arguments, result and errors are those of `search`.
    """
    with tolerate("planning"):
        return search(call, target, options)
    attempt = _Search(
        call=call, target=target, options=options, limit_bytes=_limit(options, target), store=None, key={}
    )
    choice = attempt.plain()
    if choice is None:
        raise _refusal(attempt, (), _projected(call.program))
    return choice


def _limit(options: Options, target: Target) -> int:
    return options.memory_limit if options.memory_limit is not None else target.usable_bytes()


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
    limit = _limit(options, target)
    named_limit = options.memory_limit is not None
    store = RecordStore(None) if options.records != "off" and named_limit else None
    attempt = _Search(
        call=call,
        target=target,
        options=options,
        limit_bytes=limit,
        store=store,
        key=_key(call, target, options, limit) if store is not None else {},
    )
    knobs = options.tensor_size_threshold is not None or options.tensor_split_size is not None
    floor = _projected(call.program)
    unsplit_hopeless = floor.arguments_bytes + floor.outputs_bytes > limit
    if not knobs and not unsplit_hopeless:
        choice = attempt.recorded() or attempt.plain()
        if choice is not None:
            return choice
    best: Sequence[Proposal] = ()
    if not unsplit_hopeless:
        choice, best = _split(attempt, limit, floor)
        if choice is not None:
            return choice
    raise _refusal(attempt, best, floor)


def _split(search: _Search, limit: int, floor: Peak) -> tuple[Choice | None, Sequence[Proposal]]:
    """Rewrite, then propose and compile until something obeys; without the rewrites where nothing obeys with them."""
    rates = Rates(cache_bytes=search.target.cache_bytes())
    program = search.call.program
    plain = search.candidate(program, (), ())
    if plain is not None and not _wants_smaller(search.options, program):
        return plain, ()
    room = max(limit - floor.arguments_bytes - floor.outputs_bytes, 0)
    made = rewrite(program, rates, search.options.numerics == "exact", room, search.options.rules)
    search.declined, search.sources = made.declined, dict(zip(made.decisions, made.sources, strict=True))
    if made.decisions and project(made.program).bytes <= limit and not _wants_smaller(search.options, made.program):
        choice = search.candidate(made.program, made.decisions, ())
        if choice is not None:
            return choice, ()
    if search.options.search == "off":
        return None, ()
    choice, best = _descend(search, made.program, made.decisions, limit, rates)
    if choice is None and made.decisions:
        choice, unchanged = _descend(search, program, (), limit, rates)
        best = (*best, *unchanged)
    return choice, best


def _descend(
    search: _Search, program: Program, changes: Sequence[Change], limit: int, rates: Rates
) -> tuple[Choice | None, Sequence[Proposal]]:
    """Propose and compile until something obeys, tightening the goal by the compiler's word."""
    goal = limit
    seen: set[tuple[Decision, ...]] = set()
    best: Sequence[Proposal] = ()
    smallest: list[int] = []
    for _ in range(MOST_COMPILES):
        proposals = propose(
            program,
            goal,
            rates,
            search.options.tensor_split_size,
            search.options.tensor_size_threshold,
            search.options.numerics == "exact",
            changes,
        )
        proposals = [p for p in proposals if p.decisions not in seen]
        best = best or proposals
        if not proposals:
            break
        first = proposals[0]
        seen.add(first.decisions)
        choice = search.candidate(first.program, first.decisions, first.seeds)
        if choice is not None:
            return choice, best
        counted = search.tried[-1].compiled_bytes
        smallest.append(min([*smallest[-1:], counted.total] if counted else smallest[-1:], default=goal))
        if len(smallest) > HOPELESS and smallest[-1] > 0.95 * smallest[-1 - HOPELESS]:
            break
        over = 2 * limit if counted is None else counted.total
        fixed = first.peak.arguments_bytes + first.peak.outputs_bytes
        share = max(limit - fixed, 0) / max(over - fixed, 1)
        goal = fixed + max(int((min(goal, first.peak.bytes) - fixed) * min(share, 0.9) * 0.9), 0)
    return None, best


def _wants_smaller(options: Options, program: Program) -> bool:
    """Whether the paper's knobs ask for a split although the limit does not."""
    threshold = options.tensor_size_threshold
    return threshold is not None and largest_bytes(program) > threshold


def _key(call: Call, target: Target, options: Options, limit: int) -> dict[str, str]:
    parts = {
        "program": fingerprint(call.program),
        "arguments": " ".join(v.aval.str_short() for v in call.program.invars) + f" donated {call.donated}",
        **target.fingerprint(),
        "exla": rules_hash(),
        "limit": str(limit),
        "options": f"{options.search} {options.numerics} {options.tensor_size_threshold} "
        f"{options.tensor_split_size} {options.rules} {sorted(call.compiler_options.items())} {call.inline}",
    }
    return make_key(**{name: parts.get(name, "") for name in RECORDED})


def _refusal(search: _Search, proposals: Sequence[Proposal], floor: Peak) -> MemoryLimitError:
    found = [t.compiled_bytes.total for t in search.tried if t.compiled_bytes is not None]
    return refusal(
        program=search.call.program,
        options=search.options,
        limit_bytes=search.limit_bytes,
        smallest_bytes=min(found, default=floor.arguments_bytes + floor.outputs_bytes),
        proposals=proposals,
        peak=_projected(search.call.program),
    )
