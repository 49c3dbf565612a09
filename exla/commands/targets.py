"""List what programs can be compiled for: memory, bandwidth, peak rates, and whether it is here.

The numbers of an accelerator are those of its data sheet; `memory` is what a program may use where no memory_limit is
named. A target that is not attached can be compiled for wherever its compiler is installed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from exla.console import to_output

COLUMNS = ("target", "memory", "bandwidth", "bf16 peak", "f32 peak", "attached", "compiler")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON line for each target")


def run(arguments: argparse.Namespace) -> int:
    """Print the targets; 0."""
    from exla.targets.base import TARGETS
    from exla.targets.listing import row
    from exla.units import format_bytes

    table = Table(title="What exla compiles for", title_justify="left")
    for column in COLUMNS:
        table.add_column(column, no_wrap=column == "target", overflow="fold")
    rows = [row(TARGETS.get(name)) for name in TARGETS]
    for found in rows:
        if arguments.json:
            print(json.dumps(found))
            continue
        memory = found["usable_bytes"]
        install = escape(f"pip install {found['install']}") if found["install"] else "installed"
        table.add_row(
            found["target"],
            "" if memory is None else format_bytes(memory),
            *(_rate(found[key], unit) for key, unit in RATES),
            "yes" if found["attached"] else "no",
            install,
        )
    if not arguments.json:
        to_output().print(table)
        for line in _footnotes(rows):
            print(line)
    return 0


RATES = (("bytes_per_s", "GB/s"), ("matrix_flops", "TFLOP/s"), ("vector_flops", "TFLOP/s"))


def _footnotes(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What the numbers of the table are of."""
    yield "memory: what a program may use where no memory_limit is named"
    described = [r for r in rows if r["memory_bytes"] and not r["attached"]]
    shares = {f"{r['usable_bytes'] / r['memory_bytes']:.0%}" for r in described} - {"100%"}
    if shares:
        taken = " or ".join(sorted(shares))
        yield f"  of a GPU the {taken} of it that JAX's allocator takes; XLA_CLIENT_MEM_FRACTION changes that"
    for found in rows:
        if found["part"]:
            yield f"{found['target']}: {found['part']}"


def _rate(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{value / (1e9 if unit == 'GB/s' else 1e12):,.0f} {unit}"
