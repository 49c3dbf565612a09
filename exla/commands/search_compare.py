"""Compare strategies on recorded spaces, with no device.

  exla search compare
  exla search compare --spaces mine.jsonl --strategies analytic measured --plot regret.png

A recorded space holds every candidate of a program with its measured time (`python -m benchmarks.spaces` in the source
makes one). Each strategy is run on each space; the table gives the best time found after so many evaluations, as a
multiple of the best there is: the geometric mean over spaces, and the worst. What is over the limit costs a compilation
and is no evaluation. Programs that obey their limit as they are come in a table of their own, in which the plain
program counts from the start and "slower" is how many a strategy would have made slower.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from exla.console import to_output
from exla.errors import ExlaError, MissingExtraError
from exla.failure import UsageError

COUNTS = (1, 2, 4, 8, 16, 32)
STRATEGIES_SHOWN = ("analytic", "heuristic", "random", "evolutionary", "measured", "exhaustive")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--spaces", nargs="+", type=Path, help="files of recorded spaces (default: those of exla)")
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES_SHOWN, metavar="NAME", help="which to run")
    parser.add_argument("--counts", nargs="+", type=int, default=COUNTS, help="evaluations after which to compare")
    parser.add_argument("--seeds", type=int, default=5, help="the median over so many seeds is taken (default: 5)")
    parser.add_argument("--plot", type=Path, help="draw regret against evaluations into this file (needs matplotlib)")
    parser.add_argument("--json", action="store_true", help="print one JSON line for each strategy")


def run(arguments: argparse.Namespace) -> int:
    """Print the table; 0."""
    from exla.search.recorded import compare, packaged, read_spaces
    from exla.search.strategy import STRATEGIES

    unknown = [name for name in arguments.strategies if name not in STRATEGIES]
    if unknown:
        raise UsageError(f"unknown strategies: {unknown}; there are: {', '.join(STRATEGIES)}")
    if min(arguments.counts) < 1 or arguments.seeds < 1:
        raise UsageError("--counts and --seeds are whole numbers above 0")
    try:
        paths = arguments.spaces or packaged()
        spaces = [space for path in paths for space in read_spaces(path)]
    except (OSError, ValueError) as error:
        raise UsageError(str(error)) from error
    if not spaces:
        raise ExlaError("there are no recorded spaces; `python -m benchmarks.spaces` makes some")
    if arguments.plot and importlib.util.find_spec("matplotlib") is None:
        raise MissingExtraError("--plot", "matplotlib", "report")
    counts = sorted(set(arguments.counts))
    drawn = sorted({*counts, *(range(1, max(counts) + 1) if arguments.plot else ())})
    errors = Console(stderr=True)
    each = track(arguments.strategies, "comparing", console=errors, disable=not errors.is_terminal)
    rows = [row for name in each for row in compare(spaces, [name], drawn, range(arguments.seeds))]
    for obeys in (False, True):
        group = [row for row in rows if row.plain_obeys == obeys]
        if group and not arguments.json:
            _print(group, counts, obeys)
    for row in rows if arguments.json else ():
        kept = {"mean": {k: row.mean[k] for k in counts}, "worst": {k: row.worst[k] for k in counts}}
        about = {"strategy": row.strategy, "plain_obeys": row.plain_obeys, "spaces": row.spaces}
        print(json.dumps({**about, **kept, "slower": row.slower}))
    if arguments.plot:
        _plot(arguments.plot, [row for row in rows if not row.plain_obeys] or rows, drawn)
    return 0


def _print(rows: list, counts: list[int], obeys: bool) -> None:
    which = "obey as they are" if obeys else "have to be split or rewritten"
    about = f"{rows[0].spaces} programs that {which}, {rows[0].candidates} candidates"
    table = Table(title=f"{about}: slowdown against the best, mean (worst)")
    table.add_column("strategy")
    for k in counts:
        table.add_column(f"{k}", justify="right")
    if obeys:
        table.add_column("slower", justify="right")
    for row in rows:
        cells = [f"{row.mean[k]:.3f} ({row.worst[k]:.2f})" for k in counts]
        table.add_row(row.strategy, *cells, *([str(row.slower)] if obeys else []))
    to_output().print(table)


def _plot(path: Path, rows: list, counts: list[int]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for row in rows:
        axes.plot(counts, [row.mean[k] for k in counts], label=row.strategy)
    axes.set(xlabel="evaluations", ylabel="slowdown against the best (geometric mean)", xscale="log", yscale="log")
    axes.legend()
    figure.savefig(path)
