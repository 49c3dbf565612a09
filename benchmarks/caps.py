"""Does exla keep its promise? Every program under every cap, and the time it costs.

    python -m benchmarks.caps [--programs kernel-d3,knn] [--caps 64,256,1024] [--no-time] [--quick]

**Memory.** For each program and each cap a fresh process plans the program with `memory_limit` = cap + arguments +
outputs, runs it once and reports how far the process grew (`benchmarks.isolate`), the byte counts of the plan, and the
values' error on a random sample of rows against float64 NumPy. The arguments are resident before the run, so the run
obeys when growth <= cap + outputs + `SLACK_BYTES`; the slack covers thread stacks and the allocator, and the noise
floor that is printed first must lie below it. Raising `MemoryLimitError` is allowed below `MUST_FIT_MIB`.

**Time.** In one process and taking turns, exla at its best cap against `lax.map` written by hand: first each of the
five chunk sizes is run, twice if it is not far behind the best; then exla and the best one alternate. The
hand version is taken twice: as a user gets it, and with the compiler option that exla may set (`FUSIONS_OFF`), so that
a gain from the option is not mistaken for one from the splitting. The plain program runs in a process that may have
`PLAIN_LIMIT_BYTES`.

Exits with 1 when a run exceeded its cap, gave wrong values, failed, or raised at or above `MUST_FIT_MIB`.
"""

import argparse
import functools
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from benchmarks import isolate, record
from benchmarks.isolate import MIB
from benchmarks.programs import BENCHMARKS, Benchmark
from benchmarks.tables import show_caps, show_times
from benchmarks.timing import alternate, screen, seconds_of

CAPS_MIB = (64, 256, 1024)
MUST_FIT_MIB = 256
SLACK_BYTES = 8 * MIB
PLAIN_LIMIT_BYTES = 12 * 2**30
ROUNDS = 5
QUICK_PROGRAMS = ("kernel-d3", "knn", "sinkhorn")
FUSIONS_OFF = {"xla_cpu_experimental_ynn_fusion_type": ""}


# In the child processes


def measure_cap(program: str, cap_mib: int, search: str) -> dict[str, Any]:
    """Plans and runs one program under one cap; call it in a fresh process.

    Returns:
      a JSON object with `status`: "ok", "raised", "exceeded" or "wrong", and the figures behind it.
    """
    import exla

    benchmark, arrays, arguments = load(program)
    output_bytes = bytes_of(jax.eval_shape(benchmark.function, *arguments))
    io_bytes = bytes_of(arguments) + output_bytes
    f = exla.jit(benchmark.function, search=search, memory_limit=cap_mib * MIB + io_bytes)
    start = time.perf_counter()
    try:
        plan = f.plan(*arguments)
    except exla.MemoryLimitError as error:
        return {"status": "raised", "plan_s": time.perf_counter() - start, "message": str(error)}
    plan_s = time.perf_counter() - start
    outputs, grown = isolate.growth(lambda: f(*arguments))
    error = benchmark.sample_check(arrays, outputs)
    allowed_bytes = cap_mib * MIB + output_bytes + SLACK_BYTES
    exceeded = grown.growth_bytes > allowed_bytes or (plan.compiled_bytes or 0) > plan.limit_bytes
    return {
        "status": "wrong" if not error <= benchmark.tolerance else "exceeded" if exceeded else "ok",
        "growth_bytes": grown.growth_bytes,
        "allowed_bytes": allowed_bytes,
        "resettable": grown.resettable,
        "io_bytes": io_bytes,
        "output_bytes": output_bytes,
        "limit_bytes": plan.limit_bytes,
        "projected_bytes": plan.projected_bytes,
        "compiled_bytes": plan.compiled_bytes,
        "measured_bytes": plan.measured_bytes,
        "error": error,
        "decisions": [str(decision) for decision in plan.decisions],
        "plan_s": plan_s,
        "run_s": min(seconds_of(lambda: f(*arguments)) for _ in range(2)),
    }


def time_against_hand(program: str, cap_mib: int, search: str, rounds: int) -> dict[str, Any]:
    """Times exla at one cap against the best of five hand-written chunk sizes, taking turns in this process."""
    import exla

    benchmark, _, arguments = load(program)
    io_bytes = bytes_of(arguments) + bytes_of(jax.eval_shape(benchmark.function, *arguments))
    f = exla.jit(benchmark.function, search=search, memory_limit=cap_mib * MIB + io_bytes)
    best: dict[str, int] = {}
    rivals: dict[str, Callable[[], Any]] = {"exla": functools.partial(f, *arguments)}
    screened: dict[str, dict[int, float]] = {}
    for label, options in (("hand", None), ("hand_option", FUSIONS_OFF)):
        hands = {
            chunk: functools.partial(compiled(benchmark.by_hand(chunk), arguments, options), *arguments)
            for chunk in benchmark.chunks
        }
        screened[label] = screen(hands)
        best[label] = min(hands, key=screened[label].__getitem__)
        rivals[label] = hands[best[label]]
    alternate(rivals, rounds=1)
    seconds = alternate(rivals, rounds=rounds)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "cap_mib": cap_mib,
        "seconds": seconds,
        "median_s": median,
        "best_chunk": best,
        "screened_s": screened,
        "ratio": median["exla"] / median["hand"],
        "ratio_option": median["exla"] / median["hand_option"],
    }


def measure_plain(program: str) -> dict[str, Any]:
    """Growth and seconds of `jax.jit` alone; dies when the process would need more than PLAIN_LIMIT_BYTES."""
    resource.setrlimit(resource.RLIMIT_DATA, (PLAIN_LIMIT_BYTES, PLAIN_LIMIT_BYTES))
    benchmark, _, arguments = load(program)
    run = functools.partial(compiled(benchmark.function, arguments, None), *arguments)
    _, grown = isolate.growth(run)
    return {"growth_bytes": grown.growth_bytes, "run_s": seconds_of(run)}


def load(program: str) -> tuple[Benchmark, tuple[Any, ...], list[jax.Array]]:
    benchmark = BENCHMARKS[program]
    arrays = benchmark.arguments(seed=0)
    return benchmark, arrays, jax.block_until_ready([jax.device_put(array) for array in arrays])


def compiled(function: Callable[..., Any], arguments: Sequence[Any], options: dict[str, Any] | None):
    return jax.jit(function, compiler_options=options).lower(*arguments).compile()


def bytes_of(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


# In the parent


def run_caps(programs: Sequence[str], caps_mib: Sequence[int], search: str, results: record.Results) -> list[dict]:
    rows = []
    for program in programs:
        for cap_mib in caps_mib:
            fields = _call("measure_cap", program=program, cap_mib=cap_mib, search=search)
            if fields["status"] == "raised" and cap_mib >= MUST_FIT_MIB:
                fields["status"] = "raised, must fit"
            rows.append({"kind": "cap", "program": program, "cap_mib": cap_mib, "search": search, **fields})
            results.append(**rows[-1])
            print(f"{program} at {cap_mib} MiB: {fields['status']}", file=sys.stderr)
    return rows


def run_times(cap_rows: Sequence[dict], search: str, rounds: int, results: record.Results) -> list[dict]:
    rows = []
    for program in dict.fromkeys(row["program"] for row in cap_rows):
        fits = [row for row in cap_rows if row["program"] == program and "run_s" in row]
        if not fits:
            continue
        cap_mib = min(fits, key=lambda row: row["run_s"])["cap_mib"]
        fields = _call("time_against_hand", program=program, cap_mib=cap_mib, search=search, rounds=rounds)
        plain = _call("measure_plain", program=program)
        rows.append({"kind": "time", "program": program, "search": search, **fields, "plain": plain})
        results.append(**rows[-1])
        print(f"{program}: {fields.get('ratio', float('nan')):.2f} of the hand-written version", file=sys.stderr)
    return rows


def _call(name: str, **arguments: Any) -> dict[str, Any]:
    try:
        return isolate.call(f"benchmarks.caps:{name}", timeout_s=1800, **arguments)
    except isolate.ChildError as error:
        print(error, file=sys.stderr)
        return {"status": "failed", "message": str(error).strip().splitlines()[-1]}


def _names(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"no program {', '.join(unknown)}; there are {', '.join(known)}")
        return names

    return parse


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.caps", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--programs", type=_names(list(BENCHMARKS)), default=tuple(BENCHMARKS), help="comma-separated")
    parser.add_argument(
        "--caps", type=lambda text: tuple(int(cap) for cap in text.split(",")), default=CAPS_MIB, help="MiB"
    )
    parser.add_argument("--search", default="analytic", help="exla.jit's search option")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="alternations in the timing")
    parser.add_argument("--no-time", action="store_true", help="memory and values only")
    parser.add_argument("--quick", action="store_true", help=f"{', '.join(QUICK_PROGRAMS)} at 256 MiB, untimed")
    options = parser.parse_args(argv)
    if options.quick:
        options.programs, options.caps, options.no_time = QUICK_PROGRAMS, (256,), True
    return options


def main(argv: Sequence[str] | None = None) -> int:
    options = _parse(argv)
    results = record.open_results("caps")
    console = record.console()
    floor = isolate.call("benchmarks.isolate:noise_floor")
    console.print(f"noise floor of the measurement: {floor['growth_bytes'] / MIB:.1f} MiB (slack {SLACK_BYTES // MIB})")
    results.append(kind="noise_floor", **floor)
    cap_rows = run_caps(options.programs, options.caps, options.search, results)
    show_caps(console, cap_rows)
    if not options.no_time:
        show_times(console, run_times(cap_rows, options.search, options.rounds, results))
    console.print(f"written to {results.path.relative_to(record.RESULTS.parent.parent)}")
    return int(any(row["status"] not in ("ok", "raised") for row in cap_rows))


if __name__ == "__main__":
    sys.exit(main())
