"""exla beside what its users would pick instead: PyTorch's chunker, KeOps, FAISS, scikit-learn, `lax.map` by hand.

    python -m benchmarks.rivals [--programs kernel-d3,knn] [--jobs 1]

Each of the eight programs of `benchmarks.programs` in a process of its own, on the GPU if there is one. Whoever has
something to set (exla a cap, the others rows of a chunk or mebibytes: `benchmarks.others`) tries three to five values
and keeps the fastest; then all take turns, and the medians are compared. Values are held against float64 NumPy on a
sample of rows. Memory is what was needed beside arguments: on a CPU the growth of a fresh process that runs the kept
setting once, on a GPU what the compiler counted, or PyTorch's allocator. KeOps and FAISS are not seen by the latter.

Libraries that are not installed are left out, and those that fail in a process of their own say so. One JSON line for
each program in `benchmarks/results/`.
"""

import argparse
import functools
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks import isolate, others
from benchmarks.isolate import MIB
from benchmarks.programs import BENCHMARKS
from benchmarks.timing import alternate, screen

CAPS_MIB = (64, 256, 1024)
ROUNDS = 5
FEW_ROWS = 64
"""Rows of every argument in the run that only loads a library, or has it compile."""
OWN = ("exla", "lax.map by hand", "jax.jit")


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One library with one setting.

    Attributes:
      run: computes the program.
      needs_bytes: a function from `run` to its result and what it needs beside the arguments, if that can be known
        without a process of its own.
    """

    run: Callable[[], Any]
    needs_bytes: Callable[[Callable[[], Any]], tuple[Any, int | None]]


def contenders(program: str, library: str) -> dict[int | None, Contender]:
    """A library's settings for a program, each compiled or loaded and ready to run."""
    benchmark = BENCHMARKS[program]
    arrays = benchmark.arguments(seed=0)
    if library not in OWN:
        make = others.OTHERS[library][program]
        few = others.settings(library, benchmark)[0]
        make([array[:FEW_ROWS] for array in arrays], few)()
        return {
            setting: Contender(run=make(arrays, setting), needs_bytes=_allocated(library))
            for setting in others.settings(library, benchmark)
        }
    return _own(benchmark, arrays, library)


def _own(benchmark: Any, arrays: Sequence[np.ndarray], library: str) -> dict[int | None, Contender]:
    import jax

    import exla

    arguments = jax.block_until_ready([jax.device_put(array) for array in arrays])
    if library == "exla":
        results = sum(
            s.size * s.dtype.itemsize for s in jax.tree.leaves(jax.eval_shape(benchmark.function, *arguments))
        )
        fixed = results + sum(a.nbytes for a in arguments)
        found: dict[int | None, Contender] = {}
        for cap in CAPS_MIB:
            split = exla.jit(benchmark.function, memory_limit=cap * MIB + fixed, records="off")
            try:
                plan = split.plan(*arguments)
            except exla.MemoryLimitError:
                continue
            needs = plan.compiled_bytes - fixed + results
            found[cap] = Contender(run=functools.partial(split, *arguments), needs_bytes=_counted(needs))
        return found
    by_chunk = {chunk: benchmark.by_hand(chunk) for chunk in benchmark.chunks}
    functions = by_chunk if library == "lax.map by hand" else {None: benchmark.function}
    ready: dict[int | None, Contender] = {}
    for setting, function in functions.items():
        compiled = jax.jit(function).lower(*arguments).compile()
        counted = compiled.memory_analysis()
        needs = counted.temp_size_in_bytes + counted.output_size_in_bytes
        ready[setting] = Contender(run=functools.partial(compiled, *arguments), needs_bytes=_counted(needs))
    return ready


def _counted(needs: int) -> Callable[[Callable[[], Any]], tuple[Any, int | None]]:
    return lambda run: (run(), needs)


def _allocated(library: str) -> Callable[[Callable[[], Any]], tuple[Any, int | None]]:
    """What PyTorch's allocator handed out on the GPU, for those who ask it."""

    def needs(run: Callable[[], Any]) -> tuple[Any, int | None]:
        if not library.startswith("PyTorch"):
            return run(), None
        import torch

        if not torch.cuda.is_available():
            return run(), None
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        outputs = run()
        return outputs, torch.cuda.max_memory_allocated() - before

    return needs


def alone(program: str, library: str, setting: int | None) -> dict[str, Any]:
    """One library with one setting, run once: how far the process grew, which has to be a fresh one."""
    contender = contenders(program, library)[setting]
    _, grown = isolate.growth(contender.run)
    return {"growth_bytes": grown.growth_bytes, "resettable": grown.resettable}


def compete(program: str, libraries: Sequence[str], clock: str) -> dict[str, Any]:
    """All libraries in turns, each with the fastest of its settings."""
    import jax

    from benchmarks.gpu_session import hold

    benchmark = BENCHMARKS[program]
    arrays = benchmark.arguments(seed=0)
    ready = {library: contenders(program, library) for library in libraries}
    hold(clock)
    kept: dict[str, Any] = {}
    rivals: dict[str, Callable[[], Any]] = {}
    for library, by_setting in ready.items():
        row: dict[str, Any] = {}
        failed: dict[int | None, str] = {}
        screened = screen({setting: contender.run for setting, contender in by_setting.items()}, failed)
        if screened:
            setting = min(screened, key=screened.__getitem__)
            outputs, needs = by_setting[setting].needs_bytes(by_setting[setting].run)
            error = benchmark.sample_check(arrays, others.as_numpy(outputs))
            rivals[library] = by_setting[setting].run
            row = {"setting": setting, "needs_bytes": needs, "error": float(error), "screened_s": screened}
        kept[library] = {**row, "failed": failed}
    seconds = alternate(rivals, rounds=ROUNDS)
    for library, taken in seconds.items():
        kept[library] |= {"seconds": taken, "median_s": statistics.median(taken)}
    return {"card": jax.devices()[0].device_kind, "libraries": kept}


def works(library: str) -> dict[str, Any]:
    """Whether a library computes its first program on a few rows; it may end its process."""
    program, make = next(iter(others.OTHERS[library].items()))
    benchmark = BENCHMARKS[program]
    make([array[:FEW_ROWS] for array in benchmark.arguments(seed=0)], others.settings(library, benchmark)[0])()
    return {"status": "ok"}


def _working(libraries: Sequence[str], say: Callable[..., None]) -> list[str]:
    found = []
    for library in libraries:
        if not others.is_installed(library):
            say(kind="library", library=library, status="not installed")
            continue
        try:
            isolate.call("benchmarks.rivals:works", timeout_s=150, library=library)
        except (isolate.ChildError, subprocess.TimeoutExpired) as error:
            say(kind="library", library=library, status="failed", message=str(error)[-1500:])
        else:
            found.append(library)
    return found


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """A line for each program and library: seconds, how many times exla's, memory and error."""
    shown = Table(title="in turns, each with the fastest of its settings")
    for column in ("program", "library", "setting", "seconds", "times exla's", "MiB", "error"):
        shown.add_column(column)
    for row in rows:
        ours = row["libraries"]["exla"].get("median_s", float("nan"))
        for library, one in row["libraries"].items():
            if "median_s" not in one:
                shown.add_row(row["program"], library, "", "failed", "", "", "")
                continue
            needs = one.get("growth_bytes", one["needs_bytes"])
            shown.add_row(
                row["program"],
                library,
                str(one["setting"] or ""),
                f"{one['median_s']:.3g}",
                f"{one['median_s'] / ours:.2f}",
                "" if needs is None else f"{needs / MIB:.0f}",
                f"{one['error']:.1e}",
            )
    return shown


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", default=",".join(BENCHMARKS), help="of the eight, comma-separated")
    parser.add_argument("--libraries", default=",".join(others.OTHERS), help="besides JAX, comma-separated")
    parser.add_argument("--jobs", type=int, default=1, help="programs that compile at a time; one runs")
    parser.add_argument("--clock", help="lock that is held while anything runs (default: one of this command's)")
    parser.add_argument("--timeout-s", type=float, default=3600, help="seconds for one program")
    options = parser.parse_args(argv)

    import tempfile

    import jax

    from benchmarks import record

    results, console = record.open_results("rivals"), record.console()
    is_cpu = jax.default_backend() == "cpu"
    clock = options.clock or str(Path(tempfile.mkdtemp(prefix="exla-")) / "clock")
    telling = threading.Lock()

    def say(**fields: Any) -> None:
        with telling:
            results.append(**fields)
            console.print(" ".join(str(fields[k]) for k in ("program", "library", "status") if k in fields))

    working = _working([name for name in options.libraries.split(",") if name], say)

    def one(program: str) -> dict[str, Any] | None:
        names = [*OWN, *(library for library in working if program in others.OTHERS[library])]
        try:
            row = isolate.call(
                "benchmarks.rivals:compete", timeout_s=options.timeout_s, program=program, libraries=names, clock=clock
            )
            for library, kept in row["libraries"].items():
                if is_cpu and "setting" in kept:
                    kept |= isolate.call(
                        "benchmarks.rivals:alone", program=program, library=library, setting=kept["setting"]
                    )
        except (isolate.ChildError, subprocess.TimeoutExpired) as error:
            say(kind="program", program=program, status="failed", message=str(error)[-1500:])
            return None
        say(kind="program", program=program, status="ok", **row)
        return {"program": program, **row}

    with ThreadPoolExecutor(options.jobs) as pool:
        rows = [row for row in pool.map(one, options.programs.split(",")) if row is not None]
    console.print(table(rows))
    return int(len(rows) < len(options.programs.split(",")))


if __name__ == "__main__":
    sys.exit(main())
