"""What is known of a target, as plain data for a table."""

from __future__ import annotations

from typing import Any

from exla.errors import ExlaError
from exla.targets.accelerator import Accelerator
from exla.targets.base import Target


def row(target: Target) -> dict[str, Any]:
    """Name, memory, rates and presence of a target, and what part of a chip it is; None where nothing is known.

    Args:
      target: any target. Its compiler is not loaded.
    """
    found: dict[str, Any] = {
        "target": target.name,
        "part": None,
        "memory_bytes": None,
        "usable_bytes": None,
        "bytes_per_s": None,
        "matrix_flops": None,
        "vector_flops": None,
        "attached": target.attached(),
        "install": None,
    }
    if not isinstance(target, Accelerator):
        return {**found, "usable_bytes": target.usable_bytes()}
    try:
        facts = target.facts
    except ExlaError:  # "gpu" or "tpu", and none is attached
        return {**found, "install": target.install()}
    numbers = ("part", "memory_bytes", "bytes_per_s", "matrix_flops", "vector_flops")
    known = {name: getattr(facts, name) for name in numbers}
    return {**found, **known, "usable_bytes": target.usable_bytes(), "install": target.install()}
