"""Train a cost model, or go on with a run that was stopped.

  exla train layout --set data.folder=~/data/tpugraphs --set data.collection=layout:xla:random
  exla train mine.toml --set optimiser.steps=500 --set run.folder=runs/mine

CONFIG says what is trained on what, and where the run is kept (run.folder): checkpoints, a log, plots, and in the end
weights.npz, whose model card says where it comes from. The same command goes on with a run that is there, and ends with
the same bits. docs/training.md has the keys, and how to train on several devices and hosts.

Exit codes: 0 done, 1 not done, 2 not understood."""

from __future__ import annotations

import argparse

from exla.training.command import add_train_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_train_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Train; the exit code."""
    from exla.training import train

    return train.run(arguments)
