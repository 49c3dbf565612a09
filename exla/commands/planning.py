"""Plan a function, or whatever a script plans, and report it: what `exla plan`, `explain` and `compile` share.

Errors are one message and the user's line; `--traceback` and EXLA_STRICT=1 print where they come from.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import runpy
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jaxlib

from exla import ahead
from exla.commands.flags import given_options
from exla.commands.program import is_script, read_subject, surroundings
from exla.errors import ExlaError
from exla.failure import UsageError, is_understood, say
from exla.observe import Made, observing
from exla.options import Options
from exla.report.data import error_data, plan_data
from exla.report.plan import Plan, make_plan
from exla.strict import is_strict

Report = Callable[[Sequence[Made]], None]
Revised = Callable[[dict[str, Any]], dict[str, Any]]


def plan_and_report(
    arguments: argparse.Namespace,
    report: Report,
    *,
    revised: Revised = dict,
    around: contextlib.AbstractContextManager[Any] | None = None,
) -> int:
    """Plan, report, and say what went wrong.

    Args:
      arguments: those of `exla.commands.flags`.
      report: prints what was planned: one signature of a function, or all of a script's.
      revised: makes the options of a function, or those given to a script, what they are to be.
      around: entered before the user's code runs and left before anything is printed.

    Returns:
      The exit code.
    """
    try:
        with surroundings(arguments):
            if is_script(arguments.program):
                return _of_script(arguments, report, revised, around or contextlib.nullcontext())
            with around or contextlib.nullcontext(), quiet(arguments.json):
                made = _of_function(arguments, revised)
            report([made])
            return 0
    except Exception as error:
        return tell(error, arguments)


def tell(error: BaseException, arguments: argparse.Namespace) -> int:
    """Print an error of the user's program, or of planning it; returns the exit code."""
    return say(
        error,
        as_json=arguments.json,
        source=users_line(error) if is_understood(error) else "",
        details=error_data(error),
        with_traceback=arguments.traceback or is_strict(),
    )


def print_plans(
    arguments: argparse.Namespace,
    made: Sequence[Made],
    text: Callable[[Plan], str],
    kept: Callable[[int, Made], Mapping[str, Any]] = lambda number, made: {},
) -> None:
    """Print plans, as JSON or as a text of each, under the signature where they are a script's.

    Args:
      arguments: those of `exla.commands.flags`.
      made: the plans.
      text: of one plan.
      kept: keeps the plan of a number, and returns what its line of JSON says of that.
    """
    for number, one in enumerate(made, 1):
        plan = make_plan(one.call.program, one.choice)
        if arguments.json:
            print(json.dumps({**row(one, plan), **kept(number, one)}))
            continue
        print_title(arguments, number, one)
        print(text(plan))
        kept(number, one)


def print_title(arguments: argparse.Namespace, number: int, made: Made) -> None:
    """Print which signature of a script what follows is about; of a function, nothing."""
    if is_script(arguments.program):
        derived = ", made of it by a transformation" if made.derived else ""
        print(f"{number}. {made.function}: {made.arguments or 'no arrays'}{derived}")


def row(made: Made, plan: Plan) -> dict[str, Any]:
    """What `--json` prints of one signature."""
    signature = {name: getattr(made, name) for name in ("function", "arguments", "derived")}
    return {**signature, "target": made.target.name, **plan_data(plan)}


def users_line(error: BaseException) -> str:
    """Where in the user's code an error comes from, "file.py:12 (function)"; "" where it does not."""
    if isinstance(error, SyntaxError) and error.filename and not error.filename.startswith("<"):
        return f"{error.filename}:{error.lineno} (<module>)"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<")]
    own = [str(Path(p).parent) + os.sep for p in (Path(__file__).parent, jax.__file__, jaxlib.__file__)]
    libraries = [*own, *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib"))]
    for others in (libraries, own):  # the user's code may be installed itself
        mine = [f for f in frames if not f.filename.startswith(tuple(others))]
        if mine:
            return f"{mine[-1].filename}:{mine[-1].lineno} ({mine[-1].name})"
    return ""


def _of_function(arguments: argparse.Namespace, revised: Revised) -> Made:
    subject = read_subject(arguments)
    given = subject.arguments
    compiled = ahead.compile(subject.function, given.positional, given.keywords, **revised(subject.options))
    return compiled.planned.made()


def _of_script(
    arguments: argparse.Namespace,
    report: Report,
    revised: Revised,
    around: contextlib.AbstractContextManager[Any],
) -> int:
    path = Path(arguments.program)
    if not path.is_file():
        raise UsageError(f"there is no script {str(path)!r}")
    for name in ("shapes", "static", "donate"):
        if getattr(arguments, name) is not None:
            raise UsageError(f"--{name} is for a function, {path}:function; a script calls its functions itself")
    options = revised(given_options(arguments))
    Options.resolve(**options)
    heard: list[Made] = []
    failure: BaseException | None = None
    with around, observing(heard.append), quiet(arguments.json), _variables(options), _command_line(arguments):
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as stop:
            if stop.code not in (None, 0):
                failure = ExlaError(f"the script ended itself: {stop.code}")
        except (Exception, KeyboardInterrupt) as error:
            failure = error
    report(heard)
    if failure is not None:
        return tell(failure, arguments)
    if not heard:
        raise ExlaError(
            f"{path} planned nothing: no function of exla.jit was called in it, or under transformations alone, "
            "such as jax.grad, of which what fits with everything stored is left to jax.jit"
        )
    return 0


@contextlib.contextmanager
def quiet(json_only: bool) -> Iterator[None]:
    """Send what the user's code prints to standard error, where standard output is to hold JSON alone."""
    with contextlib.redirect_stdout(sys.stderr) if json_only else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def _variables(options: dict[str, str]) -> Iterator[None]:
    """Options as the variables that every exla.jit of a script reads."""
    before = dict(os.environ)
    os.environ.update({f"EXLA_{name.upper()}": value for name, value in options.items()})
    try:
        yield
    finally:
        for name in options:
            variable = f"EXLA_{name.upper()}"
            os.environ.pop(variable, None)
            if variable in before:
                os.environ[variable] = before[variable]


@contextlib.contextmanager
def _command_line(arguments: argparse.Namespace) -> Iterator[None]:
    before = list(sys.argv)
    sys.argv[:] = [arguments.program, *arguments.script_arguments]
    try:
        yield
    finally:
        sys.argv[:] = before
