"""Every program of the zoo under every cap: values, time, and whether the cap was obeyed.

    python -m benchmarks.zoo [--names chamfer fft] [--caps 64MiB 256MiB 1GiB 4GiB] [--budget-s 3600] [--table]

Each program of `exla.datasets.profiling.zoo` runs in a fresh process with a time limit and a memory ceiling. A cap is
what the program may use beside its arguments and results: `memory_limit` is their bytes plus the cap.

- At the size `fitting`: the plan, one run and its values against float64, for each cap; then every cap and `jax.jit`,
  taking turns, where `jax.jit` needs at most `MOST_PLAIN_BYTES`.
- At the size `over`: the plan alone, from shapes.

Results are appended as they come, and a program that is in today's file is passed over, so that a sweep can be stopped
and taken up again (`--again` repeats). What a process that died or ran out of time did not get to has the status
"crash" or "timeout". The table at the end is made from the stored lines; `--table` prints it and runs nothing.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.table import Table

from benchmarks import isolate, record
from benchmarks.isolate import MIB
from benchmarks.timing import alternate, seconds_of
from exla.datasets.profiling.zoo.programs import ZOO, ZooProgram
from exla.units import format_bytes, parse_size
from tests.zoo.test_zoo import fixed_bytes, in_float64, size

CAPS = ("64MiB", "256MiB", "1GiB", "4GiB")
MOST_PLAIN_BYTES = 6 * 2**30
SLACK_BYTES = 8 * MIB
ROUNDS = 3
SLOW_S = 10.0
"""A program that takes longer is timed once."""
AS_FAR_OFF = 4.0
"""A value may be this many times as far from float64 as that of jax.jit in float32, or within the tolerance."""
LETTERS = {
    "obeyed": "o",
    "untouched": "u",
    "refused": "r",
    "wrong": "WRONG",
    "exceeded": "EXCEEDED",
    "error": "ERROR",
    "crash": "CRASH",
    "timeout": "TIME",
}
BAD = ("wrong", "exceeded", "error", "crash", "timeout")

Row = dict[str, Any]


# In the child process


def examine(name: str, caps: Sequence[int], ceiling_bytes: int) -> Iterator[Row]:
    """All rows of one program; call it in a fresh process."""
    resource.setrlimit(resource.RLIMIT_DATA, (ceiling_bytes, ceiling_bytes))
    program = ZOO[name]
    yield from _fitting(program, caps)
    if program.over is not None:
        arguments = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), program.arguments(program.over))
        fixed = fixed_bytes(program, arguments)
        for cap in caps:
            _, row = _planned(program, arguments, fixed + cap)
            yield {"kind": "over", "cap_bytes": cap, **row}


def _fitting(program: ZooProgram, caps: Sequence[int]) -> Iterator[Row]:
    arrays = program.arguments(program.fitting)
    want = in_float64(program.function, arrays)
    arguments = jax.block_until_ready(jax.device_put(arrays))
    fixed = fixed_bytes(program, arguments)
    compiled = jax.jit(program.function).lower(*arguments).compile()
    stats = compiled.memory_analysis()
    plain_bytes = stats.argument_size_in_bytes + stats.output_size_in_bytes + stats.temp_size_in_bytes
    rivals: dict[str, Callable[[], Any]] = {}
    plain_error, plain_mismatches = 0.0, 0.0
    if plain_bytes <= MOST_PLAIN_BYTES:
        rivals["jax"] = lambda: compiled(*arguments)
        plain_error, plain_mismatches = distance(rivals["jax"](), want)
    for cap in caps:
        f, row = _planned(program, arguments, fixed + cap)
        if row["status"] in ("obeyed", "untouched"):
            run = _caller(f, arguments)
            results, grown = isolate.growth(run)
            error, mismatches = distance(results, want)
            row |= {"error": error, "mismatches": mismatches, "growth_bytes": grown.growth_bytes}
            if "jax" in rivals:
                row |= {"jax_error": plain_error, "jax_mismatches": plain_mismatches}
            far = not error <= max(program.tolerance, AS_FAR_OFF * plain_error)
            allowed = cap + size(results) + SLACK_BYTES
            if far or mismatches > max(1e-4, AS_FAR_OFF * plain_mismatches):
                row["status"] = "wrong"
            elif grown.resettable and grown.growth_bytes > allowed:
                row["status"] = "exceeded"
            rivals[str(cap)] = run
        yield {"kind": "fitting", "cap_bytes": cap, **row}
    if "jax" in rivals and len(rivals) > 1:
        slowest = max(seconds_of(run) for run in rivals.values())
        seconds = alternate(rivals, rounds=1 if slowest > SLOW_S else ROUNDS)
        medians = {who: statistics.median(values) for who, values in seconds.items()}
        yield {"kind": "time", "status": "timed", "plain_bytes": plain_bytes, "median_s": medians, "seconds": seconds}


def _planned(program: ZooProgram, arguments: Any, limit: int) -> tuple[Any, Row]:
    """An exla function with a plan for these arguments, and the row that says how planning went."""
    import exla

    f = exla.jit(program.function, memory_limit=limit, records="off")
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            plan = f.plan(*arguments)
            row = {
                "status": "untouched" if plan.untouched else "obeyed",
                "compiled_bytes": plan.compiled_bytes,
                "projected_bytes": plan.projected_bytes,
                "decisions": [str(decision) for decision in plan.decisions],
            }
            if plan.compiled_bytes > limit:
                row["status"] = "exceeded"
        except exla.MemoryLimitError as error:
            row = {"status": "refused", "smallest_peak_bytes": error.smallest_peak_bytes, "message": str(error)}
        except Exception as error:
            row = {"status": "error", "message": f"{type(error).__name__}: {error}"[:2000]}
    said = [str(w.message) for w in caught if issubclass(w.category, exla.ExlaWarning)]
    return f, {"limit_bytes": limit, "plan_s": time.perf_counter() - start, "warnings": said, **row}


def _caller(f: Callable[..., Any], arguments: Any) -> Callable[[], Any]:
    return lambda: f(*arguments)


def distance(got: Any, want: Any) -> tuple[float, float]:
    """How far results are from float64.

    Returns:
      the largest difference of a float as a part of the largest value of its output, and the largest part of an output
      that differs where only equality counts: integers, and what is not finite.
    """
    error, mismatches = 0.0, 0.0
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        g = np.asarray(g)
        if not np.issubdtype(w.dtype, np.inexact):
            mismatches = max(mismatches, float(np.mean(g != w)) if w.size else 0.0)
            continue
        finite = np.isfinite(w)
        mismatches = max(mismatches, float(np.mean(finite != np.isfinite(g))) if w.size else 0.0)
        both = finite & np.isfinite(g)
        scale = max(float(np.max(np.abs(w), where=finite, initial=0)), 1e-30)
        error = max(error, float(np.max(np.abs(g.astype(w.dtype) - w), where=both, initial=0)) / scale)
    return error, mismatches


# In the parent


def run_program(name: str, caps: Sequence[int], timeout_s: float, ceiling_bytes: int) -> list[Row]:
    """The rows of one program, with rows of their own for what its process did not get to."""
    asked = json.dumps({"name": name, "caps": list(caps), "ceiling_bytes": ceiling_bytes})
    command = [sys.executable, "-m", "benchmarks.zoo", "--child", asked]
    start = time.perf_counter()
    try:
        child = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=timeout_s)
        output, said, lost = child.stdout, child.stderr, "crash" if child.returncode else None
        said = f"exit status {child.returncode}: {(said.splitlines() or [''])[-1]}\n{said[-1000:]}"
    except subprocess.TimeoutExpired as error:
        output, lost = (error.stdout or b"").decode(), "timeout"
        said = f"no answer within {timeout_s:.0f} s"
    rows = [json.loads(line) for line in output.splitlines() if line.startswith("{") and line.endswith("}")]
    there = {(row["kind"], row.get("cap_bytes")) for row in rows}
    wanted: list[tuple[str, int | None]] = [("fitting", cap) for cap in caps]
    if not any(kind == "over" for kind, _ in there):
        wanted.append(("time", None))
    if ZOO[name].over is not None:
        wanted += [("over", cap) for cap in caps]
    if lost is not None:
        missing = [key for key in wanted if key not in there]
        rows += [{"kind": kind, "cap_bytes": cap, "status": lost, "message": said} for kind, cap in missing]
    took = time.perf_counter() - start
    return [{"program": name, **row, "process_s": took} for row in rows]


def stored() -> tuple[Path | None, list[Row]]:
    """The latest file of these versions, and its rows; of rows of the same kind the last."""
    pattern = record.open_results("zoo").path.name.split("-")
    files = sorted(record.RESULTS.glob("-".join(["zoo-*", *pattern[4:]])))
    if not files:
        return None, []
    rows = [json.loads(line) for line in files[-1].read_text().splitlines()]
    return files[-1], list({(r["program"], r["kind"], r.get("cap_bytes")): r for r in rows}.values())


def show(rows: Sequence[Row]) -> None:
    """The table, how often each status occurred, and what went wrong."""
    console = record.console()
    caps = sorted({row["cap_bytes"] for row in rows if row.get("cap_bytes") is not None})
    shown = [format_bytes(cap) for cap in caps]
    table = Table(
        title="The zoo. o: obeyed, u: untouched, r: refused. Times are as parts of jax.jit's, at the size that fits",
        caption=f"columns of caps beside arguments and results: {', '.join(shown)}",
    )
    table.add_column("program")
    for column in ("fitting", "error", "jax.jit's", "plan s", "jax.jit s", "time, best", "worst", "over", "plan s"):
        table.add_column(column, justify="right")
    for name in dict.fromkeys(row["program"] for row in rows):
        mine = [row for row in rows if row["program"] == name]
        fitting, over = (
            sorted((r for r in mine if r["kind"] == kind), key=lambda r: r["cap_bytes"]) for kind in ("fitting", "over")
        )
        medians = next((r["median_s"] for r in mine if "median_s" in r), {})
        ratios = [s / medians["jax"] for who, s in medians.items() if who != "jax"]
        table.add_row(
            name,
            " ".join(LETTERS[r["status"]] for r in fitting),
            _most(fitting, "error", ".1e"),
            _most(fitting, "jax_error", ".1e"),
            _most(fitting, "plan_s", ".1f"),
            f"{medians['jax']:.3f}" if medians else "",
            f"{min(ratios):.2f}" if ratios else "",
            f"{max(ratios):.2f}" if ratios else "",
            " ".join(LETTERS[r["status"]] for r in over),
            _most(over, "plan_s", ".1f"),
        )
    console.print(table)
    counts = Table(title="How many programs")
    counts.add_column("size, cap")
    for status in LETTERS:
        counts.add_column(status, justify="right")
    for kind in ("fitting", "over"):
        for cap, label in zip(caps, shown, strict=True):
            found = [r["status"] for r in rows if r["kind"] == kind and r["cap_bytes"] == cap]
            counts.add_row(f"{kind}, {label}", *(str(found.count(status) or "") for status in LETTERS))
    console.print(counts)
    for row in rows:
        if row["status"] in BAD or row.get("warnings"):
            what = row.get("message") or "; ".join(row.get("warnings", ())) or f"error {row.get('error')}"
            at = format_bytes(row["cap_bytes"]) if row.get("cap_bytes") else ""
            first = what.strip().partition("\n")[0][:300]
            console.print(f"{row['program']}, {row['kind']} {at}: {row['status']}: {first}", markup=False)


def _most(rows: Sequence[Row], field: str, form: str) -> str:
    values = [row[field] for row in rows if row.get(field) is not None]
    return format(max(values), form) if values else ""


_ROOT = Path(__file__).resolve().parent.parent


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo")
    parser.add_argument("--names", nargs="+", default=list(ZOO), metavar="NAME", help="programs; default: all")
    parser.add_argument("--caps", nargs="+", default=CAPS, metavar="SIZE", help="bytes beside arguments and results")
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="start no program after this many seconds")
    parser.add_argument("--timeout-s", type=float, default=900, help="for each program")
    parser.add_argument("--ceiling", default="12GiB", help="memory of each process")
    parser.add_argument("--again", action="store_true", help="also what is in today's file")
    parser.add_argument("--table", action="store_true", help="print the table of what is stored, run nothing")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.child is not None:
        for row in examine(**json.loads(options.child)):
            print(json.dumps(row), flush=True)
        return 0
    unknown = [name for name in options.names if name not in ZOO]
    if unknown:
        parser.error(f"no program {', '.join(unknown)}; there are {', '.join(ZOO)}")
    if not options.table:
        _sweep(options)
    path, rows = stored()
    if path is not None:
        show(rows)
        record.console().print(f"from {path.relative_to(_ROOT)}")
    return int(any(row["status"] in BAD for row in rows))


def _sweep(options: argparse.Namespace) -> None:
    results = record.open_results("zoo")
    known = set()
    if results.path.exists() and not options.again:
        known = {json.loads(line)["program"] for line in results.path.read_text().splitlines()}
    caps, ceiling = [parse_size(cap, "--caps") for cap in options.caps], parse_size(options.ceiling, "--ceiling")
    start = time.perf_counter()
    for name in options.names:
        if name in known:
            continue
        if time.perf_counter() - start > options.budget_s:
            print("the budget is spent; start again to go on", file=sys.stderr)
            return
        rows = run_program(name, caps, options.timeout_s, ceiling)
        for row in rows:
            results.append(**row)
        said = " ".join(f"{row['kind']}:{row['status']}" for row in rows)
        print(f"{name} ({rows[-1]['process_s'] if rows else 0:.0f} s): {said}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
