"""What a run tells while it runs: a line of JSON for each evaluation, TensorBoard, and a progress bar.

    with Logs(folder, resumed_at=400) as logs:
        logs.write({"step": 600, "loss": 0.31, "kendall_tau": 0.74})

log.jsonl is appended to and flushed. A run that is continued at a step first drops the lines beyond it, which it will
write again, and a last line that is torn: no evaluation is there twice. Only the first process writes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from exla.errors import MissingExtraError

LOG = "log.jsonl"


class Logs:
    """Logs of a run; a context manager.

    Args:
      folder: the run's.
      steps: in all.
      resumed_at: the step that the run continues from; 0 = it begins.
      quiet: write nothing at all, as processes but the first.

    Raises:
      MissingExtraError: without tensorboardX.
    """

    def __init__(self, folder: Path, *, steps: int, resumed_at: int, quiet: bool = False) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise MissingExtraError("TensorBoard's log of a run", "tensorboardX", "train") from error
        self.quiet, self.path = quiet, folder / LOG
        console = Console(stderr=True)
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        self._progress = Progress(*columns, console=console, disable=quiet or not console.is_terminal)
        self._task = self._progress.add_task("training", total=steps, completed=resumed_at)
        if quiet:
            return
        keep_until(self.path, resumed_at)
        self._file = open(self.path, "a", encoding="utf-8")  # noqa: SIM115
        self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=resumed_at + 1)

    def __enter__(self) -> Logs:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
        if not self.quiet:
            self._file.close()
            self._board.close()

    def advance(self) -> None:
        """One more step is done."""
        self._progress.advance(self._task)

    def write(self, line: Mapping[str, Any]) -> None:
        """Write an evaluation.

        Args:
          line: JSON values; the numbers go to TensorBoard, at line["step"].
        """
        if self.quiet:
            return
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        for name, value in line.items():
            if isinstance(value, (int, float)) and name != "step":
                self._board.add_scalar(name, value, line["step"])
        self._board.flush()
        shown = {k: v for k, v in line.items() if k in ("loss", "kendall_tau") and v is not None}
        self._progress.update(self._task, description=" ".join(f"{k} {v:.3f}" for k, v in shown.items()))


def keep_until(path: Path, step: int) -> None:
    """Drop the lines of a log that are of later steps, and what is no whole line."""
    if not path.exists():
        return
    kept = [line for line in read_log(path) if line["step"] <= step]
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
    os.replace(partial, path)


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of a log, but a torn one at the end."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]
