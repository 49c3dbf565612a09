"""Measurement in processes of their own: how much memory a program takes, how long it runs, whether it is right.

    measured_bytes(Runnable(...))                     -> bytes
    timed(Runnable(...), reference=Runnable(...))     -> Timing

A program crosses over as a file of StableHLO (`jax.export`), its constants as .npy files, its arguments are made up
there (`exla.search.child`). What the process grows by while the program runs, its results included, and the arguments,
is what the program takes. A process that crashes, hangs or takes more memory than it may is a status, not an error:
the search goes on with the next candidate. Linux only, CPU only.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import filelock
import jax
import numpy as np

from exla.errors import MeasureError
from exla.search.records import default_directory
from exla.search.values import Allowed

NOISE_BYTES = 8 << 20
"""What a process grows by when a program runs that needs next to nothing (0.3 to 5 MiB were seen), rounded up."""
TIMEOUT_S = 600
LOOK_S = 0.05
"""How often the memory of a process is looked at."""


@dataclass(frozen=True, kw_only=True)
class Runnable:
    """A function of flat arguments, as it crosses over.

    Attributes:
      fn: the function.
      structs: its arguments, as ShapeDtypeStructs, constants first.
      consts: the values of those.
      donate: positions of arguments whose memory it may reuse.
      options: XLA's compile options, by name.
    """

    fn: Callable[..., Any]
    structs: Sequence[Any]
    consts: Sequence[Any] = ()
    donate: Sequence[int] = ()
    options: Mapping[str, Any]

    def write(self, folder: Path, index: int) -> dict[str, Any]:
        """Write the program and its constants; returns what a job says of them.

        Raises:
          MeasureError: if it cannot cross over.
        """
        jitted = jax.jit(self.fn, donate_argnums=tuple(self.donate))
        try:
            exported = jax.export.export(jitted, platforms=["cpu"])(*self.structs).serialize()
        except (NotImplementedError, ValueError, TypeError) as error:
            raise MeasureError(
                f"the program cannot be sent to another process to be measured there: {error}. Use "
                'search="analytic" and verify="compile", which run nothing'
            ) from error
        (folder / f"{index}.exported").write_bytes(exported)
        names = [f"{index}-{k}.npy" for k in range(len(self.consts))]
        for name, value in zip(names, self.consts, strict=True):
            array = np.ascontiguousarray(np.asarray(value))
            np.save(folder / name, array.reshape(-1).view(np.uint8), allow_pickle=False)
        return {"options": dict(self.options), "consts": names}


@dataclass(frozen=True, kw_only=True)
class Timing:
    """What a process that timed a program found.

    Attributes:
      status: "ok", "wrong_result", "compile_error", "oom", "timeout" or "crash".
      run_s: median seconds of one run; None unless ok.
      reference_s: of the reference, in the same process and in turns; None where there was none.
      spread: half the confidence interval of the median, as a part of it; inf after too few rounds.
      rounds: how many turns there were.
      error: how far values are from the reference's (`exla.search.values.Verdict`); None where it is not a number.
      said: what a process that failed said last.
    """

    status: str
    run_s: float | None = None
    reference_s: float | None = None
    spread: float | None = None
    rounds: int = 0
    error: float | None = None
    said: str = ""


def measured_bytes(program: Runnable, *, timeout_s: float = TIMEOUT_S) -> int:
    """Run a program once on the CPU, in a process of its own.

    Args:
      program: what is run.
      timeout_s: seconds after which the process is killed.

    Returns:
      Bytes of arguments and of what the process grew by.

    Raises:
      MeasureError: if it could not be exported, crashed, was killed, or ran out of time.
    """
    found = _child("memory", [program], timeout_s=timeout_s)
    if found["status"] == "timeout":
        raise MeasureError(f"the program did not end within {timeout_s:.0f} s in a process of its own")
    if found["status"] != "ok":
        raise MeasureError(f"the process that ran the program ended with {found['status']}: {found.get('said', '')}")
    return int(found["measured_bytes"])


def timed(
    program: Runnable,
    *,
    reference: Runnable | None = None,
    seconds: float = 2.0,
    takes_turns: bool = True,
    best_s: float | None = None,
    allowed: Allowed | None = None,
    other_options: Sequence[Mapping[str, str]] = (),
    timeout_s: float = TIMEOUT_S,
    ceiling_bytes: int | None = None,
) -> Timing:
    """Time a program on the CPU in a process of its own, in turns with a reference; values are compared before.

    Args:
      program: what is timed.
      reference: what it is compared with.
      seconds: for the turns, after which they end however little is known.
      takes_turns: whether the reference is timed too, and not only compared with.
      best_s: the best time so far; a program that takes three times as long is given up after one turn.
      allowed: what the values may differ by; None = they are not compared.
      other_options: compile options under which the reference is right too; it is compiled with them where it differs.
      timeout_s: seconds after which the process is killed.
      ceiling_bytes: resident memory above which it is killed; None = no such limit.

    Raises:
      MeasureError: if a program cannot be sent to another process.
    """
    programs = [program] if reference is None else [reference, program]
    asked = {
        "seconds": seconds,
        "takes_turns": takes_turns,
        "best_s": best_s,
        "other_options": [dict(options) for options in other_options],
        "allowed": asdict(allowed) if allowed is not None and reference is not None else None,
    }
    return Timing(**_child("time", programs, timeout_s=timeout_s, ceiling_bytes=ceiling_bytes, **asked))


def _child(
    what: str,
    programs: Sequence[Runnable],
    *,
    timeout_s: float,
    ceiling_bytes: int | None = None,
    **asked: Any,
) -> dict[str, Any]:
    """Write a job, run it, and say what came of it."""
    with tempfile.TemporaryDirectory(prefix="exla-") as name:
        folder = Path(name)
        cpus = sorted(os.sched_getaffinity(0))
        written = [p.write(folder, k) for k, p in enumerate(programs)]
        job = {"what": what, "programs": written, "cpus": cpus, "parent": os.getpid(), **asked}
        (folder / "job.json").write_text(json.dumps(job))
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": str(int(jax.config.jax_enable_x64))}
        alone = _alone() if what == "time" else contextlib.nullcontext()
        with open(folder / "out", "w+") as out, open(folder / "err", "w+") as err, alone:
            command = [sys.executable, "-m", "exla.search.child", str(folder / "job.json")]
            process = subprocess.Popen(command, stdout=out, stderr=err, env=environment)
            try:
                stopped = _watch(process, timeout_s, ceiling_bytes)
            finally:
                process.kill()
                process.wait()
            lines = (folder / "out").read_text().splitlines()
            said = ((folder / "err").read_text().strip().splitlines() or [""])[-1]
    if stopped is not None:
        return {"status": stopped, "said": said}
    if process.returncode or not lines:
        killed = process.returncode in (-9, 137)  # by the system, where memory is short
        return {"status": "oom" if killed else "crash", "said": f"status {process.returncode}: {said}"}
    return json.loads(lines[-1])


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Have no two searches of this user time something on this machine at once, where a lock can be kept."""
    lock = filelock.FileLock(default_directory() / f".measuring-{platform.node()}", timeout=TIMEOUT_S)
    try:
        Path(lock.lock_file).parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except (OSError, NotImplementedError):
        yield
        return
    try:
        yield
    finally:
        lock.release()


def _watch(process: subprocess.Popen, timeout_s: float, ceiling_bytes: int | None) -> str | None:
    """Wait for a process; "timeout" or "oom" where it has to be stopped."""
    end = time.monotonic() + timeout_s
    while True:
        left = end - time.monotonic()
        try:
            process.wait(timeout=max(min(left, LOOK_S if ceiling_bytes is not None else left), 0))
            return None
        except subprocess.TimeoutExpired:
            if left <= 0:
                return "timeout"
            if ceiling_bytes is not None and _resident_bytes(process.pid) > ceiling_bytes:
                return "oom"


def _resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0
