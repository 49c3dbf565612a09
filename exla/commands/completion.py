"""Print a script that completes exla's commands, flags and their values in a shell.

  bash   exla completion bash > ~/.local/share/bash-completion/completions/exla
  zsh    exla completion zsh > ~/.zfunc/_exla        (a folder of $fpath, before compinit)
  fish   exla completion fish > ~/.config/fish/completions/exla.fish

The script is made by shtab, which pip install "exla[completion]" brings. It runs nothing of exla's when it completes;
make it anew after an upgrade.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from exla.errors import MissingExtraError
from exla.options import CHOICES
from exla.targets.base import TARGETS

SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="which shell")
    parser.add_argument("--json", action="store_true", help="print one JSON object that holds the script")


def run(arguments: argparse.Namespace) -> int:
    """Print the script; 0."""
    try:
        import shtab
    except ImportError:
        raise MissingExtraError("exla completion", "shtab", "completion") from None
    parser = arguments.make_parser(None)
    values = {**CHOICES, "target": tuple(TARGETS)}
    for action in _actions(parser):
        _complete(action, values, shtab.FILE)
    script = shtab.complete(parser, shell=arguments.shell)
    print(json.dumps({"shell": arguments.shell, "script": script}) if arguments.json else script)
    return 0


def _complete(action: argparse.Action, values: Mapping[str, tuple[str, ...]], files: Mapping[str, str]) -> None:
    """Say how the value of one flag is completed; the parser is not used for anything else."""
    if action.dest in values and action.option_strings:
        action.choices = values[action.dest]
    elif action.type is Path or action.dest == "program":
        action.complete = files  # type: ignore[attr-defined]


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                yield from _actions(one)
