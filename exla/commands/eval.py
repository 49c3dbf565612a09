"""Say how well a trained cost model ranks the configurations of some files.

  exla eval runs/mine/weights.npz npz/layout/xla/random/valid --rows 1000
  exla eval --collect runs/mine/*/evaluation.json

Of each file: Kendall's tau, the share of pairs in the right order, how much slower than the best is the best of the 1,
5 and 10 that are predicted to be fastest; and the tau that the noise in the file allows, as far as repeats tell. Files
are prepared as those that the model was trained on, by its card. With --collect,
evaluations that runs left, such as those of folds, are put together, and every program counts alike.

Exit codes: 0 done, 1 not done, 2 not understood."""

from __future__ import annotations

import argparse

from exla.training.command import add_eval_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_eval_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Evaluate; the exit code."""
    from exla.training import evaluate

    return evaluate.run(arguments)
