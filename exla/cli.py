"""The `exla` command.

    exla explain kernels:smooth --shapes "f32[20000,16] f32[20000,16]" --memory-limit 64MiB
    exla targets
    exla rules discover --equations 3 --out found.json
    exla records ls

COMMANDS is the table of commands, by group; those of the group "" have none. A command is a module of `exla.commands`
with a docstring (the --help page), `add_arguments(parser)` and `run(arguments) -> exit code`; what it raises is said by
`exla.failure`. Modules are imported when they are asked for: `exla --help` loads none of them, and no JAX.
What stands after `--` is for a command whose defaults have `script_arguments`.

Exit codes: 0 done, 1 not done, 2 not understood.
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import NoReturn

from exla.failure import EXPECTED, UsageError, hang_up, say
from exla.strict import is_strict
from exla.version import __version__

COMMANDS = {
    "": {
        "plan": ("exla.commands.plan", "the decisions and byte counts of a function or a script"),
        "explain": ("exla.commands.explain", "what was done about each big value, or why nothing was"),
        "tune": ("exla.commands.tune", "measure candidates, and keep the fastest that obeys the limit"),
        "compile": ("exla.commands.compile", "compile for a target, attached or not, and keep the plan"),
        "features": ("exla.commands.features", "the graph of an HLO module, as a cost model reads it"),
        "targets": ("exla.commands.targets", "what can be compiled for, and what is installed and attached"),
        "train": ("exla.commands.train", "train a cost model, or go on with it"),
        "eval": ("exla.commands.eval", "how well a trained cost model ranks"),
        "doctor": ("exla.commands.doctor", "what is installed, what works, and what is misconfigured"),
        "completion": ("exla.commands.completion", "shell completion, for bash, zsh and fish"),
    },
    "search": {
        "compare": ("exla.commands.search_compare", "strategies on recorded spaces, with no device"),
        "space": ("exla.commands.search_space", "what can be done to a program: how much, and what in words"),
    },
    "rules": {
        "discover": ("exla.commands.rules_discover", "find replace rules by enumerating small graphs"),
        "verify": ("exla.commands.rules_verify", "check what every replace rule owes"),
    },
    "profile": {
        "run": ("exla.commands.profile_run", "measure many programs, or go on with it"),
        "status": ("exla.commands.profile_status", "how far a campaign is"),
        "export": ("exla.commands.profile_export", "write its records as a data set"),
    },
    "records": {
        "ls": ("exla.commands.records_ls", "list what was compiled, with which outcomes"),
        "show": ("exla.commands.records_show", "show all candidates of one key"),
        "merge": ("exla.commands.records_merge", "add the records of other files or directories"),
        "prune": ("exla.commands.records_prune", "remove records"),
        "verify": ("exla.commands.records_verify", "check every line"),
    },
}
"""Group -> command -> (its module, what it does)."""

GROUPS = {
    "search": "ways to choose, and what they choose from",
    "rules": "match-and-replace rules",
    "profile": "campaigns: what cost models learn from",
    "records": "what was compiled, kept for the next process",
}


class JsonParser(argparse.ArgumentParser):
    """A parser whose errors are JSON, and those of the parsers below it."""

    def error(self, message: str) -> NoReturn:
        sys.exit(say(UsageError(message), as_json=True))


def make_parser(words: Sequence[str] | None) -> argparse.ArgumentParser:
    """The parser of the command line.

    Args:
      words: what is to be parsed: the command that they name is imported, and no other; None = import all.
    """
    kind = JsonParser if wants_json(words or ()) else argparse.ArgumentParser
    parser = kind(prog="exla", description="Run JAX functions under a hard memory cap.")
    parser.add_argument("--version", action="version", version=f"exla {__version__}")
    parser.set_defaults(make_parser=make_parser)  # of use to `exla completion`
    top = parser.add_subparsers(metavar="COMMAND", required=True)
    for group, commands in COMMANDS.items():
        names, before = top, list[str]()
        if group:
            grouped = top.add_parser(group, help=GROUPS[group], description=GROUPS[group])
            names, before = grouped.add_subparsers(metavar="COMMAND", required=True), [group]
        for name, (module, text) in commands.items():
            if words is None or list(words[: len(before) + 1]) == [*before, name]:
                command = importlib.import_module(module)
                form = argparse.RawDescriptionHelpFormatter
                one = names.add_parser(name, help=text, description=command.__doc__, formatter_class=form)
                command.add_arguments(one)
                one.set_defaults(run=command.run, usage_of_command=one.format_usage())
            else:
                names.add_parser(name, help=text)
    return parser


def wants_json(words: Sequence[str]) -> bool:
    """Whether --json is among the words of a command line; argparse takes its beginnings too."""
    return any(len(word) > 2 and "--json".startswith(word) for word in words)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    rest = list[str]()
    if "--" in words:
        words, rest = words[: words.index("--")], words[words.index("--") + 1 :]
    try:
        try:
            return _run(words, rest)
        except KeyboardInterrupt as stop:
            return say(stop, as_json=wants_json(words))
        finally:
            print(end="", flush=True)  # a closed pipe is noticed here, and not when Python ends
    except BrokenPipeError:
        return hang_up()


def _run(words: Sequence[str], rest: Sequence[str]) -> int:
    """Parse the words, and run the command that they name with what stands after `--`."""
    as_json = wants_json(words)
    try:
        parser = make_parser(words)
    except ImportError as error:
        if is_strict():
            raise
        return say(ImportError(f"{error}; `exla doctor` looks at what is installed"), as_json=as_json)
    parsed, unknown = parser.parse_known_args(words)
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{_nearest(unknown, parsed.usage_of_command)}")
    if rest:
        if "script_arguments" not in parsed:
            parser.error(f"nothing is expected after --: {' '.join(rest)}")
        parsed.script_arguments = list(rest)
    try:
        return parsed.run(parsed)
    except Exception as error:
        return say(error, as_json=as_json, with_traceback=is_strict() or not isinstance(error, EXPECTED))


def _nearest(unknown: Sequence[str], usage: str) -> str:
    """The flags of a command that were perhaps meant, in words; "" where none is near."""
    flags = re.findall(r"--[\w-]+", usage)
    near = [n for word in unknown if word.startswith("--") for n in get_close_matches(word.split("=")[0], flags, n=1)]
    return f" (did you mean {', '.join(near)}?)" if near else ""


if __name__ == "__main__":
    sys.exit(main())
