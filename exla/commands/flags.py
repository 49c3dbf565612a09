"""The flags of every command that is about a function: which one, its arguments, and the options of `exla.jit`.

An option of exla's is a flag with its name (`memory_limit` is `--memory-limit`), and its help is what the docstring of
`exla.options.Options` says of it, so that a new option is a flag without anything being done here.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from exla.options import CHOICES, SIZES, Options

PROGRAM = """\
PROGRAM is a function, `package.module:function` or `path/to/file.py:function` (dots reach attributes), or a script,
`path/to/script.py`. A function wrapped by exla.jit keeps what it was wrapped with, where no flag says otherwise; one
wrapped by jax.jit is planned as the Python function inside, so that --static and --donate have to be named here.

A script is run as __main__ with what stands after `--`, and every signature that an exla.jit function plans in it is
reported at the end. The flags are then defaults, as EXLA_... variables are: what the script itself says wins. With
--json, what it prints goes to standard error.

--shapes gives the arguments in JAX's own notation, by position and by name:

  --shapes "f32[20000,16] f32[20000,16]"
  --shapes "(f32[3,4], {w: bf16[5], b: None}) scale=0.5 causal=True" --static causal

Tuples, lists and dicts nest; numbers, True, False, None and 'text' are Python values. docs/command.md has the grammar.

Exit codes: 0 done, 1 not done (refused, or something failed), 2 not understood."""


def add_program_arguments(parser: argparse.ArgumentParser, *, script: bool = True) -> None:
    """Add PROGRAM and all flags that say what is planned, and how.

    Args:
      parser: of the command.
      script: whether the command takes scripts too.
    """
    add = parser.add_argument
    add("program", metavar="PROGRAM", help="module:function, file.py:function" + (", or script.py" if script else ""))
    add("--shapes", metavar="ARGUMENTS", help='the arguments, e.g. "f32[20000,16] (bf16[8], {w: i32[]}) causal=True"')
    add("--static", metavar="NAMES", help="static arguments, by name or position: causal,2")
    add("--donate", metavar="NAMES", help="donated arguments, by name or position: state,0")
    add("--x64", action="store_true", help="64-bit values, as JAX_ENABLE_X64=1")
    add("--json", action="store_true", help="print JSON, one line for each plan")
    add("--traceback", action="store_true", help="print the whole traceback of an error (EXLA_STRICT=1 does too)")
    if script:
        parser.set_defaults(script_arguments=[])  # what stands after "--": see exla.cli
    add_option_flags(parser)


def at_least(least: int) -> Callable[[str], int]:
    """The type of a flag: a whole number from `least` on."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise argparse.ArgumentTypeError(f"a whole number of {least} or more is expected, not {text!r}")
        return number

    return read


def add_option_flags(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each of exla's options; `given_options` reads them."""
    group = parser.add_argument_group("options of exla.jit", "each is a variable too, such as EXLA_MEMORY_LIMIT")
    said = option_texts()
    for option in fields(Options):
        metavar = "SIZE" if option.name in SIZES else "NAMES" if option.name == "rules" else option.name.upper()
        if option.name in CHOICES:
            metavar = "{" + ",".join(CHOICES[option.name]) + "}"
        group.add_argument(_flag(option.name), metavar=metavar, help=said[option.name].replace("%", "%%"))


def given_options(arguments: argparse.Namespace) -> dict[str, str]:
    """The options that were given as flags, by name, as text."""
    named = {f.name: getattr(arguments, f.name) for f in fields(Options)}
    return {name: value for name, value in named.items() if value is not None}


def option_texts() -> dict[str, str]:
    """What the docstring of Options says of each option."""
    _, _, attributes = inspect.cleandoc(Options.__doc__ or "").partition("Attributes:\n")
    found: dict[str, Any] = {}
    for line in re.sub(r"\n {4,}", " ", attributes).splitlines():
        name, _, text = line.strip().partition(": ")
        found[name] = text
    return found


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
