"""The flags of `exla train` and `exla eval`, and what they say when something is wrong; loads no JAX.

The modules `training.train` and `training.evaluate` have the same commands under `python -m`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from exla.failure import say
from exla.strict import is_strict


def add_train_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `exla train`."""
    add = parser.add_argument
    add("config", metavar="CONFIG", help="a TOML file, or the name of one that comes with exla")
    add("--set", action="append", default=[], dest="changes", metavar="SECTION.KEY=VALUE", help="change the config")
    hosts = parser.add_argument_group("several hosts", "the same command on each of them")
    hosts.add_argument(
        "--coordinator", metavar="HOST:PORT", help="address of process 0, or auto: as a TPU pod or Slurm says"
    )
    hosts.add_argument("--processes", type=int, metavar="COUNT", help="how many hosts there are")
    hosts.add_argument("--process", type=int, metavar="NUMBER", help="which one this is, from 0")
    _add_common(parser)


def add_eval_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `exla eval`."""
    add = parser.add_argument
    add("weights", nargs="?", metavar="WEIGHTS", help="weights.npz of a run")
    add("files", nargs="*", metavar="DATA", help="npz files, and folders of them")
    add("--collect", nargs="+", metavar="FILE", help="put evaluations of runs together instead: a mean over all folds")
    add("--rows", type=int, default=0, metavar="COUNT", help="random configurations of each file (default: all)")
    add("--seed", type=int, default=0, help="of --rows (default: 0)")
    add("--keep", choices=("minimum", "drop"), default="minimum", help="which of configurations that repeat")
    add("--cache", default="", metavar="FOLDER", help="where unpacked files are kept (default: the user's cache)")
    add("--out", metavar="FILE", help="write the evaluation as JSON")
    add("--plots", metavar="FOLDER", help="draw ranks and the tau of each program")
    _add_common(parser)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the evaluation as one line of JSON")
    parser.add_argument("--traceback", action="store_true", help="print the whole traceback of an error")


def told(do: Callable[[], object], arguments: argparse.Namespace) -> int:
    """Do it, and say what went wrong; the exit code: 0 done, 1 not done, 2 not understood."""
    try:
        do()
    except BrokenPipeError:  # perhaps of standard output: the command line knows
        raise
    except Exception as error:
        return say(error, as_json=arguments.json, with_traceback=arguments.traceback or is_strict())
    return 0
