"""Programs that obey their limit as they are: what is used instead of them, and whether that is faster.

    python -m benchmarks.roomy [--names chamfer attention] [--megabytes 128] [--verify run]
    python -m benchmarks.roomy --own benchmarks.strangers:STRANGERS

Every program of the zoo that can be split, or of a table of one's own, at the size at which its values take about so
many megabytes, under a limit of 12 GiB, each in a fresh process. Where exla keeps the program as it is there is nothing
to time: it runs through `jax.jit`. Where it does not, both take turns, and the errors of both are given, against the
program in float64. Exits with 1 where one is slower than `jax.jit`, or wrong where that is right.
"""

import argparse
import statistics
import sys
import time
from typing import Any

import jax
import numpy as np

import exla
from benchmarks import isolate, record
from benchmarks.checks import error_of
from benchmarks.timing import medians
from exla.datasets.profiling.campaign import Campaign
from exla.datasets.profiling.prepare import prepare
from tests.zoo.test_zoo import in_float64

LIMIT = "12GiB"
SECONDS = 4.0
"""For the turns of one program."""
WRONG = 1e-3
"""Error of the largest value, where that of `jax.jit` is below it."""


def examine(position: int, own: list[str], megabytes: float, verify: str) -> dict[str, Any]:
    """Plan and time one program; call it in a fresh process."""
    instance = list(_campaign(own, megabytes).instances())[position]
    found = prepare(instance, "cpu")
    function, arguments = found.function, jax.device_put(found.arguments)
    planned = exla.jit(function, memory_limit=LIMIT, records="off", verify=verify)
    begin = time.perf_counter()
    plan = planned.plan(*arguments)
    planning_s = time.perf_counter() - begin
    row = {"program": instance.program, "size": found.size, "megabytes": megabytes, "verify": verify}
    row |= {"untouched": plan.untouched, "planning_s": planning_s, "why": plan.instead, "decisions": list(plan.words)}
    if plan.untouched or not plan.instead:
        return row
    plain = jax.jit(function)
    results = {name: jax.tree.map(np.asarray, run(*arguments)) for name, run in (("exla", planned), ("jax", plain))}
    wanted = in_float64(found.function, found.arguments)
    errors = {name: error_of(got, wanted) for name, got in results.items()}
    del wanted, results
    median, rounds = medians({"exla": lambda: planned(*arguments), "jax": lambda: plain(*arguments)}, SECONDS)
    return {**row, "median_s": median, "share": median["exla"] / median["jax"], "rounds": rounds, "error": errors}


def _campaign(own: list[str], megabytes: float) -> Campaign:
    return Campaign(target="cpu", own=tuple(own), megabytes=(megabytes,), shares=(4.0,))


def _said(row: dict[str, Any]) -> str:
    if "share" not in row:
        return row.get("message", "as it is" if row.get("untouched") else "does not obey as it is")
    errors = " and ".join(f"{error:.1e}" for error in row["error"].values())
    return f"{row['share']:.2f} of the time, errors {errors}: {row['why']}"


def _is_bad(row: dict[str, Any]) -> bool:
    if "share" not in row:
        return "message" in row
    return row["share"] > 1 or row["error"]["exla"] > WRONG >= row["error"]["jax"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", nargs="+", help="programs (default: all)")
    parser.add_argument("--own", nargs="+", default=[], help='tables of programs, as "module:NAME"')
    parser.add_argument("--megabytes", type=float, default=128)
    parser.add_argument("--verify", choices=("compile", "run"), default="compile")
    arguments = parser.parse_args()
    results = record.open_results("roomy")
    rows = list[dict[str, Any]]()
    for position, instance in enumerate(_campaign(arguments.own, arguments.megabytes).instances()):
        if arguments.names and instance.program not in arguments.names:
            continue
        asked = {"own": arguments.own, "megabytes": arguments.megabytes, "verify": arguments.verify}
        try:
            row = isolate.call("benchmarks.roomy:examine", position=position, **asked)
        except isolate.ChildError as error:
            row = {"message": str(error)}
        rows.append({"program": instance.program, **row})
        results.append(**rows[-1])
        print(f"{instance.program:34s} {row.get('planning_s', 0):6.2f} s  {_said(row)}", flush=True)
    used = [row for row in rows if "share" in row]
    if used:
        shares = [row["share"] for row in used]
        print(
            f"{len(used)} of {len(rows)} run otherwise, in {statistics.geometric_mean(shares):.2f} of jax.jit's time "
            f"(geometric mean; at most {max(shares):.2f}, at least {min(shares):.2f})"
        )
    return int(any(map(_is_bad, rows)))


if __name__ == "__main__":
    sys.exit(main())
