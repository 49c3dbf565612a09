"""Every candidate of a space measured, so that strategies can be compared with no device.

    python -m benchmarks.spaces [--names chamfer attention] [--most 40] [--budget-s 3600]

Programs of the zoo at twice the size `fitting`, with room for an eighth of the temporaries that exla projects for the
plain program, or of twice what it takes where the plain program shall obey. The candidates are those of the walks
with chunk sizes a factor of 8 apart, one split deep where that is enough and two where not, and what the strategies
themselves begin with. Each is compiled, compared and timed by `exla.search.tune`; a program that is in the file is
passed over. Results: `exla/search/spaces/cpu-py<version>-jax<version>.jsonl`, which comes with exla.
"""

import argparse
import dataclasses
import itertools
import sys
import time
from collections.abc import Iterator

import jax

from benchmarks import record
from exla.call import read
from exla.datasets.profiling.zoo.programs import ZOO
from exla.options import Options
from exla.search.attempt import Attempt
from exla.search.choice import Call
from exla.search.driver import limit_of, make_space, store_and_key
from exla.search.recorded import SPACES, Measured, RecordedSpace, read_spaces, write_space
from exla.search.space import Candidate, Space
from exla.search.strategy import STRATEGIES, Outcome, starts
from exla.search.tune import Tuning
from exla.targets.base import find_target

SHARE = 1 / 8
"""Of the projected temporaries of the plain program: the room in which it is to run."""
RATIO = 8
SCALE = 2
"""Times the size `fitting`: runs of some ten milliseconds or more."""
FEW = 8
"""Candidates one split deep from which on no second split is looked at."""
FIRST = 4
"""Candidates that each strategy begins with."""
PLAIN_OBEYS = ("chamfer", "attention", "kmeans_step", "info_nce", "nbody_forces")


def tasks(space: Space, most: int) -> list[Candidate]:
    """The candidates of a space that are measured, distinct, with their compile options."""
    found: dict[tuple, Candidate] = {}

    def add(candidates: Iterator[Candidate], count: int) -> None:
        for candidate in itertools.islice(candidates, count):
            dressed = [candidate] if candidate.options is not None else space.under(candidate)
            found.update({c.all_decisions: c for c in dressed if c.all_decisions})

    add(space.unsplit(), most)
    for start in starts(space):
        add((c for c in space.ranked(start) if space.is_met(c)), FIRST)
    add(_asked("heuristic", space), FIRST)
    space.depth = 1
    walked = list(itertools.islice(space.all(), 4 * most))
    if len(walked) < FEW:
        space.depth = 2
        walked = list(itertools.islice(space.all(), 4 * most))
    step = max(len(walked) // max(most - len(found), 1), 1)
    add(iter(walked[::step]), most)
    return list(found.values())[:most]


def _asked(name: str, space: Space) -> Iterator[Candidate]:
    session = STRATEGIES.get(name).start(space)
    while (candidate := session.ask()) is not None:
        yield candidate
        session.tell(Outcome(status="over_limit"))


def record_space(name: str, most: int, about: dict) -> RecordedSpace:
    """Measure the candidates of one program."""
    program, target = ZOO[name], find_target("cpu")
    function, arguments = program.function, program.arguments(SCALE * program.fitting)
    flat = read(jax.make_jaxpr(function)(*arguments), "cpu")
    call = Call(
        program=flat,
        compile_plain=lambda: jax.jit(function).lower(*arguments).compile(),
        donated=(),
        compiler_options={},
    )
    probe = Attempt(call=call, target=target, options=Options(), limit_bytes=1, store=None, key={})
    floor = probe.floor
    room = floor.bytes - floor.arguments_bytes - floor.outputs_bytes
    fixed = floor.arguments_bytes + floor.outputs_bytes
    plain = target.compiled_bytes(call.compile_plain()).total
    limit = 2 * plain if name in PLAIN_OBEYS else fixed + int(room * SHARE)
    options = Options(memory_limit=limit, search="exhaustive")
    store, key = store_and_key(call, target, options)
    attempt = Attempt(
        call=call, target=target, options=options, limit_bytes=limit_of(options, target), store=store, key=key
    )
    space = make_space(attempt, floor)
    space.ratio = RATIO
    if name in PLAIN_OBEYS:
        space.goal = dataclasses.replace(space.goal, bytes=fixed + int(room * SHARE))
    tuning = Tuning(attempt=attempt, space=space)
    tuning.default()
    rows = []
    for candidate in tasks(space, most):
        trial = tuning.candidate(candidate)
        print(f"  {trial.source:8s} {trial.status:12s} {(trial.run_s or 0) * 1e3:9.2f} ms  {candidate}", flush=True)
        if trial.status == "barred":
            continue
        first = attempt.option_sets(candidate.program)
        chosen = {o.name: o.value for o in candidate.options or ()}
        rank = first.index(chosen) if chosen in first else len(first)
        rows.append(_measured(trial, candidate, rank))
    return RecordedSpace(
        name=name,
        limit_bytes=limit,
        default=_measured(tuning.trials[0], space.root, 0),
        measured=rows,
        about={**about, "function": f"{function.__module__}:{function.__name__}", "scale": SCALE * program.fitting},
    )


def _measured(trial, candidate: Candidate, rank: int) -> Measured:
    return Measured(
        decisions=candidate.all_decisions,
        status=trial.status,
        run_s=trial.run_s,
        peak_bytes=trial.peak_bytes,
        projected_bytes=candidate.peak.bytes,
        arguments_bytes=candidate.peak.arguments_bytes,
        outputs_bytes=candidate.peak.outputs_bytes,
        predicted_s=candidate.seconds,
        option_rank=rank,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [name for name, p in ZOO.items() if not p.needs_nothing]
    parser.add_argument("--names", nargs="+", default=names, metavar="NAME", help="programs; default: all")
    parser.add_argument("--most", type=int, default=40, help="candidates of each program")
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="start no program after this many seconds")
    arguments = parser.parse_args()
    about = record.open_results("spaces").environment
    path = SPACES / f"cpu-py{sys.version_info.major}.{sys.version_info.minor}-jax{jax.__version__}.jsonl"
    done = {s.name for s in read_spaces(path)} if path.exists() else set()
    begin = time.monotonic()
    for name in arguments.names:
        if name in done or time.monotonic() - begin > arguments.budget_s:
            continue
        print(name, flush=True)
        space = record_space(name, arguments.most, about)
        if not any(m.status == "ok" for m in space.measured):
            print("  nothing obeys; left out", flush=True)
            continue
        write_space(path, space)
    return 0


if __name__ == "__main__":
    sys.exit(main())
