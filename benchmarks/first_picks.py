"""What the search would use today of the recorded spaces, and how far that is from the best.

    python -m benchmarks.first_picks [--names embedding_bag tsne_gradient] [--measure]

`exla search compare` lets strategies choose among all candidates of a recorded space, by what was predicted when it
was written. The search itself finds its candidates by the beam, in the program that is traced today. Here it is asked
on the same programs under the same limits, and what it asks for is looked up: compiled bytes and times are those of the
records, nothing is compiled or run. Of the sets of compile options the first that obeys counts, as in a search. A pick
that was never measured is listed as such; with --measure it is compiled now, and timed in turns with the best candidate
of the records, which is made again. A line is kept for each in `benchmarks/results/`.
"""

import argparse
import contextlib
import math
import statistics
from dataclasses import replace
from typing import Any

from benchmarks import record
from exla.datasets.profiling.campaign import Instance
from exla.datasets.profiling.prepare import Prepared, Settled, prepare
from exla.errors import ReplayMiss
from exla.passes.decisions import CompileOption
from exla.search.choice import Choice
from exla.search.measure import timed
from exla.search.recorded import RecordedSpace, packaged, read_spaces, simulate
from exla.search.strategy import STRATEGIES, Outcome

SECONDS = 20.0
"""For the turns of a pick with the best candidate of the records."""


def first_pick(space: RecordedSpace, measure: bool) -> dict[str, Any]:
    """The slowdown of what `analytic` uses against the best of the space, None where that was not measured."""
    settled = Settled(size=space.about["size"], limit_bytes=space.limit_bytes)
    found = prepare(Instance(family="recorded", program=space.name, megabytes=64, share=0.125), "cpu", settled)
    session = STRATEGIES.get("analytic").start(found.space)
    while (candidate := session.ask()) is not None:
        known = _recorded(found, space, candidate)
        if known is None:
            if not measure:
                return {"slowdown": None, "pick": str(candidate)}
            choice = found.attempt.candidate(candidate)
            if choice is not None:
                return {**against_best(found, space, choice), "pick": str(candidate)}
            known = found.attempt.outcome()
        if known.status == "ok" and known.run_s is not None:
            return {"slowdown": known.run_s / space.best_s, "pick": str(candidate)}
        session.tell(known)
    return {"slowdown": None, "pick": "nothing"}


def against_best(found: Prepared, space: RecordedSpace, choice: Choice) -> dict[str, Any]:
    """The slowdown of a choice, timed now, against the best candidate of a recorded space, made again and timed too.

    Where that cannot be made again, because rules write the program otherwise now, it is timed against the best that
    can, which takes as much longer than the best as it did when both were recorded.
    """
    for known in sorted((m for m in space.measured if m.run_s is not None), key=lambda m: m.run_s or math.inf):
        with contextlib.suppress(ReplayMiss):
            reference = found.space.build(list(known.decisions))
            break
    else:
        return {"slowdown": None, "why": "no candidate of the records can be made again"}
    behind = (known.run_s or math.inf) / space.best_s
    decided = ((reference.program, reference.all_decisions), (choice.program, choice.decisions))
    first, second = (found.attempt.runnable(program, decisions) for program, decisions in decided)
    timing = timed(second, reference=first, seconds=SECONDS)
    if timing.run_s is None or timing.reference_s is None:
        return {"slowdown": None, "why": timing.status}
    now = timing.run_s / timing.reference_s
    return {"slowdown": max(now * behind, 1.0), "against": {"timed_now": now, "recorded_behind_best": behind}}


def _recorded(found: Prepared, space: RecordedSpace, candidate: Any) -> Outcome | None:
    """How a candidate went under the first set of options that obeys, else under the last."""
    sets = [candidate]
    if candidate.options is None:
        named = found.attempt.option_sets(candidate.program)
        sets = [replace(candidate, options=tuple(CompileOption(name=k, value=v) for k, v in s.items())) for s in named]
    outcome = None
    for one in sets:
        outcome = space.outcome(one)
        if outcome is None or outcome.status == "ok":
            return outcome
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", nargs="+", help="programs (default: all that are over their limit)")
    parser.add_argument("--measure", action="store_true", help="time picks that were never measured")
    arguments = parser.parse_args()
    results = record.open_results("first_picks")
    kept = []
    for space in (s for path in packaged() for s in read_spaces(path)):
        if space.plain_obeys or (arguments.names and space.name not in arguments.names):
            continue
        row = {
            "program": space.name,
            **first_pick(space, arguments.measure),
            "by_stored_predictions": simulate("analytic", space, 1)[0],
        }
        results.append(**row)
        kept.append(row)
        said = "not among those that were measured" if row["slowdown"] is None else f"{row['slowdown']:.2f}"
        print(f"{space.name:28s} {said:36s} {row['by_stored_predictions']:.2f}  {row['pick']}", flush=True)
    known = [row for row in kept if row["slowdown"] is not None]
    if known:
        now, then = ([row[name] for row in known] for name in ("slowdown", "by_stored_predictions"))
        print(
            f"{len(known)} of {len(kept)}: geometric mean {statistics.geometric_mean(now):.3f}, worst {max(now):.2f}; "
            f"by stored predictions {statistics.geometric_mean(then):.3f} and {max(then):.2f}"
        )


if __name__ == "__main__":
    main()
