"""Measured memory: a program run once in a fresh process, whose growth is read from the operating system.

    measured_bytes(fn, structs, compiler_options, timeout_s=600)

The function crosses over as a file of StableHLO (`jax.export`), its arguments are made up there: small random numbers,
and zeros for integers, which are indices as often as not. What the process grows by while the program runs, its results
included, and the arguments, is what the program takes. Linux only.

Run as `python -m exla.search.measure FILE OPTIONS` it is that process, and prints one line of JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from exla.errors import MeasureError

NOISE_BYTES = 8 << 20
"""What a process grows by when a program runs that needs next to nothing (0.3 to 5 MiB were seen), rounded up."""
TIMEOUT_S = 600


def measured_bytes(
    fn: Callable[..., Any],
    structs: Sequence[Any],
    *,
    donate: Sequence[int] = (),
    compiler_options: Mapping[str, Any],
    timeout_s: float = TIMEOUT_S,
) -> int:
    """Run a function of flat arguments once on the CPU, in a process of its own.

    Args:
      fn: the function.
      structs: its arguments, as ShapeDtypeStructs.
      donate: positions of those whose memory it may reuse.
      compiler_options: XLA's, by name.
      timeout_s: seconds after which the process is killed.

    Returns:
      Bytes of arguments and of what the process grew by.

    Raises:
      MeasureError: if it could not be exported, crashed, was killed, or ran out of time.
    """
    jitted = jax.jit(fn, donate_argnums=tuple(donate), keep_unused=True)
    try:
        exported = jax.export.export(jitted, platforms=["cpu"])(*structs).serialize()
    except (NotImplementedError, ValueError, TypeError) as error:
        raise MeasureError(f"the program cannot be sent to another process: {error}") from error
    with tempfile.NamedTemporaryFile(suffix=".exported") as file:
        file.write(exported)
        file.flush()
        command = [sys.executable, "-m", "exla.search.measure", file.name, json.dumps(dict(compiler_options))]
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": str(int(jax.config.jax_enable_x64))}
        try:
            child = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=environment)
        except subprocess.TimeoutExpired as error:
            raise MeasureError(f"the program did not end within {timeout_s:.0f} s in a process of its own") from error
    lines = child.stdout.splitlines()
    if child.returncode or not lines:
        said = (child.stderr.strip().splitlines() or [""])[-1]
        raise MeasureError(f"the process that ran the program ended with status {child.returncode}: {said}")
    return int(json.loads(lines[-1])["measured_bytes"])


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


def _argument(aval: Any, generator: np.random.Generator) -> Any:
    if np.issubdtype(aval.dtype, np.floating):
        return generator.uniform(0.25, 1, aval.shape).astype(aval.dtype)
    if np.issubdtype(aval.dtype, np.complexfloating):
        return np.ones(aval.shape, aval.dtype)
    return np.zeros(aval.shape, aval.dtype)


def _run(path: str, options: Mapping[str, Any]) -> dict[str, Any]:
    exported = jax.export.deserialize(bytearray(Path(path).read_bytes()))
    generator = np.random.default_rng(0)
    arguments = [jax.device_put(_argument(a, generator)) for a in exported.in_avals]
    structs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in exported.in_avals]
    compiled = jax.jit(exported.call, keep_unused=True).lower(*structs).compile(compiler_options=dict(options) or None)
    jax.block_until_ready(arguments)
    jax.block_until_ready(jax.jit(lambda x: x @ x)(np.ones((64, 64), np.float32)))  # the runtime's own threads
    _, grown = growth(lambda: compiled(*arguments))
    return {"measured_bytes": sum(a.nbytes for a in arguments) + max(grown.growth_bytes, 0)}


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
    print(json.dumps(_run(sys.argv[1], json.loads(sys.argv[2]))))
