"""Makes the records that come with exla: what is chosen for the programs of this repository, for each kind of device.

    python -m benchmarks.packaged [--targets cpu tpu:v5e] [--programs smooth knn] [--limits 64MiB] [--search analytic]

The programs are that of the README, that of `make demo`, and the eight of `benchmarks.programs` at their natural sizes;
each is planned in a fresh process, with records of its own and none that come with exla. What was chosen goes to
`exla/search/packaged`, one file for each target, and takes the place of what was there for the same key but for exla's
own code. A program that needs no splitting leaves no record, and neither does one that is refused.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import exla
from benchmarks import isolate
from benchmarks.programs import BENCHMARKS
from examples.demo import nearest_and_density
from exla.search import records
from exla.search.record import Record
from exla.search.records import CODE, PACKAGED, RecordStore, without
from exla.search.shards import read_lines

TARGETS = ("cpu", "tpu:v5e", "tpu:v6e", "gpu:a100-40", "gpu:h100", "gpu:h200")
LIMITS = ("64MiB", "256MiB", "512MiB", "1GiB")
_POINTS = 20_000
_PLACES = 40_000


def smooth(x: jax.Array, y: jax.Array, v: jax.Array) -> jax.Array:
    """The program of the README."""
    squared = jnp.sum((x[:, None, :] - y[None, :, :]) ** 2, axis=-1)
    return jnp.exp(-squared / 2) @ v


def program_of(name: str) -> tuple[Callable[..., Any], tuple[jax.ShapeDtypeStruct, ...]]:
    """A program and the shapes of its arguments."""
    if name == "smooth":
        return smooth, _floats((_POINTS, 16), (_POINTS, 16), (_POINTS,))
    if name == "demo":
        return nearest_and_density, _floats((_PLACES, 3), (_PLACES,))
    arrays = BENCHMARKS[name].arguments(seed=0)
    return BENCHMARKS[name].function, tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays)


def _floats(*shapes: tuple[int, ...]) -> tuple[jax.ShapeDtypeStruct, ...]:
    return tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)


def choose(program: str, target: str, limit: str, search: str, directory: str) -> dict[str, Any]:
    """Plan one program in a process of its own; the record of what was chosen, or why there is none."""
    os.environ["EXLA_RECORDS_DIR"] = directory
    records.PACKAGED = Path(directory) / "none"
    function, structs = program_of(program)
    try:
        plan = exla.jit(function, target=target, memory_limit=limit, search=search).plan(*structs)
    except exla.MemoryLimitError:
        return {"status": "refused"}
    if plan.untouched:
        return {"status": "untouched"}
    made = [r for r in RecordStore().read().records if r.status == "ok" and not r.is_default]
    winners = [r for r in made if r.extra.get("winner") is True]
    return {"status": "chosen", "line": (winners or made)[-1].to_line()}


def put(path: Path, record: Record) -> None:
    """Put a record among those of a file, in the place of one of the same key but for exla's own code."""
    there = [line.record for line in read_lines(path)] if path.exists() else []
    others = [r for r in there if r is not None and without(r.key, CODE) != without(record.key, CODE)]
    lines = sorted(r.to_line() for r in (*others, record))
    path.write_text("\n".join(lines) + "\n", encoding="ascii")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ["smooth", "demo", *BENCHMARKS]
    parser.add_argument("--targets", nargs="+", default=TARGETS, metavar="TARGET", help="default: %(default)s")
    parser.add_argument("--programs", nargs="+", default=names, choices=names, metavar="NAME", help="default: all")
    parser.add_argument("--limits", nargs="+", default=LIMITS, metavar="BYTES", help="default: %(default)s")
    parser.add_argument("--search", default="analytic", help="exla.jit's search option; default: analytic")
    arguments = parser.parse_args()
    for target in arguments.targets:
        path = PACKAGED / f"{target.replace(':', '-')}.jsonl"
        for program in arguments.programs:
            for limit in arguments.limits:
                with tempfile.TemporaryDirectory() as directory:
                    found = isolate.call(
                        "benchmarks.packaged:choose",
                        program=program,
                        target=target,
                        limit=limit,
                        search=arguments.search,
                        directory=directory,
                    )
                if "line" in found:
                    put(path, Record.from_line(found["line"]))
                print(f"{target:12s} {program:20s} {limit:8s} {found['status']}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
