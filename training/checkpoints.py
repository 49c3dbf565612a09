"""A run that can be continued: the whole state, kept by orbax, and what it belongs to.

    kept = Checkpoints("runs/model/checkpoints", about, keep=2)
    state, last = kept.restore(state)              # the latest, or the same state and None
    kept.save(state, {"pending": [...]})

A checkpoint holds the parameters, their average, the optimiser's state and the step, and in JSON the version of the
features, the hash of the data and the config. One of another version, data or config is refused: what followed would
be neither of the two runs. It is there whole or not at all, whenever the process is killed; all hosts take part in
writing. Arrays and JSON are all that is read: nothing is executed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import jax

from exla.cost_model.checkpoint import FEATURE_VERSION
from exla.errors import CheckpointError, MissingExtraError
from exla.training.step import State


class Checkpoints:
    """The checkpoints of one run.

    Args:
      folder: where they are.
      about: what they belong to, JSON values: {"data_hash": ..., "config": {"section.key": value}}.
      keep: how many, the latest.

    Raises:
      MissingExtraError: without orbax.
    """

    def __init__(self, folder: str | PathLike[str], about: Mapping[str, Any], *, keep: int) -> None:
        try:
            import orbax.checkpoint as orbax
        except ImportError as error:
            raise MissingExtraError("a run that can be continued", "orbax-checkpoint", "train") from error
        logging.getLogger("absl").setLevel(logging.ERROR)  # orbax tells of every file
        self._orbax = orbax
        self.folder = Path(folder).absolute()
        self.about = {"feature_version": FEATURE_VERSION, **about}
        options = orbax.CheckpointManagerOptions(
            max_to_keep=keep, cleanup_tmp_directories=True, enable_async_checkpointing=False
        )
        self._manager = orbax.CheckpointManager(self.folder, options=options)

    def save(self, state: State, progress: Mapping[str, Any]) -> None:
        """Keep a state, unless that of its step is there.

        Args:
          state: after a step.
          progress: JSON values that `restore` gives back.
        """
        args = self._orbax.args
        both = args.Composite(
            state=args.StandardSave(state), about=args.JsonSave({**self.about, "progress": dict(progress)})
        )
        step = int(state.step)
        if step != self._manager.latest_step():
            self._manager.save(step, args=both)
            self._manager.wait_until_finished()

    def restore(self, state: State) -> tuple[State, dict[str, Any] | None]:
        """The latest state, placed as `state` is; `state` itself and None where there is none.

        Raises:
          CheckpointError: if it is of another run, or damaged.
        """
        step = self._manager.latest_step()
        if step is None:
            return state, None
        path = self.folder / str(step)
        args = self._orbax.args
        try:
            about = self._manager.restore(step, args=args.Composite(about=args.JsonRestore()))["about"]
            progress = dict(about["progress"])
        except Exception as error:
            raise _damaged(path, error) from error
        self._compare(path, about)
        abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
        try:
            found = self._manager.restore(step, args=args.Composite(state=args.StandardRestore(abstract)))["state"]
        except Exception as error:
            raise _damaged(path, error) from error
        return found, progress

    def close(self) -> None:
        self._manager.close()

    def _compare(self, path: Path, found: Mapping[str, Any]) -> None:
        mine, other = _flat(self.about), _flat({k: v for k, v in found.items() if k != "progress"})
        different = [
            f"{name}: {_said(other, name)} there, {_said(mine, name)} here"
            for name in sorted({*mine, *other})
            if mine.get(name) != other.get(name) or (name in mine) != (name in other)
        ]
        if different:
            raise CheckpointError(
                f"{path} is of another run, and cannot be continued as this one; what differs:\n  "
                + "\n  ".join(different)
                + "\nName another run.folder, or go back to the config and data it was made with."
            )


def _flat(about: Mapping[str, Any]) -> dict[str, Any]:
    config = about.get("config", {})
    return {**{k: v for k, v in about.items() if k != "config"}, **config}


def _said(values: Mapping[str, Any], name: str) -> str:
    return repr(values[name]) if name in values else "nothing"


def _damaged(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"{path}: damaged, or no checkpoint ({type(error).__name__}: {str(error)[:500]}); remove this folder to "
        "continue from the one before"
    )
