"""Submissions to Kaggle's "Google - Fast or Slow? Predict AI Model Runtime": written, read, checked, scored.

    ID,TopConfigs
    tile:xla:mlp_3,7;0;12;3;4
    layout:xla:random:resnet50,17;3;0;...

Configurations are named by their rows, fastest first. A tile file has at least five ranked (all, if there are fewer),
and the first five count: 2 - (best of the five / best of all), where times are runtime / normalizer. A layout file has
all of them ranked, and its score is Kendall's tau-b between places and runtimes. A collection's score is the mean over
its files, and the score of all is the mean over collections.

Kaggle scores test files, whose runtimes are withheld: here the same is computed on files that have them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from exla.cost_model.metrics import kendall_tau
from exla.datasets.tpugraphs_adapter.files import Layout, Tile
from exla.datasets.tpugraphs_adapter.folder import parse_id
from exla.errors import Problem, TpuGraphsError

HEADER = "ID,TopConfigs"
TOP = 5
"""How many configurations of a tile file count."""
_MADE_UP = Path("submission")


@dataclass(frozen=True, kw_only=True)
class Score:
    """What a submission is worth.

    Attributes:
      by_file: id -> score.
      by_collection: collection -> the mean over its files.
      mean: over collections.
    """

    by_file: Mapping[str, float]
    by_collection: Mapping[str, float]
    mean: float


def rank(scores: ArrayLike) -> np.ndarray:
    """Rows by predicted runtime, fastest first, (c,) int64; of those that tie, the first row first."""
    values = np.asarray(scores)
    if values.ndim != 1 or np.isnan(values).any():
        raise _error(_MADE_UP, "scores", "one number for each configuration", f"shape {values.shape}, or NaN in it")
    return np.argsort(values, kind="stable")


def write_submission(path: str | PathLike[str], rankings: Mapping[str, Sequence[int] | np.ndarray]) -> None:
    """Write a submission.

    Args:
      path: the CSV file; replaced if it is there.
      rankings: id -> rows, fastest first; of tile files the first five are enough.

    Raises:
      TpuGraphsError: for ids that are none, rankings of nothing, and rows that are negative or repeated; nothing is
        written then.
    """
    problems = []
    for id, rows in rankings.items():
        problems += _bad_id(id) or _none(id, rows) or _bad_rows(id, np.asarray(rows), None)
    if problems:
        raise TpuGraphsError(path, problems)
    lines = [f"{id},{';'.join(map(str, np.asarray(rows).tolist()))}" for id, rows in rankings.items()]
    Path(path).write_text("\n".join([HEADER, *lines]) + "\n")


def read_submission(path: str | PathLike[str]) -> dict[str, np.ndarray]:
    """Read a submission: id -> rows, (length,) int64, fastest first.

    Raises:
      TpuGraphsError: with all lines that are malformed, and all ids that are there twice.
    """
    try:
        header, *lines = Path(path).read_text(encoding="utf-8-sig").splitlines() or [""]  # Excel writes a BOM
    except (OSError, UnicodeError) as error:
        raise _error(path, "file", "a CSV file", str(error)) from error
    problems = []
    rankings: dict[str, np.ndarray] = {}
    if header != HEADER:
        problems += _problem("line 1", HEADER, repr(header[:80]), "Write the header; it is part of the format.")
    for number, line in enumerate(lines, start=2):
        id, _, text = line.partition(",")
        parts = text.split(";")
        bad = [x for x in parts if not (x.isascii() and x.isdigit() and len(x) < 10)]
        if (wrong := _bad_id(id, f"line {number}")) or not line:
            problems += wrong
        elif bad:
            problems += _problem(
                f"line {number}", "rows with ; between them", repr(bad[0][:40]), "Write whole numbers."
            )
        elif id in rankings:
            problems += _problem(f"line {number}", "each id once", f"{id} again", "Remove one of the lines.")
        else:
            rankings[id] = np.array(parts, np.int64)
    if problems:
        raise TpuGraphsError(path, problems)
    return rankings


def score_submission(
    rankings: Mapping[str, Sequence[int] | np.ndarray] | str | PathLike[str], files: Mapping[str, Layout | Tile]
) -> Score:
    """Score a submission by files whose runtimes are known.

    Args:
      rankings: id -> rows, fastest first; or the path of a submission.
      files: id -> open file: every file that has to be ranked, at least one.

    Raises:
      TpuGraphsError: with all ids that are missing or unknown, and all rankings with rows that are out of range,
        repeated or too few; also if the runtimes of a file are withheld, or do not differ so that tau is undefined.
    """
    path: str | PathLike[str] = _MADE_UP
    if isinstance(rankings, (str, PathLike)):
        path, rankings = rankings, read_submission(rankings)
    ranked = {id: np.asarray(rows) for id, rows in rankings.items()}
    if problems := check_submission(ranked, files):
        raise TpuGraphsError(path, problems)
    by_file = {id: _score(file, ranked[id]) for id, file in files.items()}
    collections = sorted({parse_id(id)[0] for id in files})
    by_collection = {
        name: float(np.mean([score for id, score in by_file.items() if parse_id(id)[0] == name]))
        for name in collections
    }
    return Score(by_file=by_file, by_collection=by_collection, mean=float(np.mean(list(by_collection.values()))))


def check_submission(
    rankings: Mapping[str, Sequence[int] | np.ndarray], files: Mapping[str, Layout | Tile]
) -> list[Problem]:
    """Everything that is wrong with rankings of some files, test files too: nothing if they can be scored.

    Args:
      rankings: id -> rows, fastest first.
      files: id -> open file.
    """
    problems = []
    if not files:
        problems += _problem("files", "at least one file", "none", "Give the files that the submission is of.")
    for id in sorted(set(files) - set(rankings)):
        problems += _problem(id, "a ranking of every file", "none of this one", "Add a line.")
    for id in sorted(set(rankings) - set(files)):
        problems += _problem(id, "rankings of the files only", "one of no such file", "Remove the line.")
    for id, file in files.items():
        problems += _bad_id(id) or (_bad_rows(id, np.asarray(rankings[id]), file) if id in rankings else [])
    return problems


def _score(file: Layout | Tile, rows: np.ndarray) -> float:
    if isinstance(file, Tile):
        target = file.target
        return float(2 - target[rows[:TOP]].min() / target.min())
    places: np.ndarray = np.empty(len(rows), np.int64)
    places[rows] = np.arange(len(rows))
    _ = file.target  # raises where runtimes are withheld
    tau = kendall_tau(places, file.runtime)
    if np.isnan(tau):
        raise _error(file.path, "config_runtime", "runtimes that differ", "no two that do", "Leave the file out.")
    return tau


def _none(id: str, rows: Sequence[int] | np.ndarray) -> list[Problem]:
    return [] if len(rows) else _problem(id, "at least one row", "none", "Rank them, or leave the file out.")


def _bad_id(id: str, where: str | None = None) -> list[Problem]:
    try:
        parse_id(id)
    except TpuGraphsError as error:
        return [
            Problem(array=where or repr(id), expected=p.expected, found=p.found, next_step=p.next_step)
            for p in error.problems
        ]
    return []


def _bad_rows(id: str, rows: np.ndarray, file: Layout | Tile | None) -> list[Problem]:
    problems: list[Problem] = []
    if rows.ndim != 1 or rows.dtype.kind not in "iu":
        return _problem(id, "a list of rows", f"{rows.dtype} of shape {rows.shape}", "Give whole numbers.")
    below = file.num_configs if file is not None else np.iinfo(np.int64).max
    if len(outside := rows[(rows < 0) | (rows >= below)]):
        upto = f" to {below - 1}" if file is not None else " on"
        problems += _problem(id, f"rows from 0{upto}", f"{outside[0]}", "Rows are counted from 0 in the file's order.")
    values, counts = np.unique(rows, return_counts=True)
    if (counts > 1).any():
        at = int(np.argmax(counts > 1))
        problems += _problem(id, "each row once", f"row {values[at]} {counts[at]} times", "Rank it once.")
    if file is not None:
        least = min(TOP, file.num_configs) if isinstance(file, Tile) else file.num_configs
        if len(values) < least:
            problems += _problem(id, f"at least {least} different rows", f"{len(values)}", "Rank more of them.")
    return problems


def _problem(array: str, expected: str, found: str, next_step: str) -> list[Problem]:
    return [Problem(array=array, expected=expected, found=found, next_step=next_step)]


def _error(
    path: str | PathLike[str], array: str, expected: str, found: str, next_step: str = "Give a file or scores that are."
) -> TpuGraphsError:
    return TpuGraphsError(path, _problem(array, expected, found, next_step))
