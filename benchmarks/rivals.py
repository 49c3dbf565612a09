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
import contextlib
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

from rich.table import Table

from benchmarks import caps, isolate, others
from benchmarks.isolate import MIB
from benchmarks.programs import BENCHMARKS
from benchmarks.timing import alternate, screen

ROUNDS = 5
FEW_ROWS = 64
"""Rows of every argument in the run that only loads a library, or has it compile."""
OWN = ("exla", "lax.map by hand", "jax.jit")
ANY = object()
"""Not one setting, but all of them."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One library with one setting.

    Attributes:
      run: computes the program.
      counted_bytes: what the compiler counted beside the arguments, if one did.
    """

    run: Callable[[], Any]
    counted_bytes: int | None = None


def contenders(program: str, library: str, only: Any = ANY) -> dict[int | None, Contender]:
    """A library's settings for a program, or one of them, each compiled or loaded and ready to run."""
    if library in OWN:
        return _own(program, library, only)
    benchmark = BENCHMARKS[program]
    arrays = benchmark.arguments(seed=0)
    make, settings = others.OTHERS[library][program], others.settings(library, benchmark)
    make([array[:FEW_ROWS] for array in arrays], settings[0])()
    return {setting: Contender(run=make(arrays, setting)) for setting in settings if only in (ANY, setting)}


def _own(program: str, library: str, only: Any) -> dict[int | None, Contender]:
    import jax

    import exla

    benchmark, _, arguments = caps.load(program)
    results = caps.bytes_of(jax.eval_shape(benchmark.function, *arguments))
    fixed = results + caps.bytes_of(arguments)
    settings = {"exla": caps.CAPS_MIB, "lax.map by hand": benchmark.chunks, "jax.jit": (None,)}[library]
    found: dict[int | None, Contender] = {}
    for setting in settings:
        if only not in (ANY, setting):
            continue
        if library == "exla":
            split = exla.jit(benchmark.function, memory_limit=setting * MIB + fixed, records="off")
            with contextlib.suppress(exla.MemoryLimitError):
                counted = split.plan(*arguments).compiled_bytes - fixed + results
                found[setting] = Contender(run=functools.partial(split, *arguments), counted_bytes=counted)
            continue
        function = benchmark.function if setting is None else benchmark.by_hand(setting)
        compiled = caps.compiled(function, arguments, None)
        said = compiled.memory_analysis()
        counted = said.temp_size_in_bytes + said.output_size_in_bytes
        found[setting] = Contender(run=functools.partial(compiled, *arguments), counted_bytes=counted)
    return found


def run_and_allocated(run: Callable[[], Any], library: str) -> tuple[Any, int | None]:
    """A result, and what PyTorch's allocator handed out for it on the GPU, for those who ask it."""
    if not library.startswith("PyTorch"):
        return run(), None
    import torch

    if not torch.cuda.is_available():
        return run(), None
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    outputs = run()
    return outputs, torch.cuda.max_memory_allocated() - before


def alone(program: str, library: str, setting: int | None) -> dict[str, Any]:
    """One library with one setting, run once: how far the process grew, which has to be a fresh one."""
    (contender,) = contenders(program, library, setting).values()
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
            chosen = by_setting[setting]
            outputs, allocated = run_and_allocated(chosen.run, library)
            needs = allocated if chosen.counted_bytes is None else chosen.counted_bytes
            error = benchmark.sample_check(arrays, others.as_numpy(outputs))
            rivals[library] = chosen.run
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
