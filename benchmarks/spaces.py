"""Spaces of which every candidate was measured, so that strategies can be compared with no device.

    exla profile run benchmarks/campaigns/spaces.toml -o runs/spaces
    python -m benchmarks.spaces runs/spaces

A campaign with `walk` measures each candidate of the walks with chunk sizes so far apart, and what the strategies
begin with (`exla.search.pool.walks`), in rounds of all. An instance of which a candidate was not begun is left out.
Programs, projected bytes and predicted seconds are made anew here, as the planner is now. Spaces in which the plain
program obeys its limit stay as they were recorded: in a campaign of walks it never does, for what the libraries of
XLA:CPU may allocate for it is many times what is projected. Results:
`exla/search/spaces/cpu-py<version>-jax<version>.jsonl`, which comes with exla.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import jax

from benchmarks import record as results
from exla.datasets.profiling.campaign import Instance
from exla.datasets.profiling.prepare import Settled, prepare
from exla.datasets.profiling.run import Folder
from exla.errors import OptionError, ReplayMiss
from exla.passes.decisions import from_json
from exla.search.attempt import Attempt
from exla.search.record import Record
from exla.search.recorded import SPACES, Measured, RecordedSpace, read_spaces, write_space
from exla.search.space import Candidate


def recorded_space(
    instance: Instance, target: str, records: list[Record], about: dict[str, Any]
) -> RecordedSpace | str:
    """The space that records of an instance make; why there is none."""
    last = {record.candidate: record for record in records}
    asked = records[0].extra.get("candidates") if records else None
    unfinished = sum(r.extra.get("preliminary") is True for r in last.values())
    if asked is None or len(last) < asked or unfinished:
        return f"{len(last) - unfinished} of {asked} candidates were measured"
    prepared = prepare(instance, target, Settled.by(records))
    default, rows = None, []
    for record in last.values():
        if not record.decisions:
            obeys = record.extra["obeys"]
            default = _measured(record, prepared.space.root, 0, "ok" if obeys else "over_limit")
        elif record.status != "barred":
            try:
                candidate = prepared.space.build([from_json(d) for d in record.decisions])
            except (ReplayMiss, ValueError) as error:
                return f"a candidate is none any more: {error}"
            rows.append(_measured(record, candidate, _option_rank(prepared.attempt, candidate), record.status))
    if default is None or not any(m.status == "ok" for m in rows):
        return "nothing obeys"
    return RecordedSpace(
        name=instance.program,
        limit_bytes=prepared.attempt.limit_bytes,
        default=default,
        measured=rows,
        about={**about, **records[0].about, "size": prepared.size},
    )


def _measured(record: Record, candidate: Candidate, option_rank: int, status: str) -> Measured:
    return Measured(
        decisions=candidate.all_decisions,
        status=status,
        run_s=None if status != "ok" or record.run_s is None else float(f"{record.run_s:.4g}"),
        peak_bytes=record.compiled_bytes,
        projected_bytes=candidate.peak.bytes,
        arguments_bytes=candidate.peak.arguments_bytes,
        outputs_bytes=candidate.peak.outputs_bytes,
        predicted_s=float(f"{candidate.seconds:.4g}"),
        option_rank=option_rank,
    )


def _option_rank(attempt: Attempt, candidate: Candidate) -> int:
    """How late the target would try the compile options of a candidate."""
    first = [dict(names) for names in attempt.option_sets(candidate.program)]
    chosen = {o.name: o.value for o in candidate.options or ()}
    return first.index(chosen) if chosen in first else len(first)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="of campaigns with `walk`, for one target")
    arguments = parser.parse_args()
    try:
        folders = [Folder.open(path) for path in arguments.folders]
    except OptionError as error:
        print(f"spaces: {error}", file=sys.stderr)
        return 2
    about = results.open_results("spaces").environment
    path = SPACES / f"cpu-py{sys.version_info.major}.{sys.version_info.minor}-jax{jax.__version__}.jsonl"
    there = read_spaces(path) if path.exists() else []
    spaces = {(space.name, space.default.status): space for space in there if space.default.status == "ok"}
    for folder in folders:
        known = {i.name: i for i in folder.campaign.instances()}
        for name, records, _ in folder.records():
            made = recorded_space(known[name], folder.campaign.target, records, about)
            print(f"{name}: {made if isinstance(made, str) else len(made.measured)}", flush=True)
            if not isinstance(made, str):
                spaces[made.name, made.default.status] = made
    path.unlink(missing_ok=True)
    for space in spaces.values():
        write_space(path, space)
    return 0


if __name__ == "__main__":
    sys.exit(main())
