"""What planning costs beside compiling: the first time, and in a second process that finds records.

    python -m benchmarks.planning [--names chamfer attention] [--search analytic]

Every program of the zoo at the size `fitting`, with room for a quarter of the temporaries that exla projects for it, so
that most have to be split; from shapes alone. What is counted is the time of the search without that in which the
candidates are lowered and compiled; and what the whole search takes beyond what jax.jit takes to lower and compile the
program as it is (the overhead of a first call). Each program is planned in a fresh process after one small program
(imports, registries, weights), with records of its own; then again in another one, which replays under the limit of
the first.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import exla
from benchmarks import isolate, record
from exla.datasets.profiling.zoo.programs import ZOO

SHARE = 1 / 4


def _kernel_sums(x: jax.Array) -> jax.Array:
    """A small program of which one rule applies, so that planning it loads the rules too."""
    return jnp.sum(jnp.exp(-jnp.sum((x[:, None] - x[None]) ** 2, axis=-1)), axis=1)


def measure(name: str, search: str, directory: str, limit_bytes: int | None = None) -> dict[str, Any]:
    """Plan one program, in a process of its own; without a limit under one that is projected first."""
    os.environ["EXLA_RECORDS_DIR"] = str(Path(directory) / "warm")
    row_sums = exla.jit(_kernel_sums, memory_limit="200KiB", search=search)
    row_sums.plan(jax.ShapeDtypeStruct((400, 2), jnp.float32))
    os.environ["EXLA_RECORDS_DIR"] = directory
    program = ZOO[name]
    arguments = program.arguments(program.fitting)
    if limit_bytes is None:
        probe = exla.jit(program.function, records="off").space(*arguments).root.peak
        room = probe.bytes - probe.arguments_bytes - probe.outputs_bytes
        limit_bytes = probe.arguments_bytes + probe.outputs_bytes + int(room * SHARE)
    f = exla.jit(program.function, memory_limit=limit_bytes, search=search)
    try:
        plan = f.plan(*arguments)
    except exla.MemoryLimitError:
        return {"status": "refused"}
    begin = time.perf_counter()
    jax.jit(program.function).lower(*arguments).compile()
    plain_s = time.perf_counter() - begin
    compiled = sum(t.compile_s or 0.0 for t in plan.tried)
    return {
        "status": "untouched" if plan.untouched else "rewritten",
        "source": plan.source,
        "limit_bytes": limit_bytes,
        "search_s": plan.search_s,
        "compile_s": compiled,
        "planning_s": plan.search_s - compiled,
        "plain_s": plain_s,
        "overhead_s": plan.search_s - plain_s,
        "candidates": len(plan.tried),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", nargs="+", default=list(ZOO), metavar="NAME", help="programs; default: all")
    parser.add_argument("--search", default="analytic", help="exla.jit's search option")
    arguments = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # modules are compiled once, as where exla is installed
    results = record.open_results("planning")
    found: dict[str, list[tuple[float, float]]] = {"search": [], "record": []}
    for name in arguments.names:
        with tempfile.TemporaryDirectory() as directory:
            limit = None
            for process in ("first", "second"):
                row = isolate.call(
                    "benchmarks.planning:measure",
                    name=name,
                    search=arguments.search,
                    directory=directory,
                    limit_bytes=limit,
                )
                limit = row.get("limit_bytes")
                results.append(program=name, process=process, search=arguments.search, **row)
                if row["status"] == "refused":
                    print(f"{name:28s} {process:6s} refused")
                    break
                if row["status"] == "rewritten":
                    found[row["source"]].append((row["planning_s"], row["overhead_s"]))
                print(
                    f"{name:28s} {process:6s} {row['status']:10s} {row['source']:7s} {row['planning_s'] * 1e3:8.1f} ms "
                    f"beside {row['compile_s'] * 1e3:8.1f} ms of compiling {row['candidates']}",
                    flush=True,
                )
    for source, times in found.items():
        if times:
            for what, values in zip(("planning", "overhead"), zip(*times, strict=True), strict=True):
                median, worst = statistics.median(values), max(values)
                print(f"{source}: {what} of {len(values)} programs: median {median:.3f} s, worst {worst:.3f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
