"""Plan a function, and say what was done about each big value, or why nothing was.

  exla explain kernels:smooth --shapes "f32[20000,16] f32[20000,16] f32[20000]" --memory-limit 64MiB
  exla explain train.py -- --epochs 1

The function is traced and compiled, and never run.
"""

from __future__ import annotations

import argparse

from exla.commands import search_space
from exla.commands.flags import PROGRAM, add_program_arguments
from exla.commands.planning import plan_and_report, print_plans
from exla.report.plan import explain_text

__doc__ = f"{__doc__}\n{PROGRAM}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_program_arguments(parser)
    parser.add_argument("--space", action="store_true", help="say what could be done, as `exla search space` does")


def run(arguments: argparse.Namespace) -> int:
    if arguments.space:
        return search_space.show(arguments, shown=10, counted=1000)
    return plan_and_report(arguments, lambda made: print_plans(arguments, made, explain_text))
