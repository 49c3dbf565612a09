"""Data sheets: one JSON file of public facts for each accelerator, under `devices/`.

A file is an object whose keys are the attributes of `Facts`, and `sources`, which says where each number is from. It is
checked when it is read: to add a card, add a file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from importlib import resources
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Public numbers of one accelerator.

    Attributes:
      name: the target's name, e.g. "gpu:h200".
      kinds: beginnings of `jax.Device.device_kind` by which an attached one is known.
      part: what part of a chip one device is, in words; None = the whole.
      memory_bytes: memory of one device; for a TPU what its compiler hands out.
      usable_share: the part of that which programs may use.
      bytes_per_s: memory bandwidth.
      cached_bytes_per_s: bandwidth of the fast memory on the chip.
      cache_bytes: size of that memory.
      instruction_bytes: what the compiler gives one instruction of it; None where there is no such bound.
      accumulator_bytes: what a fused reduction may accumulate at once (in float32) before the compiler's estimate of
        its time jumps; None where it does not.
      spilled_bytes_per_s: how fast it accumulates more than that, by that estimate; None likewise.
      matrix_flops: peak of dense bfloat16 (V100: float16) matrix products.
      float32_matrix_flops: peak of float32 matrix products at JAX's default precision.
      vector_flops: peak of float32 arithmetic outside the matrix units.
      sorted_per_s: elements that a sort moves per second (an estimate; nothing was measured).
      scattered_per_s: elements that a scatter writes per second (likewise).
      selected_per_s: elements that a top-k looks at per second (of the H100 measured; else likewise).
      selected_row_s: time to start one row of a top-k; None where nothing is known.
      host_bytes_per_s: bandwidth to the host's memory, one way.
      kernel_s: time to start a kernel, or one step of a loop.
      lanes: indices that the hardware takes at once.
      compiler: what the compiler needs to be told: its topology, or its target description.
      sources: where the numbers are from.
    """

    name: str
    kinds: tuple[str, ...]
    part: str | None
    memory_bytes: int
    usable_share: float
    bytes_per_s: float
    cached_bytes_per_s: float
    cache_bytes: int
    instruction_bytes: int | None
    accumulator_bytes: int | None
    spilled_bytes_per_s: float | None
    matrix_flops: float
    float32_matrix_flops: float
    vector_flops: float
    sorted_per_s: float
    scattered_per_s: float
    selected_per_s: float
    selected_row_s: float | None
    host_bytes_per_s: float
    kernel_s: float
    lanes: int
    compiler: Mapping[str, Any] = field(hash=False)
    sources: tuple[str, ...]

    @classmethod
    def read(cls, text: str, where: str) -> Facts:
        """Read one data sheet.

        Args:
          text: JSON.
          where: its name, for errors.

        Raises:
          ValueError: naming the file and the key that is missing, unknown or of another type.
        """
        row = json.loads(text)
        names = {f.name: str(f.type) for f in fields(cls)}
        wrong = sorted(names.keys() ^ row.keys()) if isinstance(row, dict) else ["the whole"]
        for name, kind in names.items() if not wrong else ():
            value = row[name]
            numeric = isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
            is_right = {
                "str": isinstance(value, str),
                "str | None": value is None or isinstance(value, str),
                "int": numeric and isinstance(value, int),
                "int | None": value is None or (numeric and isinstance(value, int)),
                "float": numeric,
                "float | None": value is None or numeric,
                "tuple[str, ...]": isinstance(value, list) and all(isinstance(v, str) for v in value),
                "Mapping[str, Any]": isinstance(value, dict),
            }[kind]
            if not is_right:
                wrong.append(name)
        if wrong:
            raise ValueError(f"{where} is no data sheet of a device; missing, unknown or wrong: {', '.join(wrong)}")
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}
        return cls(**values)


def sheet_of(kind: str, sheets: Iterable[Facts]) -> Facts | None:
    """The sheet of a device, by the longest beginning of its kind that one names; None where none does."""
    named = [(len(k), sheet) for sheet in sheets for k in sheet.kinds if kind.startswith(k)]
    return max(named, key=lambda pair: pair[0], default=(0, None))[1]


def sheets(platform: str) -> Iterator[Facts]:
    """The data sheets of one platform, "gpu" or "tpu", by name."""
    folder = resources.files("exla.targets") / "devices"
    for file in sorted(folder.iterdir(), key=lambda f: f.name):
        if file.name.startswith(f"{platform}_") and file.name.endswith(".json"):
            yield Facts.read(file.read_text(), file.name)
