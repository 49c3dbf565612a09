"""Programs that fit already must be left alone: the same machine code, the same bits, and little time to find out.

    python -m benchmarks.untouched [--programs fft,svd] [--rounds 5]

For each program of `benchmarks.fitting`, in a fresh process, once with exla's default options and once with
`memory_limit="4GiB"`:

- the optimised HLO equals jax.jit's, up to names and source positions (`comparable`);
- every output is bit-equal, and has the same dtype, shape and weak type;
- planning (trace, lower, compile and exla's own work) takes at most `MOST_EXTRA_S` longer than jax.jit's trace, lower
  and compile, in medians of alternating rounds. Each round gives both a new function object, so that neither finds the
  other's work in JAX's caches.

Exits with 1 when any of the three fails for any program.
"""

import argparse
import functools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import isolate, record
from benchmarks.fitting import FITTING
from exla.targets.hlo_text import comparable

MOST_EXTRA_S = 0.3
ROUNDS = 5
OPTIONS: dict[str, dict[str, Any]] = {"default": {}, "4GiB": {"memory_limit": "4GiB"}}


def examine(program: str, options: str, rounds: int) -> dict[str, Any]:
    """Compares exla.jit with jax.jit on one program; call it in a fresh process. Without rounds, no time is taken."""
    import exla

    function, make_arguments = FITTING[program]
    arguments = jax.block_until_ready(make_arguments())

    def planned():
        f = exla.jit(_renewed(function), **OPTIONS[options])
        return f, f.plan(*arguments)

    def compiled():
        return jax.jit(_renewed(function)).lower(*arguments).compile()

    f, plan = planned()
    reference = compiled()
    texts = [comparable(text.as_text()) for text in (plan.compiled, reference)]
    seconds: dict[str, list[float]] = {"exla": [], "jax": []}
    for _ in range(rounds):
        for name, work in (("exla", planned), ("jax", compiled)):
            start = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - start)
    median = {name: statistics.median(values) for name, values in seconds.items() if values}
    return {
        "same_hlo": texts[0] == texts[1],
        "difference": _first_difference(*texts),
        "bit_equal": _bit_equal(f(*arguments), reference(*arguments)),
        "decisions": [str(decision) for decision in plan.decisions],
        "seconds": seconds,
        "median_s": median,
        "extra_s": median["exla"] - median["jax"] if median else None,
    }


def _renewed(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function as a new object."""

    @functools.wraps(function)
    def renewed(*arguments):
        return function(*arguments)

    return renewed


def _bit_equal(got: Any, want: Any) -> bool:
    got_leaves, got_tree = jax.tree.flatten(got)
    want_leaves, want_tree = jax.tree.flatten(want)
    return got_tree == want_tree and all(
        (a.dtype, a.shape, a.weak_type) == (b.dtype, b.shape, b.weak_type)
        and np.asarray(a).tobytes() == np.asarray(b).tobytes()
        for a, b in zip(got_leaves, want_leaves, strict=True)
    )


def _first_difference(got: str, want: str) -> list[str]:
    lines = zip(got.splitlines() + ["(end)"], want.splitlines() + ["(end)"], strict=False)
    return next(([a[:200], b[:200]] for a, b in lines if a != b), [])


def _problems(row: dict[str, Any]) -> list[str]:
    if "message" in row:
        return [row["message"]]
    checks = {
        "HLO differs": not row["same_hlo"],
        "values differ": not row["bit_equal"],
        f"more than {MOST_EXTRA_S} s": row["extra_s"] > MOST_EXTRA_S,
    }
    return [problem for problem, found in checks.items() if found]


def _show(console: Console, rows: Sequence[dict[str, Any]]) -> None:
    table = Table(title="Programs that fit already: exla.jit against jax.jit")
    for column in ("program", "options", "same HLO", "bit-equal"):
        table.add_column(column)
    for column in ("jax s", "exla s", "extra s"):
        table.add_column(column, justify="right")
    table.add_column("problem", overflow="fold")
    for row in rows:
        figures = ["", "", "", "", ""]
        if "message" not in row:
            figures = [
                "yes" if row["same_hlo"] else "no",
                "yes" if row["bit_equal"] else "no",
                *(f"{seconds:.3f}" for seconds in (row["median_s"]["jax"], row["median_s"]["exla"], row["extra_s"])),
            ]
        table.add_row(row["program"], row["options"], *figures, "; ".join(_problems(row)))
    console.print(table)
    for row in rows:
        if row.get("difference"):
            exla_line, jax_line = row["difference"]
            console.print(f"{row['program']}, {row['options']}:\n  exla {exla_line}\n  jax  {jax_line}", markup=False)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.untouched")
    parser.add_argument("--programs", default=",".join(FITTING), help="comma-separated")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="alternations in the timing")
    options = parser.parse_args(argv)
    programs = options.programs.split(",")
    unknown = [name for name in programs if name not in FITTING]
    if unknown:
        parser.error(f"no program {', '.join(unknown)}; there are {', '.join(FITTING)}")
    results = record.open_results("untouched")
    rows = []
    for program in programs:
        for name in OPTIONS:
            try:
                fields = isolate.call(
                    "benchmarks.untouched:examine", program=program, options=name, rounds=options.rounds
                )
            except isolate.ChildError as error:
                print(error, file=sys.stderr)
                fields = {"message": str(error).strip().splitlines()[-1]}
            rows.append({"program": program, "options": name, **fields})
            results.append(**rows[-1])
            print(f"{program}, {name}: {'; '.join(_problems(rows[-1])) or 'untouched'}", file=sys.stderr)
    console = record.console()
    _show(console, rows)
    console.print(f"written to {results.path.relative_to(record.RESULTS.parent.parent)}")
    return int(any(_problems(row) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
