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
from typing import Any

from exla.commands.flags import PROGRAM, add_program_arguments
from exla.commands.planning import plan_and_report, print_plans
from exla.failure import UsageError
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
        def kept(number: int, one: Made) -> dict[str, Any]:
            return {"files": _keep(arguments, one, number if len(made) > 1 else None)}

        print_plans(arguments, made, str, kept)

    return plan_and_report(arguments, report)


def _keep(arguments: argparse.Namespace, made: Made, number: int | None) -> dict[str, str]:
    """Write what was asked for, and say where: "hlo", "plan" and "executable" -> file."""
    files: dict[str, Path] = {}
    if arguments.hlo is not None:
        files["hlo"] = _numbered(arguments.hlo, number)
        files["hlo"].write_text(made.choice.compiled.as_text(), encoding="utf-8")
    if arguments.out is not None and made.derived:
        print(f"exla: {number or 1}. {made.function} is not kept: a transformation made it", file=sys.stderr)
    elif arguments.out is not None:
        files.update(save_made(made, _numbered(arguments.out, number), executable=arguments.executable))
    for kind, path in files.items():
        print(f"exla: saved {path} ({kind})", file=sys.stderr)
    return {kind: str(path) for kind, path in files.items()}


def _numbered(path: Path, number: int | None) -> Path:
    return path if number is None else path.with_stem(f"{path.stem}-{number}")
