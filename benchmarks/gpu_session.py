"""What an attached GPU is asked, in one command of under nine minutes: tests, caps and peaks, times against jax.jit.

    JAX_PLATFORMS=cuda,cpu python -m benchmarks.gpu_session [--budget-s 500] [--platform cuda]

1. the tests that need a device (`tests/targets/test_attached.py`);
2. each of the eight benchmark programs under each cap, in a process of its own: `peak_bytes_in_use` of the allocator
   against `compiled_bytes`, values against float64 NumPy, and the time against `jax.jit` in turns.

One JSON line for each in `benchmarks/results/`, with the card and the versions. What the budget does not reach is left
out and said so. `--platform cpu` tries the command on a machine without one.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import isolate
from benchmarks.isolate import MIB
from benchmarks.programs import BENCHMARKS
from benchmarks.timing import alternate

CAPS_MIB = (64, 256, 1024)
ROUNDS = 7
_ROOT = Path(__file__).resolve().parent.parent


def measure(program: str, cap_mib: int) -> dict[str, Any]:
    """One program under one cap on the default device; call it in a fresh process."""
    import jax

    import exla
    from exla.overrun import SLACK_BYTES

    benchmark = BENCHMARKS[program]
    arrays = benchmark.arguments(seed=0)
    arguments = jax.block_until_ready([jax.device_put(a) for a in arrays])
    device = jax.devices()[0]
    f = exla.jit(benchmark.function, memory_limit=cap_mib * MIB, records="off")
    row: dict[str, Any] = {"card": device.device_kind, "cap_mib": cap_mib}
    start = time.perf_counter()
    try:
        plan = f.plan(*arguments)
    except exla.MemoryLimitError as refusal:
        return {**row, "status": "refused", "message": str(refusal)}
    row["plan_s"] = time.perf_counter() - start
    outputs = jax.block_until_ready(f(*arguments))
    peak = (device.memory_stats() or {}).get("peak_bytes_in_use")
    error = benchmark.sample_check(arrays, outputs)
    exceeded = peak is not None and peak > plan.compiled_bytes + SLACK_BYTES
    row |= {
        "status": "wrong" if not error <= benchmark.tolerance else "exceeded" if exceeded else "ok",
        "error": error,
        "projected_bytes": plan.projected_bytes,
        "compiled_bytes": plan.compiled_bytes,
        "peak_bytes_in_use": peak,
        "decisions": [str(d) for d in plan.decisions],
    }
    plain = jax.jit(benchmark.function)
    try:
        jax.block_until_ready(plain(*arguments))
    except jax.errors.JaxRuntimeError as refusal:
        return {**row, "plain": str(refusal).partition("\n")[0]}
    seconds = alternate({"exla": lambda: f(*arguments), "jax": lambda: plain(*arguments)}, rounds=ROUNDS)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    return {**row, "seconds": seconds, "median_s": median, "ratio": median["exla"] / median["jax"]}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget-s", type=float, default=500, help="seconds for everything")
    parser.add_argument("--platform", default="cuda", help="JAX's name of it")
    parser.add_argument("--programs", default=",".join(BENCHMARKS), help="comma-separated")
    parser.add_argument("--caps", default=",".join(map(str, CAPS_MIB)), help="MiB, comma-separated")
    parser.add_argument("--no-tests", action="store_true", help="measure only")
    options = parser.parse_args(argv)
    ends = time.monotonic() + options.budget_s
    os.environ["JAX_PLATFORMS"] = "cpu" if options.platform == "cpu" else f"{options.platform},cpu"

    from benchmarks import record

    results = record.open_results("gpu_session")
    failed = 0
    if not options.no_tests:
        command = [sys.executable, "-m", "pytest", "-q", "-rs", "tests/targets/test_attached.py"]
        child = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=options.budget_s)
        closing = (child.stdout.strip().splitlines() or [""])[-1]
        print(f"tests: {closing}", flush=True)
        results.append(kind="tests", status="ok" if child.returncode == 0 else "failed", message=child.stdout[-2000:])
        failed += child.returncode != 0
    for program in options.programs.split(","):
        for cap_mib in map(int, options.caps.split(",")):
            left = ends - time.monotonic()
            if left < 10:
                print(f"{program} at {cap_mib} MiB: left out, the time is up")
                continue
            try:
                row = isolate.call("benchmarks.gpu_session:measure", timeout_s=left, program=program, cap_mib=cap_mib)
            except isolate.ChildError as error:
                row = {"status": "failed", "cap_mib": cap_mib, "message": str(error)[-2000:]}
            results.append(kind="cap", program=program, **row)
            failed += row["status"] not in ("ok", "refused")
            ratio = f", {row['ratio']:.2f} of jax.jit" if "ratio" in row else ""
            print(f"{program} at {cap_mib} MiB: {row['status']}{ratio}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
