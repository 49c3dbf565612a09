"""The `exla` command.

    exla targets
    exla rules discover --equations 3 --out found.json
    exla records ls

COMMANDS is the table of commands, by group; those of the group "" have none. A command is a module of `exla.commands`
with a docstring (the --help page), `add_arguments(parser)` and `run(arguments) -> exit code`. Modules are imported when
they are asked for: `exla --help` loads none of them, and no JAX.

Exit codes: 0 done, 1 not done, 2 not understood.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

COMMANDS = {
    "": {"targets": ("exla.commands.targets", "what can be compiled for, and what is installed and attached")},
    "rules": {
        "discover": ("exla.commands.rules_discover", "find replace rules by enumerating small graphs"),
        "verify": ("exla.commands.rules_verify", "check what every replace rule owes"),
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

GROUPS = {"rules": "match-and-replace rules", "records": "what was compiled, kept for the next process"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog="exla", description="Run JAX functions under a hard memory cap.")
    top = parser.add_subparsers(metavar="COMMAND", required=True)
    for group, commands in COMMANDS.items():
        names, before = top, list[str]()
        if group:
            grouped = top.add_parser(group, help=GROUPS[group], description=GROUPS[group])
            names, before = grouped.add_subparsers(metavar="COMMAND", required=True), [group]
        for name, (module, text) in commands.items():
            if words[: len(before) + 1] == [*before, name]:
                command = importlib.import_module(module)
                form = argparse.RawDescriptionHelpFormatter
                one = names.add_parser(name, help=text, description=command.__doc__, formatter_class=form)
                command.add_arguments(one)
                one.set_defaults(run=command.run)
            else:
                names.add_parser(name, help=text)
    parsed = parser.parse_args(words)
    try:
        return parsed.run(parsed)
    except KeyboardInterrupt:
        print("exla: interrupted", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
