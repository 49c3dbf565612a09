"""What an attached GPU is asked, in one command of under nine minutes: tests, caps and peaks, times, and a campaign.

    JAX_PLATFORMS=cuda,cpu python -m benchmarks.gpu_session [--budget-s 500] [--jobs 12] [--campaign FOLDER]

1. the tests that need a device (`tests/targets/test_attached.py`);
2. the programs of `benchmarks.targets` under 1/64 of what they take, then the eight at their natural sizes under each
   cap, each in a process of its own: `peak_bytes_in_use` of the allocator against `compiled_bytes`, values against
   `jax.jit`'s or against float64 NumPy, and the time against `jax.jit` in turns;
3. `benchmarks/campaigns/gpu.toml`, for the rest of the budget: candidates profiled for the card's split data set.

What compiles does so beside the others, what runs is alone on the card. XLA's autotuner would run things and take
memory while it compiles, so that it is off, for both rivals; with --autotune it is on, everything is done one after
another, and peaks are not compared, for they are the autotuner's. One JSON line for each measurement in
`benchmarks/results/`, with the card and the versions. What the budget does not reach is left out and said so.
`--platform cpu` tries the command on a machine without a GPU.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import filelock
import numpy as np

from benchmarks import isolate
from benchmarks.isolate import MIB
from benchmarks.programs import BENCHMARKS
from benchmarks.timing import alternate

CAPS_MIB = (64, 256, 1024)
ROUNDS = 7
NO_AUTOTUNING = "--xla_gpu_autotune_level=0"
TF32 = 5e-3
"""Error that is no mistake on a GPU: unless told otherwise it multiplies float32 in TF32, which has 10 bits."""
NETWORK_SIZE = 4
"""Times what `benchmarks.networks` has on two cores: tokens, nodes, images."""
MEASURES = {
    "large": "benchmarks.gpu_session:measure_large",
    "cap": "benchmarks.gpu_session:measure",
    "network": "benchmarks.gpu_session:measure_network",
}
"""Kind of measurement -> what makes it in a process of its own."""
UNITS = {"cap_mib": " MiB", "share": ""}
"""Of what a program is given."""
CELL_S = 150
"""Seconds after which one program is given up."""
LAST_S = 35
"""Seconds before the end after which no instance of the campaign begins."""
_ROOT = Path(__file__).resolve().parent.parent


def hold(clock: str) -> None:
    """Take the clock until this process has ended, and its memory is free."""
    lock = filelock.FileLock(clock)
    lock.acquire()
    _HELD.append(lock)  # one that nobody refers to is released


_HELD: list[filelock.BaseFileLock] = []


def peaked(device: Any, counted_bytes: int) -> dict[str, Any]:
    """The most that was ever in use on a device, and whether it is more than was counted."""
    from exla.overrun import SLACK_BYTES, most_handed_out

    stats = device.memory_stats() or {}
    peak, most = stats.get("peak_bytes_in_use"), most_handed_out(counted_bytes, stats)
    is_known = peak is not None and NO_AUTOTUNING in os.environ.get("XLA_FLAGS", "")
    return {
        "peak_bytes_in_use": peak,
        "grows": most > counted_bytes,
        "exceeded": is_known and peak > most + SLACK_BYTES,
    }


def rivals(exla_runs: Callable[[], Any], jax_runs: Callable[[], Any]) -> dict[str, Any]:
    """Seconds of both in turns, their medians and the ratio of these."""
    seconds = alternate({"exla": exla_runs, "jax": jax_runs}, rounds=ROUNDS)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    return {"seconds": seconds, "median_s": median, "ratio": median["exla"] / median["jax"]}


def measure(program: str, cap_mib: int, clock: str) -> dict[str, Any]:
    """One of the eight programs under one cap on the default device; call it in a fresh process."""
    import jax

    import exla

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
    row |= {"plan_s": time.perf_counter() - start, "projected_bytes": plan.projected_bytes}
    row |= {"compiled_bytes": plan.compiled_bytes, "decisions": [str(d) for d in plan.decisions]}
    hold(clock)
    outputs = jax.block_until_ready(f(*arguments))
    row |= peaked(device, plan.compiled_bytes)
    error = benchmark.sample_check(arrays, outputs)
    plain = jax.jit(benchmark.function)
    try:
        wants = jax.block_until_ready(plain(*arguments))
    except jax.errors.JaxRuntimeError as refusal:
        row["plain"] = str(refusal).partition("\n")[0]
    else:
        row["plain_error"] = benchmark.sample_check(arrays, wants)
        row |= rivals(lambda: f(*arguments), lambda: plain(*arguments))
    return {**row, "error": error, "status": _status(row, "ok" if error <= max(benchmark.tolerance, TF32) else "wrong")}


def measure_large(program: str, clock: str) -> dict[str, Any]:
    """One program of `benchmarks.targets` under its cap on the attached card; call it in a fresh process."""
    import jax

    from benchmarks import targets
    from exla.call import read
    from exla.search.allowed import allowed_for
    from exla.search.values import difference
    from exla.targets.base import find_target

    target = find_target(None)
    row, split, plainly = targets.compiled(program, target.name)
    if split is None:
        return row
    device, (function, structs) = jax.devices()[0], targets.programs()[program]
    generator = np.random.default_rng(0)
    if program in targets.FROM_ZOO:
        from exla.datasets.profiling.zoo.programs import ZOO

        arrays = ZOO[program].arguments(ZOO[program].over)
    else:
        arrays = tuple(generator.random(s.shape, dtype=np.float32) for s in structs)
    arguments = jax.block_until_ready(jax.device_put(arrays))
    hold(clock)
    outputs = jax.block_until_ready(split(*arguments))
    row |= {"card": device.device_kind, **peaked(device, row["compiled_bytes"])}
    found, benchmark = "unchecked", BENCHMARKS.get(program)
    if benchmark is not None:
        row["error"] = benchmark.sample_check(arrays, outputs)
        found = "ok" if row["error"] <= max(benchmark.tolerance, TF32) else "wrong"
    if plainly is not None:
        flat = jax.tree.leaves(arguments)
        try:
            wants = jax.block_until_ready(plainly(*flat))
        except jax.errors.JaxRuntimeError as refusal:
            row["plain"] = str(refusal).partition("\n")[0]
        else:
            got, want = ([np.asarray(x) for x in jax.tree.leaves(r)] for r in (outputs, wants))
            row["difference"], row["different"] = map(float, difference(want, got))
            if benchmark is None:
                most = allowed_for(read(jax.make_jaxpr(function)(*structs))).most_different
                found = "ok" if row["difference"] <= TF32 and row["different"] <= most else "differs"
            row |= rivals(lambda: split(*arguments), lambda: plainly(*flat))
    return {**row, "status": _status(row, found)}


def measure_network(program: str, share: float, clock: str) -> dict[str, Any]:
    """One of `benchmarks.networks` under a share of its memory on the attached card; call it in a fresh process."""
    import jax

    from benchmarks import networks

    size = 1 if jax.default_backend() == "cpu" else NETWORK_SIZE
    row, split, plain = networks.planned(program, share, size)
    if split is None:
        return row
    there = jax.block_until_ready(jax.device_put(networks.NETWORKS[program].arguments(size)))
    hold(clock)
    got = jax.block_until_ready(split(*there))
    device = jax.devices()[0]
    row |= {"card": device.device_kind, **peaked(device, row["compiled_bytes"])}
    row["error"] = networks.errors(program, size, {"exla": got, "jax": plain(*there)})
    row |= rivals(lambda: split(*there), lambda: plain(*there))
    return {**row, "status": _status(row, "ok" if row["error"]["exla"] <= TF32 else "differs")}


def _status(row: dict[str, Any], found: str) -> str:
    return "exceeded" if row["exceeded"] and found != "wrong" else found


def tests(timeout_s: float) -> dict[str, Any]:
    """The tests that need a device."""
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "tests/targets/test_attached.py"]
    child = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=timeout_s)
    return {"status": "ok" if child.returncode == 0 else "failed", "message": child.stdout[-2000:]}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget-s", type=float, default=500, help="seconds for everything")
    parser.add_argument("--platform", default="cuda", help="JAX's name of it")
    parser.add_argument(
        "--jobs", type=int, default=max(2, len(os.sched_getaffinity(0)) - 2), help="processes at a time"
    )
    parser.add_argument("--programs", default=",".join(BENCHMARKS), help="of the eight, comma-separated")
    parser.add_argument("--caps", default=",".join(map(str, CAPS_MIB)), help="MiB, comma-separated")
    parser.add_argument("--networks", default=None, help="of benchmarks.networks, comma-separated (default: all)")
    parser.add_argument("--large", default=None, help="of benchmarks.targets, comma-separated (default: all)")
    parser.add_argument("--autotune", action="store_true", help="leave XLA's autotuner on, one program after another")
    parser.add_argument("--no-tests", action="store_true", help="measure only")
    parser.add_argument("--clock", help="lock that is held while anything runs (default: one of this command's)")
    parser.add_argument("--campaign", type=Path, help="folder of the campaign (default: none is run)")
    options = parser.parse_args(argv)
    ends = time.monotonic() + options.budget_s
    os.environ["JAX_PLATFORMS"] = "cpu" if options.platform == "cpu" else f"{options.platform},cpu"
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # processes share the card
    if not options.autotune:
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {NO_AUTOTUNING}".strip()

    from benchmarks import networks, record, targets

    results = record.open_results("gpu_session")
    clock = options.clock or str(Path(tempfile.mkdtemp(prefix="exla-")) / "clock")
    large = list(targets.programs()) if options.large is None else [n for n in options.large.split(",") if n]
    deep = list(networks.NETWORKS) if options.networks is None else [n for n in options.networks.split(",") if n]
    cells: list[tuple[str, str, dict[str, float]]] = [] if options.no_tests else [("tests", "", {})]
    cells += [("large", name, {}) for name in large]
    for name in deep:
        cells += [("network", name, {"share": share}) for share in networks.SHARES]
    for name in filter(None, options.programs.split(",")):
        cells += [("cap", name, {"cap_mib": int(c)}) for c in options.caps.split(",")]
    telling = threading.Lock()

    def one(cell: tuple[str, str, dict[str, float]]) -> bool:
        kind, program, asked = cell
        left = ends - time.monotonic()
        if left < 10:
            row: dict[str, Any] = {"status": "left out, the time is up"}
        else:
            try:
                if kind == "tests":
                    row = tests(left)
                else:
                    most_s = min(left, CELL_S)
                    row = isolate.call(MEASURES[kind], timeout_s=most_s, program=program, clock=clock, **asked)
            except (isolate.ChildError, subprocess.TimeoutExpired) as error:
                row = {"status": "failed", "message": str(error)[-2000:]}
        with telling:
            results.append(kind=kind, program=program, **asked | row)
            ratio = f", {row['ratio']:.2f} of jax.jit" if "ratio" in row else ""
            under = "".join(f" at {value}{UNITS[name]}" for name, value in asked.items())
            print(f"{kind} {program}{under}: {row['status']}{ratio}", flush=True)
        return row["status"] not in ("wrong", "differs", "exceeded", "failed")

    with ThreadPoolExecutor(1 if options.autotune else options.jobs) as pool:
        sound = all(list(pool.map(one, cells)))
    if options.campaign is not None:
        profile(options.campaign, options.jobs, ends - LAST_S - time.monotonic())
    return int(not sound)


def profile(folder: Path, jobs: int, seconds: float) -> None:
    """Profile candidates on the attached card, until the seconds are up."""
    from exla.datasets.profiling.campaign import read_campaign
    from exla.datasets.profiling.run import Folder, folder_name, run_campaign
    from exla.targets.base import find_target

    card = find_target(None).fingerprint()["target"]
    campaign = read_campaign(Path(__file__).resolve().parent / "campaigns" / "gpu.toml")
    campaign = replace(campaign, name=folder_name(card), target=card)
    left = run_campaign(Folder.open(folder, campaign), jobs=jobs, seconds=seconds)
    print(f"{left} instances of {campaign.name} are left")


if __name__ == "__main__":
    sys.exit(main())
