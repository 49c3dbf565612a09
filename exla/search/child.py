"""The other side of `exla.search.measure`: the process in which programs run that are measured.

    python -m exla.search.child JOB

JOB is a JSON file beside the StableHLO of the programs (`jax.export`) and the values of their constants (.npy, read
without pickle). Arguments are made up: numbers between 1/4 and 1, and zeros for integers, which are indices as often
as not. What was found is printed as one line of JSON.

Two kinds of job. "memory" runs one program once, and says how far the process grew. "time" runs one or two programs in
turns, the reference first: their values are compared before anything is timed, and the turns end when the medians are
known well enough, the seconds are up, or the candidate is hopeless.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import json
import math
import os
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from exla.errors import MeasureError
from exla.search.values import Allowed, compare, made_up

PRECISE = 0.03
"""Half the confidence interval of the median, as a part of it, that ends the turns."""
LEAST_ROUNDS = 5
MOST_ROUNDS = 200
HOPELESS = 3.0
"""A candidate that takes so many times the best is timed once and no more."""
ORPHAN_S = 0.5
"""How often a process looks whether its parent is still there."""


@dataclass(frozen=True, kw_only=True)
class Growth:
    """How far one process grew while a function ran.

    Attributes:
      growth_bytes: largest resident size during the run minus the resident size before it. What the function returns
        is part of it.
      before_bytes: resident size before the run.
      resettable: whether the high-water mark could be lowered before the run; if not, growth is an upper bound.
    """

    growth_bytes: int
    before_bytes: int
    resettable: bool


def growth(run: Callable[[], Any]) -> tuple[Any, Growth]:
    """Call `run` once, wait for its arrays, and return them with the growth of this process."""
    ctypes.CDLL(None).malloc_trim(0)  # what the compiler has freed would be used again unseen
    resettable = _reset_high_water_mark()
    before = _status_bytes("VmRSS")
    outputs = jax.block_until_ready(run())
    after = _status_bytes("VmHWM")
    return outputs, Growth(growth_bytes=after - before, before_bytes=before, resettable=resettable)


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """One program of a job, compiled.

    Attributes:
      compiled: the program.
      consts: the values of its first arguments.
      avals: abstract values of the others.
      read: positions of the arguments, constants first, that it reads.
    """

    compiled: Any
    consts: Sequence[Any]
    avals: Sequence[Any]
    read: Sequence[int]

    def run(self, arguments: Sequence[Any]) -> Any:
        return self.compiled(*self.consts, *arguments)


def load(folder: Path, index: int, options: Mapping[str, Any], consts: Sequence[str]) -> Loaded:
    """Compile one program of a job."""
    exported = jax.export.deserialize(bytearray((folder / f"{index}.exported").read_bytes()))
    structs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in exported.in_avals]
    jitted = jax.jit(exported.call, keep_unused=True)
    compiled = jitted.lower(*structs).compile(compiler_options=dict(options) or None)
    known = [_constant(folder / name, a) for name, a in zip(consts, exported.in_avals, strict=False)]
    read = exported.module_kept_var_idx
    return Loaded(compiled=compiled, consts=known, avals=exported.in_avals[len(known) :], read=read)


def _constant(path: Path, aval: Any) -> Any:
    data = np.load(path, allow_pickle=False)
    return jax.device_put(data.view(aval.dtype).reshape(aval.shape))


def measure_memory(program: Loaded) -> dict[str, Any]:
    """Bytes of arguments that are read, constants among them, and of what the process grew by."""
    arguments = made_up(program.avals)
    jax.block_until_ready((arguments, program.consts))
    jax.block_until_ready(jax.jit(lambda x: x @ x)(np.ones((64, 64), np.float32)))  # the runtime's own threads
    _, grown = growth(lambda: program.run(arguments))
    every = (*program.consts, *arguments)
    fixed = sum(every[k].nbytes for k in program.read)
    return {"status": "ok", "measured_bytes": fixed + max(grown.growth_bytes, 0)}


def measure_time(
    programs: Sequence[Loaded],
    *,
    seconds: float,
    takes_turns: bool,
    best_s: float | None,
    allowed: Allowed | None,
    others: Iterable[Loaded] = (),
) -> dict[str, Any]:
    """Median seconds of the last program, and of the first, in turns; values first.

    XLA's libraries are not always right (docs/numerics.md): `others` are the first program under other options, and a
    candidate that agrees with one of these computes what the program says.
    """
    error = None
    if allowed is not None:
        for reference in itertools.chain(programs[:1], others):
            verdict = compare(reference.run, programs[-1].run, programs[-1].avals, allowed)
            if verdict.agree:
                break
        error = verdict.error if math.isfinite(verdict.error) else None
        if not verdict.agree:
            return {"status": "wrong_result", "error": error}
    arguments = made_up(programs[-1].avals)
    programs = programs if takes_turns else programs[-1:]
    for program in programs:
        jax.block_until_ready(program.run(arguments))  # warms up
    runs = [functools.partial(program.run, arguments) for program in programs]
    taken = turns(runs, seconds=seconds, best_s=best_s)
    return {
        "status": "ok",
        "run_s": statistics.median(taken[-1]),
        "reference_s": statistics.median(taken[0]) if len(programs) > 1 else None,
        "spread": spread(taken[-1]),
        "rounds": len(taken[-1]),
        "error": error,
    }


def turns(
    runs: Sequence[Callable[[], Any]], *, seconds: float, best_s: float | None = None, fewest: int = 1
) -> list[list[float]]:
    """Run functions in turns until the medians are known well enough, the seconds are up, or the last is hopeless.

    Args:
      runs: each returns its arrays; they have run before.
      seconds: after which the turns end, however little is known.
      best_s: the best time so far; where the last function takes `HOPELESS` times that, one turn is all.
      fewest: turns that are taken however long they take.

    Returns:
      Seconds of each run, by function.
    """
    taken: list[list[float]] = [[] for _ in runs]
    end = time.perf_counter() + seconds
    while len(taken[0]) < MOST_ROUNDS:
        for run, times in zip(runs, taken, strict=True):
            begin = time.perf_counter()
            jax.block_until_ready(run())
            times.append(time.perf_counter() - begin)
        if best_s is not None and min(taken[-1]) > HOPELESS * best_s:
            break
        enough = len(taken[0]) >= LEAST_ROUNDS and all(spread(t) < PRECISE for t in taken)
        if enough or len(taken[0]) >= fewest and time.perf_counter() > end:
            break
    return taken


def spread(times: Sequence[float]) -> float:
    """Half the 95 % confidence interval of the median, as a part of the median; by order statistics."""
    ordered, count = sorted(times), len(times)
    if count < LEAST_ROUNDS:
        return math.inf
    reach = math.ceil(0.98 * math.sqrt(count))  # of a binomial with p = 1/2: 1.96 of its standard deviations
    low, high = max(count // 2 - reach, 0), min((count - 1) // 2 + reach, count - 1)
    return (ordered[high] - ordered[low]) / 2 / statistics.median(ordered)


def run(job: Path) -> dict[str, Any]:
    """Do what a job file says."""
    asked = json.loads(job.read_text())
    end_with(asked["parent"], job.parent)
    if asked["cpus"]:
        os.sched_setaffinity(0, asked["cpus"])
    try:
        programs = [load(job.parent, k, p["options"], p["consts"]) for k, p in enumerate(asked["programs"])]
    except jax.errors.JaxRuntimeError as error:
        return {"status": "compile_error", "said": str(error).partition("\n")[0]}
    if asked["what"] == "memory":
        return measure_memory(programs[0])
    allowed = None if asked["allowed"] is None else Allowed(**asked["allowed"])
    consts = asked["programs"][0]["consts"]
    others = (load(job.parent, 0, options, consts) for options in asked["other_options"])
    named = ("seconds", "takes_turns", "best_s")
    return measure_time(programs, allowed=allowed, others=others, **{name: asked[name] for name in named})


def end_with(parent: int, folder: Path) -> None:
    """End this process, and remove its folder, when its parent is gone: killed, nobody stops what it had started."""

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(ORPHAN_S)
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=look, daemon=True).start()


def _reset_high_water_mark() -> bool:
    """Lower the largest resident size to the present one, where the system lets a process do so."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise MeasureError(f"/proc/self/status has no {field}; memory can be measured on Linux only")


if __name__ == "__main__":
    print(json.dumps(run(Path(sys.argv[1]))))
