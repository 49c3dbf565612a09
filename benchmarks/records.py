"""What a lookup in the tuning records costs, with 100,000 of them.

    python -m benchmarks.records [--records 100000] [--processes 11] [--keys 200] [--layouts NAME ...]

Records of about 900 bytes are made up, and written to a temporary directory; keys have the parts of real ones. The
layouts:

- 10,000 programs, one key and 10 records of each; one program, 10,000 keys with 10 records each;
- 100 keys with 1,000 records each, which a lookup returns all;
- one file: 10,000 programs in the one file that earlier releases wrote.

For each layout some fresh processes look up one key each, and then the others. The times, medians over processes or
over keys:

- cold: the first lookup of a process, with a new store; also with the file dropped from the system's page cache before;
- miss: the same for a key that no record has;
- new store: a lookup by a new store in a process that has made one before, as each search makes it;
- same store: a lookup of a key that the store has looked up before.
"""

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from benchmarks import isolate, record
from exla.search.record import Record
from exla.search.records import RecordStore, make_key
from exla.search.shards import ONE_FILE

LAYOUTS = {
    "10,000 programs": (10_000, 10),
    "one program": (1, 10),
    "100 keys": (100, 1_000),
    "one file": (10_000, 10),
}
"""Name -> (programs, records of one key)."""
SLOW, FEW = ("100 keys", "one file"), 5
"""Layouts whose lookups take long, and how many keys are looked up there."""
DECISIONS = [
    {
        "kind": "Replace",
        "path": [],
        "site": {"position": 4, "fingerprint": "0123456789abcdef"},
        "rule": "squared_distance",
    },
    {
        "kind": "Split",
        "path": [],
        "site": {"position": 18, "fingerprint": "fedcba9876543210"},
        "result": 0,
        "axis": 0,
        "growth": {"small_bytes": 1048576, "again": False, "exact": False, "online": False},
        "chunk": 40,
    },
]
ABOUT = {"target": "cpu", "device": "x86_64 AMD EPYC x2", "source": "smooth.py:4 (smooth)"}
PARTS = ("arguments", "target", "device", "jax", "jaxlib", "xla_flags", "exla", "options")


def key_of(program: int, limit: int) -> dict[str, str]:
    common = {name: name for name in PARTS}
    return make_key(program=f"program {program}", limit=f"limit {limit}", **common)


def keys(records: int, programs: int, each: int) -> Iterator[dict[str, str]]:
    """The keys of so many records."""
    for k in range(records // each):
        yield key_of(k % programs, k // programs)


def made_up(records: int, programs: int, each: int) -> Iterator[Record]:
    for key in keys(records, programs, each):
        for k in range(each):
            yield Record(
                key=key,
                decisions=DECISIONS,
                status="over_limit" if k else "ok",
                is_default=False,
                strategy="analytic",
                seed=k,
                compile_s=0.9175,
                limit_bytes=1048576,
                projected_bytes=733_000 + k,
                compiled_bytes=862_000 + k,
                about=ABOUT,
            )


def _lookup(store: RecordStore, key: Mapping[str, str], expected: int) -> float:
    start = time.perf_counter()
    found = store.lookup(key)
    spent = time.perf_counter() - start
    assert len(found) == expected, (len(found), expected)
    return spent * 1e3


def measure(
    directory: str, first: dict[str, str], others: list[dict[str, str]], each: int, miss: bool, drop: bool
) -> Any:
    """Lookups of one process that has looked nothing up before: milliseconds."""
    folder = Path(directory)
    if drop:
        for path in folder.glob("*.jsonl"):
            handle = os.open(path, os.O_RDONLY)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)
    cold_ms = _lookup(RecordStore(folder), first, 0 if miss else each)
    new_ms = [_lookup(RecordStore(folder), key, each) for key in others]
    store = RecordStore(folder)
    for key in others:
        store.lookup(key)
    same_ms = [_lookup(store, key, each) for key in others]
    return {"cold_ms": cold_ms, "new_store_ms": new_ms, "same_store_ms": same_ms}


def write(folder: Path, layout: str, records: int) -> float:
    """Write a layout; returns the seconds that it took."""
    start = time.perf_counter()
    if layout == "one file":
        with open(folder / ONE_FILE, "w") as file:
            file.writelines(r.to_line() + "\n" for r in made_up(records, *LAYOUTS[layout]))
            os.fsync(file.fileno())
    else:
        RecordStore(folder).add(made_up(records, *LAYOUTS[layout]))
    os.sync()
    return time.perf_counter() - start


def summary(values: Sequence[float]) -> dict[str, float]:
    return {"median_ms": statistics.median(values), "worst_ms": max(values)}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.records")
    parser.add_argument("--records", type=int, default=100_000, help="records in all")
    parser.add_argument("--processes", type=int, default=11, help="fresh processes for each time")
    parser.add_argument("--keys", type=int, default=200, help="keys that each process looks up after the first")
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS), help="which layouts")
    options = parser.parse_args(argv)
    results, pick = record.open_results("records"), random.Random(0)
    for layout in options.layouts:
        programs, each = LAYOUTS[layout]
        with tempfile.TemporaryDirectory() as named:
            folder = Path(named)
            write_s = write(folder, layout, options.records)
            sizes = [path.stat().st_size for path in folder.glob("*.jsonl")]
            there = list(keys(options.records, programs, each))
            times: dict[str, list[float]] = {}
            for k in track(range(3 * options.processes), layout, console=Console(stderr=True), transient=True):
                case = ("cold", "cold, not in the page cache", "miss")[k % 3]
                wanted = pick.choice(there) if case != "miss" else key_of(k % programs, options.records)
                found = isolate.call(
                    "benchmarks.records:measure",
                    directory=named,
                    first=wanted,
                    others=pick.sample(there, min(options.keys, FEW if layout in SLOW else len(there))),
                    each=each,
                    miss=case == "miss",
                    drop=case == "cold, not in the page cache",
                )
                times.setdefault(case, []).append(found["cold_ms"])
                times.setdefault("new store", []).extend(found["new_store_ms"])
                times.setdefault("same store", []).extend(found["same_store_ms"])
        common = {"records": options.records, "files": len(sizes), "bytes": sum(sizes), "write_s": write_s}
        for case, values in times.items():
            found = summary(values)
            results.append(layout=layout, case=case, lookups=len(values), **common, **found)
            print(f"{layout}, {case}: median {found['median_ms']:.3f} ms, worst {found['worst_ms']:.3f} ms", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
