"""Enumerate small graphs, pair those that are equal, and keep the pairs that lower the peak as rules.

Graphs are made of add, multiply, dot_general, sum, broadcast, exp and log, with transposition a matter of naming axes.
They are evaluated over prime fields, equal ones are paired, pairs are pruned and verified, and what is left is written
as JSON, which the engine reads from exla/rules/replace/discovered.json.

The state is kept beside the file that is written, so that a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from exla.console import to_output
from exla.errors import ExlaError
from exla.failure import UsageError, not_done
from exla.rules.discover.run import Search, discover, write
from exla.rules.discover.state import StateError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    default, add = Search(), parser.add_argument
    add("--equations", type=int, default=default.equations, metavar="N", help="most equations of a graph")
    add("--inputs", type=int, default=default.inputs, metavar="N", help="most inputs of a graph")
    add("--seed", type=int, default=default.seed, metavar="N", help="seed of all random values")
    add("--out", type=Path, default=Path("discovered.json"), metavar="FILE", help="what is written")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--resume", action="store_true", help="go on from the state beside FILE (the default)")
    how.add_argument("--again", action="store_true", help="begin anew, whatever is there")
    add("--budget-s", type=float, metavar="T", help="begin nothing new after T seconds; the state is kept")
    add("--json", action="store_true", help="print the result as JSON in place of tables")


def run(arguments: argparse.Namespace) -> int:
    errors = Console(stderr=True)
    try:
        search = Search(equations=arguments.equations, inputs=arguments.inputs, seed=arguments.seed)
        if search.seed < 0:
            raise ValueError(f"seed must be 0 or more, not {search.seed}")
    except ValueError as error:
        raise UsageError(str(error)) from None
    out: Path = arguments.out
    state = out.with_name(out.name + ".state.jsonl")
    text = TextColumn("{task.description}")
    columns = (SpinnerColumn(), text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with not_done(StateError), Progress(*columns, console=errors) as bar:
        task = bar.add_task("discover")

        def progress(done: int, total: int, doing: str) -> None:
            bar.update(task, completed=done, total=total, description=doing)

        result = discover(search, state, again=arguments.again, budget_s=arguments.budget_s, progress=progress)
    if result is None:
        raise ExlaError(f"the budget ran out; run again to go on from {state}")
    write(result, out)
    state.unlink()
    if arguments.json:
        print(json.dumps(result, sort_keys=True))
    else:
        _print(result, out)
    return 0


def _print(result: dict[str, Any], out: Path) -> None:
    console = to_output()
    counts = result["counts"]
    table = Table(title=f"{len(result['rules'])} rules over {counts['signatures']} choices of inputs, in {out}")
    columns = ("graphs", "values", "equal", "lower_the_peak", "follow_from_no_smaller", "verified", "kept")
    for name in ("equations", *columns, "seconds"):
        table.add_column(name.replace("_", " "), justify="right")
    for size, seconds in result["seconds"]["enumerate"].items():
        table.add_row(size, *(f"{counts[name].get(size, 0):,}" for name in columns), f"{seconds:,.1f}")
    console.print(table)
    for rule in result["rules"]:
        console.print(f"{rule['name']} ({rule['family']}, {rule['verified']}): {rule['rewrite']}", markup=False)
