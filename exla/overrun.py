"""What the allocator of an attached device saw of a first run, against what the compiler counted.

A compiler's count is believed before a program runs; GPUs and TPUs can confirm it while it runs, for their allocators
keep the most that was ever in use. A run that takes more than was counted is a bug of exla's and is reported as one: a
warning, and an error under `EXLA_STRICT=1`. Nothing is known of a run that stays below an earlier peak of the process,
nor is anything known on a CPU, where `verify="run"` measures instead.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax

from exla.errors import ExlaError, ExlaWarning
from exla.strict import is_strict
from exla.units import format_bytes

SLACK_BYTES = 4 << 20
"""What an allocator rounds up and a runtime keeps for itself."""
_IN_USE, _PEAK = "bytes_in_use", "peak_bytes_in_use"
_POOL, _LIMIT = "pool_bytes", "bytes_limit"


def confirmed(
    run: Callable[[], Any],
    *,
    name: str,
    devices: Iterable[Any],
    arrays: Sequence[Any],
    counted_bytes: int,
    limit_bytes: int,
) -> Any:
    """Run a program for the first time, wait for it, and report it if it took more than was counted.

    Args:
      run: runs it and returns its results.
      name: of the user's function.
      devices: those that it runs on; one whose allocator says nothing is not watched.
      arrays: constants and arguments; those that a device has already are part of the count.
      counted_bytes: arguments + outputs + temporaries + code - aliased, of each device.
      limit_bytes: what each device may use.

    Returns:
      What `run` returns.

    Raises:
      ExlaError: if it took more, under `EXLA_STRICT=1`.
    """
    before = {device: stats for device in devices if (stats := _said(device))}
    if not before:
        return run()
    present = {device: _present_bytes(device, arrays) for device in before}
    results = jax.block_until_ready(run())
    for device, stats in before.items():
        peak = (_said(device) or stats)[_PEAK]
        taken = peak - stats[_IN_USE] + present[device]
        if peak > stats[_PEAK] and taken > most_handed_out(counted_bytes, stats) + SLACK_BYTES:
            _report(name, device, taken, counted_bytes, limit_bytes)
    return results


def most_handed_out(counted_bytes: int, stats: Mapping[str, int]) -> int:
    """The most that an allocator may say is in use where no more than some bytes were asked for.

    One that has its memory from the start (JAX's default) hands out what it is asked for. One that gets it as it goes
    (`XLA_PYTHON_CLIENT_PREALLOCATE=false`) gets regions of powers of two, and leaves a block whole that is less than
    twice what is asked for. On an H100 programs of which 191 MiB were counted took 191 of the one and 256 of the other.

    Args:
      counted_bytes: what is asked for.
      stats: what the allocator says of itself, `Device.memory_stats()`.

    Source: `BFCAllocator::FindChunkPtr` in XLA.
    """
    has_all = stats.get(_POOL, 0) >= stats.get(_LIMIT, 0)
    return counted_bytes if has_all else 2 * counted_bytes


def _said(device: Any) -> dict[str, int] | None:
    """What an allocator says; None where it does not say enough."""
    stats = device.memory_stats() or {}
    return stats if {_IN_USE, _PEAK} <= stats.keys() else None


def _present_bytes(device: Any, arrays: Sequence[Any]) -> int:
    """Bytes of arrays that a device has, each counted once however often it is passed."""
    mine = {id(x): x for x in arrays if isinstance(x, jax.Array)}.values()
    return sum(shard.data.nbytes for x in mine for shard in x.addressable_shards if shard.device == device)


def _report(name: str, device: Any, taken: int, counted: int, limit: int) -> None:
    over = f", over the limit of {format_bytes(limit)}" if taken > limit else ""
    said = (
        f"{name}: the run took {format_bytes(taken)} of {device}{over}; the compiler had counted "
        f"{format_bytes(counted)}. Unless something else used the device meanwhile this is a bug in exla: please "
        "report it, with the file that exla.save writes of it. Until then, lower memory_limit by the difference"
    )
    if is_strict():
        raise ExlaError(said)
    warnings.warn(said, ExlaWarning, stacklevel=2)
