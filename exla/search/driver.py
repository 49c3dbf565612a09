"""The driver: from a traced call to a compiled program that obeys the cap.

    decide(call, target, options) -> Choice

Candidate 0 is the program as `jax.jit` compiles it. If its bytes are within the limit it is used untouched.
Otherwise the strategy proposes split programs, the target compiles the best few, those over the limit are
dropped, and the goal is tightened by what the compiler's figure was over it. A record of an earlier search is
replayed first. Nothing left: `MemoryLimitError`, before anything has run.
"""

from __future__ import annotations

from collections.abc import Sequence

from exla.errors import MemoryLimitError, ReplayMiss
from exla.ir.fingerprint import fingerprint
from exla.ir.memory import Peak, largest_bytes
from exla.ir.program import Program
from exla.options import Options
from exla.passes.decisions import Change, Decision, Split
from exla.search.attempt import Attempt
from exla.search.choice import Call, Choice
from exla.search.cost import product_share
from exla.search.records import RecordStore, make_key
from exla.search.refusal import refusal
from exla.search.rewriting import rewrite
from exla.search.strategies.heuristic import Proposal, propose
from exla.strict import tolerate
from exla.targets.base import Target
from exla.version import rules_hash

MOST_COMPILES = 8
HOPELESS = 3
"""After so many candidates in a row that come no nearer to the limit, the search gives up."""

RECORDED = ("program", "arguments", "target", "device", "jax", "jaxlib", "xla_flags", "exla", "limit", "options")


def decide(call: Call, target: Target, options: Options) -> Choice:
    """`search` for a program that obeys the limit; where exla itself fails, the plain program if that obeys it.

    Arguments, result and errors are those of `search`.
    """
    with tolerate("planning"):
        return search(call, target, options)
    attempt = Attempt(
        call=call, target=target, options=options, limit_bytes=limit_of(options, target), store=None, key={}
    )
    choice = attempt.plain()
    if choice is None:
        raise _refusal(attempt, (), attempt.projected(call.program))
    return choice


def follow(call: Call, target: Target, options: Options, decisions: Sequence[Decision]) -> Choice:
    """Compile what was decided before, and count it again.

    Args:
      call: the traced call.
      target: what to compile for.
      options: the user's options.
      decisions: of an earlier choice, for the same program.

    Raises:
      ReplayMiss: if a decision does not apply to this program, or does not compile for this target.
      MemoryLimitError: if what was decided does not obey the limit.
    """
    attempt = Attempt(
        call=call, target=target, options=options, limit_bytes=limit_of(options, target), store=None, key={}
    )
    choice = attempt.again(decisions, "plan")
    if choice is None and attempt.tried[-1].peak_bytes is None:
        raise ReplayMiss(f"what was decided does not compile for {target.name}: {attempt.tried[-1].error}")
    if choice is None:
        raise _refusal(attempt, (), attempt.projected(call.program))
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
    named_limit = options.memory_limit is not None
    store = RecordStore(None) if options.records != "off" and named_limit else None
    attempt = Attempt(
        call=call,
        target=target,
        options=options,
        limit_bytes=limit,
        store=store,
        key=_key(call, target, options) if store is not None else {},
    )
    knobs = options.tensor_size_threshold is not None or options.tensor_split_size is not None
    floor = attempt.projected(call.program)
    unsplit_hopeless = floor.arguments_bytes + floor.outputs_bytes > limit * call.devices
    if not knobs and not unsplit_hopeless:
        choice = attempt.recorded() or attempt.plain()
        if choice is not None:
            return choice
    best: Sequence[Proposal] = ()
    if not unsplit_hopeless:
        choice, best = _split(attempt, limit * call.devices, floor)
        if choice is not None:
            return choice
    raise _refusal(attempt, best, floor)


def _split(search: Attempt, limit: int, floor: Peak) -> tuple[Choice | None, Sequence[Proposal]]:
    """Rewrite, then propose and compile until something obeys; without the rewrites where nothing obeys with them.

    Programs are those of all devices together, and so is the limit: what each holds is taken for its share of it.
    """
    program = search.call.program
    has_options = not search.call.inline and any(search.target.option_sets(product_share(program)))
    plain = search.candidate(program, (), ()) if has_options else None
    if plain is not None and not _wants_smaller(search.options, program):
        return plain, ()
    room = max(limit - floor.arguments_bytes - floor.outputs_bytes, 0)
    made = rewrite(program, search.machine, search.options.numerics == "exact", room, search.options.rules)
    search.declined, search.sources = made.declined, dict(zip(made.decisions, made.sources, strict=True))
    fits = search.projected(made.program).bytes <= limit
    if made.decisions and fits and not _wants_smaller(search.options, made.program):
        choice = search.candidate(made.program, made.decisions, ())
        if choice is not None:
            return choice, ()
    if search.options.search == "off":
        return None, ()
    choice, best = _descend(search, made.program, made.decisions, limit)
    if choice is None and made.decisions:
        choice, unchanged = _descend(search, program, (), limit)
        best = (*best, *unchanged)
    return choice, best


def _descend(
    search: Attempt, program: Program, changes: Sequence[Change], limit: int
) -> tuple[Choice | None, Sequence[Proposal]]:
    """Propose and compile until something obeys, tightening the goal by the compiler's word."""
    goal = limit
    seen: set[tuple[Decision, ...]] = set()
    barred: set[Split] = set()
    best: Sequence[Proposal] = ()
    smallest: list[int] = []
    for _ in range(MOST_COMPILES):
        proposals = propose(
            program,
            goal,
            search.machine,
            search.options.tensor_split_size,
            search.options.tensor_size_threshold,
            search.options.numerics == "exact",
            changes,
            lambda seed: seed.decision in barred or seed.cuts(search.call.spread),
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
        if search.tried[-1].error and search.tried[-1].compiled_bytes is not None:
            barred.update(seed.decision for seed in first.seeds)
            continue
        counted = search.tried[-1].peak_bytes
        smallest.append(min([*smallest[-1:], counted] if counted else smallest[-1:], default=goal))
        if len(smallest) > HOPELESS and smallest[-1] > 0.95 * smallest[-1 - HOPELESS]:
            break
        over = 2 * limit if counted is None else counted * search.call.devices
        fixed = first.peak.arguments_bytes + first.peak.outputs_bytes
        share = max(limit - fixed, 0) / max(over - fixed, 1)
        goal = fixed + max(int((min(goal, first.peak.bytes) - fixed) * min(share, 0.9) * 0.9), 0)
    return None, best


def _wants_smaller(options: Options, program: Program) -> bool:
    """Whether the paper's knobs ask for a split although the limit does not."""
    threshold = options.tensor_size_threshold
    return threshold is not None and largest_bytes(program) > threshold


def _key(call: Call, target: Target, options: Options) -> dict[str, str]:
    parts = {
        **describe(call, target),
        "limit": str(options.memory_limit),
        "options": f"{options.search} {options.numerics} {options.tensor_size_threshold} "
        f"{options.tensor_split_size} {options.rules} {sorted(call.compiler_options.items())} {call.inline}",
    }
    return make_key(**{name: parts.get(name, "") for name in RECORDED})


def describe(call: Call, target: Target) -> dict[str, str]:
    """What an outcome depends on but for limit and options, by name."""
    return {
        "program": fingerprint(call.program),
        "arguments": " ".join(v.aval.str_short() for v in call.program.invars)
        + f" donated {call.donated}{_sharded(call)}",
        **target.fingerprint(),
        "exla": rules_hash(),
    }


def _sharded(call: Call) -> str:
    """The shardings of a call over several devices, for its key."""
    return "" if call.devices == 1 else f" on {call.devices}: {call.arguments} -> {call.results}"


def _refusal(search: Attempt, proposals: Sequence[Proposal], floor: Peak) -> MemoryLimitError:
    found = [t.peak_bytes for t in search.tried if t.peak_bytes is not None]
    return refusal(
        program=search.call.program,
        options=search.options,
        limit_bytes=search.limit_bytes,
        smallest_bytes=min(found, default=floor.arguments_bytes + floor.outputs_bytes),
        proposals=proposals,
        peak=search.projected(search.call.program),
    )
