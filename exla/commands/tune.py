"""Measure what a function could become, and keep the fastest that is right and obeys the limit.

  exla tune kernels:smooth --shapes "f32[20000,16] f32[20000,16] f32[20000]" --memory-limit 64MiB
  exla tune train.py -- --epochs 1

Each candidate is compiled, compared with the plain function's values, and timed in a process of its own, on arguments
that are made up. What is found is recorded: `exla.jit` of the same function with the same limit uses the winner from
then on, in any process; where no limit is named, only searches that measure do. With --learn online it also moves the
weights that search="learned" ranks by on this machine, where that ranks other programs better. Stop it when you like:
Ctrl-C keeps the best so far, and started again with the same seed it goes on where it was. For one CPU.

Of a script, each signature is tuned when it is first called, unless the script itself names a search that measures
nothing, and the script goes on with what won; Ctrl-C ends the search of one signature.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

import jax
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from exla.commands.flags import PROGRAM, add_program_arguments, at_least
from exla.commands.planning import plan_and_report, print_plans, print_title
from exla.console import to_output
from exla.errors import OptionError
from exla.observe import Made
from exla.options import Options
from exla.passes.decisions import to_json
from exla.report.words import in_words, numbered
from exla.search.strategy import STRATEGIES
from exla.search.trials import Listener, Trial, Tuned, listener
from exla.units import format_bytes

SHOWN = 8
SOURCES = {
    "measured": "timed by this search",
    "record": "timed by an earlier one, and found in the records",
    "twin": "not timed: it compiles to the same code as a candidate that was, and has its time",
}
"""Where the time of a trial is from -> what that means."""
NOT_TIMED = {
    "over_limit": "takes more than the limit by the compiler's count",
    "compile_error": "did not compile",
    "oom": "ran out of memory",
    "timeout": "took too long",
    "crash": "its process died",
    "wrong_result": "its values are not the plain program's",
    "barred": "must not be used, as what it compiles to exchanges or computes something otherwise than is promised",
    "replay_miss": "a decision does not apply any more",
}
"""Status of a trial that has no time -> what that means."""
TABLE = """\
In the table of candidates, `ms` is the median of one run, set against the plain program's, as a busy machine is slower
for both; `compiled` is what it takes by the compiler's count; `from` says where the time is from:
"""


def _list(said: Mapping[str, str]) -> str:
    return "\n".join(f"  {name:13} {text}" for name, text in said.items())


__doc__ = f"{__doc__}\n{TABLE}{_list(SOURCES)}\n\nCandidates without a time:\n{_list(NOT_TIMED)}\n\n{PROGRAM}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_program_arguments(parser)
    parser.add_argument("--seed", type=at_least(0), default=0, help="of the strategy (default: 0)")


def run(arguments: argparse.Namespace) -> int:
    """Search, print what was found; the exit code."""
    found: list[Tuned] = []
    learned: list[str] = []

    def report(made: Sequence[Made]) -> None:
        if not arguments.json:
            for number, one in enumerate(made, 1):
                print_title(arguments, number, one)
                _print(one, next((t for t in found if t.call is one.call), None))
            for words in learned:
                print(words)
        print_plans(arguments, made, str)

    revised = functools.partial(_measuring, asked=arguments.search is not None)
    return plan_and_report(arguments, report, revised=revised, around=_followed(arguments, found, learned))


def _measuring(options: dict[str, Any], *, asked: bool) -> dict[str, Any]:
    """Options whose search measures: theirs if it does, else "measured", where no other was `asked` for."""
    search = Options.resolve(search=options.get("search")).search
    if _measures(search):
        return {**options, "search": search}
    if asked:
        those = ", ".join(filter(_measures, STRATEGIES))
        raise OptionError(f"search={search!r} measures nothing; those that do: {those}")
    return {**options, "search": "measured"}


def _measures(search: str) -> bool:
    return STRATEGIES.get(search).measures


@contextlib.contextmanager
def _followed(arguments: argparse.Namespace, found: list[Tuned], learned: list[str]) -> Iterator[None]:
    """Follow every search of a block, and show its trials."""
    jax.config.update("jax_compilation_cache_dir", None)  # a cached program says nothing of its compilation
    with contextlib.ExitStack() as stack:
        shown = _Lines() if arguments.json else stack.enter_context(_Bars.opened(arguments))

        def done(tuned: Tuned) -> None:
            found.append(tuned)
            shown.done(tuned)

        token = listener.set(Listener(seed=arguments.seed, trial=shown.trial, done=done, learned=learned.append))
        stack.callback(listener.reset, token)
        yield


def _print_line(line: str, out: TextIO) -> None:
    """Print a line in the middle of a search."""
    try:
        print(line, file=out, flush=True)
    except BrokenPipeError:  # nobody reads on: as Ctrl-C, which no planner takes for a failure of its own
        raise KeyboardInterrupt from None


class _Lines:
    """A line of JSON for each trial and one for each search, on standard output as it is now."""

    def __init__(self) -> None:
        self._out = sys.stdout

    def trial(self, trial: Trial, best: Trial | None) -> None:
        self._print(_row(trial))

    def done(self, tuned: Tuned) -> None:
        about = {"stop": tuned.stop, "seconds": tuned.seconds, "winner": _winner(tuned), "not_kept": tuned.not_kept}
        self._print(about)

    def _print(self, row: dict[str, Any]) -> None:
        _print_line(json.dumps(row), self._out)


class _Bars:
    """A bar for each search, with the best so far; where there is no terminal a line for each trial."""

    def __init__(self, bars: Progress, most: int) -> None:
        self._bars, self._most = bars, most
        self._task: TaskID | None = None

    @classmethod
    @contextlib.contextmanager
    def opened(cls, arguments: argparse.Namespace) -> Iterator[_Bars]:
        most = Options.resolve(search_trials=arguments.search_trials).search_trials
        names = TextColumn("tuning"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        columns = (*names, TextColumn("{task.fields[best]}"))
        console = Console(stderr=True)
        disabled = not console.is_terminal
        with Progress(*columns, console=console, redirect_stdout=sys.stdout.isatty(), disable=disabled) as bars:
            yield cls(bars, most)

    def trial(self, trial: Trial, best: Trial | None) -> None:
        if self._task is None:
            self._task = self._bars.add_task("tuning", total=self._most + 1, best="")
        said = "nothing obeys yet" if best is None or best.run_s is None else f"best {best.run_s * 1e3:.3g} ms"
        self._bars.update(self._task, advance=1, best=said)
        if self._bars.disable:
            task, how = self._bars.tasks[self._task], trial.source if trial.status == "ok" else trial.status
            _print_line(f"tuning {task.completed:.0f}/{task.total:.0f} ({how}): {said}", sys.stderr)

    def done(self, tuned: Tuned) -> None:
        if self._task is not None:
            self._bars.update(self._task, total=len(tuned.trials))
            self._bars.stop_task(self._task)
        self._task = None


def _won(tuned: Tuned) -> Trial | None:
    """The trial that won; None where nothing that obeys was measured."""
    return next((t for t in tuned.trials if tuned.choice and t.decisions == tuned.choice.decisions), None)


def _winner(tuned: Tuned) -> dict[str, Any] | None:
    won = _won(tuned)
    return None if won is None else _row(won)


def _outcome(tuned: Tuned, memory_limit: int | None) -> str:
    """In a sentence or two: who won, by how much, and what comes of it under the limit that was named."""
    won = _won(tuned)
    if won is None or won.run_s is None:
        return "nothing that obeys the limit was measured; the plan below was chosen by prediction"
    plain = "" if tuned.plain_s is None else f", the plain program {tuned.plain_s * 1e3:.4g} ms"
    what = "the plain program won" if not won.decisions else f"the winner takes {won.run_s * 1e3:.4g} ms{plain}"
    kept = "exla.jit uses it from now on"
    if memory_limit is None:
        kept = "searches that measure use it from now on, and with --memory-limit every exla.jit of that limit would"
    if tuned.not_kept:
        kept = f"nothing is kept: {tuned.not_kept}"
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


def _print(made: Made, tuned: Tuned | None) -> None:
    """What a search found, and what comes of it; why there was none."""
    if tuned is not None:
        _print_table(tuned)
        print(_outcome(tuned, made.options.memory_limit))
    elif not _measures(made.options.search):
        print(f"not measured: the script plans it with search={made.options.search!r}")
    elif made.call.inline:
        print("not measured: it is compiled as a part of another program")
    else:
        print("its search was not followed: it began in another thread")


def _print_table(tuned: Tuned) -> None:
    """The best candidates, how many there were of which status, and why it ended."""
    tried = f"the program as it is and {len(tuned.trials) - 1} candidates"
    table = Table(title=f"{tried} in {tuned.seconds:.0f} s; ended by: {tuned.stop}")
    for column in ("ms", "compiled", "from", "candidate"):
        table.add_column(column, justify="right" if column in ("ms", "compiled") else "left", overflow="fold")
    timed = sorted((t for t in tuned.trials if t.run_s is not None), key=lambda t: t.run_s or 0.0)
    default = [t for t in timed if not t.decisions and t not in timed[:SHOWN]]
    listed = (*timed[:SHOWN], *default)
    for trial, words in zip(listed, in_words([t.decisions for t in listed]), strict=True):
        peak = "" if trial.peak_bytes is None else format_bytes(trial.peak_bytes)
        table.add_row(f"{(trial.run_s or 0) * 1e3:.4g}", peak, trial.source, escape(numbered(words)))
    to_output().print(table)
    print("ms: median of one run; compiled: by the compiler's count; from:")
    print(_list({source: SOURCES[source] for source in SOURCES if source in {t.source for t in listed}}))
    failed = Counter(t.status for t in tuned.trials if t.run_s is None)
    if failed:
        print("not timed:")
        print(_list({f"{count} {status}": NOT_TIMED.get(status, "") for status, count in sorted(failed.items())}))
