"""Compile a function for a target, attached or not, and keep the plan.

  exla compile kernels:smooth --shapes "f32[100000,3] f32[100000,3] f32[100000]" --target tpu:v5e --out smooth.plan.json

FILE is read by exla.load on any machine. Of a script with several signatures, FILE becomes FILE-1, FILE-2, ... before
its suffix, with the numbers of the report; what jax.grad and other transformations made of a call is not kept. With
--executable what was compiled is kept too, in FILE.executable, for exla.load(..., executable=True).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from exla.commands.failure import UsageError
from exla.commands.flags import PROGRAM, add_program_arguments
from exla.commands.planning import plan_and_report, print_plans
from exla.observe import Made
from exla.saved import save_made

__doc__ = f"{__doc__}\n{PROGRAM}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_program_arguments(parser)
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the plan is kept, as JSON")
    parser.add_argument("--executable", action="store_true", help="keep what was compiled beside FILE too")
    parser.add_argument("--hlo", type=Path, metavar="FILE", help="where the optimised HLO is written, as text")


def run(arguments: argparse.Namespace) -> int:
    if arguments.executable and arguments.out is None:
        raise UsageError("--executable keeps something beside the plan: say where with --out FILE")
    for path in (arguments.out, arguments.hlo):
        if path is not None and not path.absolute().parent.is_dir():
            raise UsageError(f"there is no folder {str(path.parent)!r} to write {path.name!r} into")

    def report(made: Sequence[Made]) -> None:
        print_plans(arguments, made, str)
        for number, one in enumerate(made, 1):
            _keep(arguments, one, number if len(made) > 1 else None)

    return plan_and_report(arguments, report)


def _keep(arguments: argparse.Namespace, made: Made, number: int | None) -> None:
    if arguments.hlo is not None:
        path = _numbered(arguments.hlo, number)
        path.write_text(made.choice.compiled.as_text(), encoding="utf-8")
        print(f"exla: wrote {path}", file=sys.stderr)
    if arguments.out is None:
        return
    if made.derived:
        print(f"exla: {number or 1}. {made.function} is not kept: a transformation made it", file=sys.stderr)
        return
    path = _numbered(arguments.out, number)
    save_made(made, path, executable=arguments.executable)
    print(f"exla: saved {path}", file=sys.stderr)


def _numbered(path: Path, number: int | None) -> Path:
    return path if number is None else path.with_stem(f"{path.stem}-{number}")
