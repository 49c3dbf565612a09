"""Measure what a function could become, and keep the fastest that is right and obeys the limit.

  exla tune kernels:smooth --shapes "f32[20000,16] f32[20000,16] f32[20000]" --memory-limit 64MiB

Each candidate is compiled, compared with the plain function's values, and timed in a process of its own, on arguments
that are made up. What is found is recorded: `exla.jit` of the same function with the same limit uses the winner from
then on, in any process. With --learn online it also moves the weights that search="learned" ranks by on this machine,
where that ranks other programs better. Stop it when you like: Ctrl-C keeps the best so far, and started again with the
same seed it goes on where it was. For one CPU.

PROGRAM, --shapes and the options are those of `exla plan`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Iterator
from typing import Any

import jax
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from exla import api
from exla.commands.flags import add_program_arguments, at_least
from exla.commands.planning import tell
from exla.commands.program import read_subject, surroundings
from exla.errors import OptionError
from exla.options import Options
from exla.passes.decisions import to_json
from exla.search.strategy import STRATEGIES
from exla.search.trials import Listener, Trial, Tuned, listener
from exla.units import format_bytes

SHOWN = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_program_arguments(parser, script=False)
    parser.add_argument("--seed", type=at_least(0), default=0, help="of the strategy (default: 0)")


def run(arguments: argparse.Namespace) -> int:
    """Search, print what was found; the exit code."""
    try:
        with surroundings(arguments):
            return _tune(arguments)
    except Exception as error:
        return tell(error, arguments)


def _tune(arguments: argparse.Namespace) -> int:
    subject = read_subject(arguments)
    options = {"search": "measured", **subject.options}
    if not STRATEGIES.get(Options.resolve(search=options["search"]).search).measures:
        those = ", ".join(name for name in STRATEGIES if STRATEGIES.get(name).measures)
        raise OptionError(f"search={options['search']!r} measures nothing; those that do: {those}")
    jax.config.update("jax_compilation_cache_dir", None)  # a cached program says nothing of its compilation
    found: list[Tuned] = []
    learned: list[str] = []
    most = Options.resolve(search_trials=options.get("search_trials")).search_trials
    with _progress(arguments, most) as show:
        token = listener.set(Listener(seed=arguments.seed, trial=show, done=found.append, learned=learned.append))
        try:
            plan = api.jit(subject.function, **options).plan(
                *subject.arguments.positional, **subject.arguments.keywords
            )
        finally:
            listener.reset(token)
    if not arguments.json:
        for tuned in found:
            _print(tuned)
            print(_outcome(tuned, Options.resolve(records=options.get("records")).records))
        for words in learned:
            print(words)
        print(plan)
    else:
        for tuned in found:
            print(json.dumps({"stop": tuned.stop, "seconds": tuned.seconds, "winner": _winner(tuned)}))
    return 0


def _won(tuned: Tuned) -> Trial | None:
    """The trial that won; None where nothing that obeys was measured."""
    return next((t for t in tuned.trials if tuned.choice and t.decisions == tuned.choice.decisions), None)


def _winner(tuned: Tuned) -> dict[str, Any] | None:
    won = _won(tuned)
    return None if won is None else _row(won)


def _outcome(tuned: Tuned, records: str) -> str:
    """In a sentence or two: who won, by how much, and what comes of it."""
    won = _won(tuned)
    if won is None or won.run_s is None:
        return "nothing that obeys the limit was measured; the plan below was chosen by prediction"
    plain = "" if tuned.plain_s is None else f", the plain program {tuned.plain_s * 1e3:.4g} ms"
    what = "the plain program won" if not won.decisions else f"the winner takes {won.run_s * 1e3:.4g} ms{plain}"
    kept = "exla.jit uses it from now on" if records == "append" else f"nothing is kept: records={records!r}"
    return f"{what}; {kept}"


def _row(trial: Trial) -> dict[str, Any]:
    return {
        "decisions": [to_json(d) for d in trial.decisions],
        "words": str(trial),
        "status": trial.status,
        "run_s": trial.run_s,
        "compiled_bytes": trial.peak_bytes,
        "source": trial.source,
    }


@contextlib.contextmanager
def _progress(arguments: argparse.Namespace, most: int) -> Iterator[Any]:
    """Shows each trial: a bar with the best so far, or a line of JSON."""
    if arguments.json:
        yield lambda trial, best: print(json.dumps(_row(trial)), flush=True)
        return
    columns = (
        TextColumn("tuning"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[best]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("tuning", total=most + 1, best="")

        def show(trial: Trial, best: Trial | None) -> None:
            said = "nothing obeys yet" if best is None or best.run_s is None else f"best {best.run_s * 1e3:.3g} ms"
            bar.update(task, advance=1, best=said)

        yield show


def _print(tuned: Tuned) -> None:
    """The best candidates, how many there were of which status, and why it ended."""
    table = Table(title=f"{len(tuned.trials)} candidates in {tuned.seconds:.0f} s; ended by: {tuned.stop}")
    for column in ("ms", "compiled", "from", "candidate"):
        table.add_column(column, justify="right" if column in ("ms", "compiled") else "left", overflow="fold")
    timed = sorted((t for t in tuned.trials if t.run_s is not None), key=lambda t: t.run_s or 0.0)
    default = [t for t in timed if not t.decisions and t not in timed[:SHOWN]]
    for trial in (*timed[:SHOWN], *default):
        peak = "" if trial.peak_bytes is None else format_bytes(trial.peak_bytes)
        table.add_row(f"{(trial.run_s or 0) * 1e3:.4g}", peak, trial.source, str(trial))
    failed = [t.status for t in tuned.trials if t.run_s is None]
    counts = ", ".join(f"{failed.count(s)} {s}" for s in sorted(set(failed)))
    Console(stderr=False).print(table)
    if counts:
        print(f"not timed: {counts}")
