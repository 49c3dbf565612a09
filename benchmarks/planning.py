"""What planning costs beside compiling: the first time, and in a second process that finds records.

    python -m benchmarks.planning [--names chamfer attention] [--search analytic] [--target tpu:v5e --megabytes 1000]

Every program of the zoo at the size `fitting`, or at which its values take as many megabytes as are given (a TPU keeps
on its chip what small programs make, so that nothing has to be split), with room for a quarter of the temporaries that
exla projects for it, so that most have to be split; from shapes alone. What is counted is the time of the search
without that in which the candidates are lowered and compiled; and what the whole search takes beyond what jax.jit takes
to lower and compile the program as it is (the overhead of a first call); for a target that is not the CPU, than exla
takes to compile it as it is, without a limit. Each program is planned in a fresh process after one small program
(imports, registries, weights), with records of its own; then again in another one, which replays under the limit of the
first.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import exla
from benchmarks import isolate, record
from exla.datasets.profiling.campaign import Instance, family_of
from exla.datasets.profiling.prepare import prepare
from exla.datasets.profiling.zoo.programs import ZOO

SHARE = 1 / 4


def _kernel_sums(x: jax.Array) -> jax.Array:
    """A small program of which one rule applies, so that planning it loads the rules too."""
    return jnp.sum(jnp.exp(-jnp.sum((x[:, None] - x[None]) ** 2, axis=-1)), axis=1)


def size_of(name: str, target: str, megabytes: float | None) -> int:
    """The scale at which the values of a program take about so many megabytes; None = `fitting`."""
    if megabytes is None:
        return ZOO[name].fitting
    return prepare(Instance(family=family_of(name), program=name, megabytes=megabytes, share=SHARE), target).size


def _plain_s(function: Callable[..., Any], arguments: tuple[Any, ...], target: str) -> float:
    """Seconds that the program takes to be lowered and compiled as it is."""
    if target != "cpu":
        return exla.jit(function, target=target, records="off").plan(*arguments).search_s
    begin = time.perf_counter()
    jax.jit(function).lower(*arguments).compile()
    return time.perf_counter() - begin


def measure(
    name: str, search: str, target: str, size: int, directory: str, limit_bytes: int | None = None
) -> dict[str, Any]:
    """Plan one program, in a process of its own; without a limit under one that is projected first."""
    os.environ["EXLA_RECORDS_DIR"] = str(Path(directory) / "warm")
    row_sums = exla.jit(_kernel_sums, memory_limit="200KiB", search=search, target=target)
    row_sums.plan(jax.ShapeDtypeStruct((400, 2), jnp.float32))
    os.environ["EXLA_RECORDS_DIR"] = directory
    program = ZOO[name]
    arguments = program.arguments(size)
    if limit_bytes is None:
        probe = exla.jit(program.function, records="off", target=target).space(*arguments).root.peak
        room = probe.bytes - probe.arguments_bytes - probe.outputs_bytes
        limit_bytes = probe.arguments_bytes + probe.outputs_bytes + int(room * SHARE)
    f = exla.jit(program.function, memory_limit=limit_bytes, search=search, target=target)
    try:
        plan = f.plan(*arguments)
    except exla.MemoryLimitError:
        return {"status": "refused"}
    except jax.errors.JaxRuntimeError as error:  # of the program as it is
        return {"status": "does not compile", "error": str(error).partition("\n")[0]}
    plain_s = _plain_s(program.function, arguments, target)
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
    parser.add_argument("--target", default="cpu", help="exla.jit's target; default: cpu")
    parser.add_argument(
        "--megabytes", type=float, help="what the values of a program take; default: its size `fitting`"
    )
    arguments = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # modules are compiled once, as where exla is installed
    results = record.open_results("planning")
    found: dict[str, list[tuple[float, float]]] = {"search": [], "record": []}
    for name in arguments.names:
        size = size_of(name, arguments.target, arguments.megabytes)
        with tempfile.TemporaryDirectory() as directory:
            limit = None
            for process in ("first", "second"):
                row = isolate.call(
                    "benchmarks.planning:measure",
                    name=name,
                    search=arguments.search,
                    target=arguments.target,
                    size=size,
                    directory=directory,
                    limit_bytes=limit,
                )
                limit = row.get("limit_bytes")
                results.append(
                    program=name,
                    size=size,
                    process=process,
                    search=arguments.search,
                    target=arguments.target,
                    **row,
                )
                if row["status"] in ("refused", "does not compile"):
                    print(f"{name:28s} {process:6s} {row['status']}")
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
